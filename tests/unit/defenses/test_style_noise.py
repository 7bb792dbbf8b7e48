"""Noise as FISC's Table 10 has it: exactly its formula, and no more of a defense than the formula is."""

import math

import pytest
import torch
from scipy import stats
from scipy.stats import ks_2samp
from torch import Tensor

from fdgsec.attacks.linkage.noise_linkage import add_noise
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    InterpolationStyle,
    ModelState,
    Scores,
    StyleDistribution,
    StyleStatistics,
)
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_key, simulated_stream
from tests.support.outgoings import outgoing
from tests.support.toy_federation import PixelStyles, members

MANY = 200_000
VALUE, P, S = 3.0, 0.1, 0.5
LAWS = {  # mean, variance and kurtosis of e at scale 1
    "gaussian": (0.0, 1.0, 3.0),
    "laplace": (0.0, 2.0, 6.0),
    "exponential": (1.0, 1.0, 9.0),
}


def noise(seed: int = 0) -> SecretStream:
    return simulated_stream(seed, "test")


def sent(defense: StyleNoise, artifact: Artifact, seed: int = 0) -> Artifact:
    protected = defense.on_message(outgoing(artifact), noise(seed))
    assert protected is not None
    assert protected.uses is None
    return protected.artifact


def constant() -> StyleStatistics:
    return StyleStatistics(
        mean=torch.full((MANY,), VALUE, dtype=torch.float64), std=torch.full((MANY,), 40.0, dtype=torch.float64)
    )


def mean_of(artifact: Artifact) -> Tensor:
    return artifact.tensors()["mean"]


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize("mode", ["fedpcl", "coefficient"])
def test_the_release_has_the_mean_and_the_variance_of_the_formula(mode: str, distribution: str):
    defense = StyleNoise(p=P, scale=S, mode=mode, distribution=distribution)  # type: ignore[arg-type]
    location, variance, kurtosis = LAWS[distribution]
    shrink, gain = (1 - P, 1.0) if mode == "fedpcl" else (1.0, P)

    for name, value in (("mean", VALUE), ("std", 40.0)):
        found = sent(defense, constant()).tensors()[name]

        sd = gain * S * math.sqrt(variance)
        expected = shrink * value + gain * S * location
        assert abs(float(found.mean()) - expected) < 5 * sd / math.sqrt(MANY)  # five standard errors
        assert abs(float(found.var()) - sd**2) < 5 * sd**2 * math.sqrt((kurtosis - 1) / MANY)


@pytest.mark.parametrize(
    ("distribution", "law"),
    [("gaussian", stats.norm(0, S)), ("laplace", stats.laplace(0, S)), ("exponential", stats.expon(0, S))],
)
def test_the_noise_has_the_distribution_that_is_named(distribution: str, law: stats.rv_continuous):
    defense = StyleNoise(p=P, scale=S, distribution=distribution)  # type: ignore[arg-type]

    drawn = mean_of(sent(defense, constant())) - (1 - P) * VALUE

    assert stats.kstest(drawn[:20_000].numpy(), law.cdf).pvalue > 1e-4


def test_exponential_noise_never_lowers_a_number():
    drawn = mean_of(sent(StyleNoise(p=0, scale=S, distribution="exponential"), constant())) - VALUE

    assert float(drawn.min()) >= 0


def test_it_is_the_noise_that_the_linkage_attack_adds_itself():
    values = torch.full((100_000,), 2.0)

    found = mean_of(sent(StyleNoise(p=P, scale=S), StyleStatistics(mean=values, std=values))).double()

    oracle = add_noise(values.double(), shrink=P, noise=S, rng=stream(0, "attack", "noise"))
    assert ks_2samp(found.numpy(), oracle.numpy()).pvalue > 1e-3


def test_without_noise_and_shrink_every_number_stays():
    style = ImageStyles(
        mean=torch.randn(4, 6, generator=noise().generator()), std=torch.rand(4, 6, generator=noise().generator()) + 0.1
    )

    found = sent(StyleNoise(p=0, scale=0), style)

    assert all(torch.equal(found.tensors()[name], value) for name, value in style.tensors().items())


def test_no_std_comes_out_below_the_least():
    style = StyleStatistics(mean=torch.zeros(1000), std=torch.full((1000,), 0.1))

    found = sent(StyleNoise(scale=5.0, least=0.01), style).tensors()

    assert float(found["std"].min()) == pytest.approx(0.01)
    assert float(found["mean"].min()) < -1


def test_distributions_rows_and_spectra_are_noised_number_by_number():
    ones = torch.ones(5)
    kinds = [
        StyleDistribution(mean=ones, std=ones, mean_spread=ones, std_spread=ones),
        ImageStyles(mean=torch.ones(3, 5), std=torch.ones(3, 5)),
        Amplitudes(values=torch.ones(2, 3, 4, 3), owner=torch.zeros(2, dtype=torch.int64)),
    ]

    for artifact in kinds:
        found = sent(StyleNoise(), artifact)

        assert type(found) is type(artifact)
        numbers = torch.cat([v.flatten() for v in found.tensors().values() if v.is_floating_point()])
        assert len(numbers.unique()) == len(numbers)  # nobody shares a draw


def test_models_and_scores_are_none_of_its_business():
    for artifact in (ModelState(state={"w": torch.ones(3)}), Scores(values=torch.ones(3))):
        assert StyleNoise().on_message(outgoing(artifact), noise()) is None


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize("mode", ["fedpcl", "coefficient"])
def test_what_is_public_of_the_noise_is_undone_without_bias(mode: str, distribution: str):
    defense = StyleNoise(p=P, scale=S, mode=mode, distribution=distribution)  # type: ignore[arg-type]

    back = mean_of(defense.undone(sent(defense, constant())))

    sd = (S / (1 - P) if mode == "fedpcl" else P * S) * math.sqrt(LAWS[distribution][1])
    assert abs(float(back.mean()) - VALUE) < 5 * sd / math.sqrt(MANY)
    assert float(back.std()) == pytest.approx(sd, rel=0.03)


def test_what_a_server_makes_of_noised_styles_is_undone_too():
    center = InterpolationStyle(mean=torch.tensor([0.9]), std=torch.tensor([1.8]))

    back = StyleNoise(p=0.1).undone(center).tensors()

    torch.testing.assert_close(back["mean"], torch.tensor([1.0]))
    torch.testing.assert_close(back["std"], torch.tensor([2.0]))


def test_dividing_by_one_minus_p_leaves_every_link_where_it_was():
    clients = 30 + 3 * torch.randn(20, 64, generator=noise(5).generator())
    defense = StyleNoise(p=0.4, scale=4.0)
    sessions = [
        [sent(defense, StyleStatistics(mean=row, std=row.abs()), seed=100 * turn + n) for n, row in enumerate(clients)]
        for turn in (0, 1)
    ]

    def ranks(first: list[Artifact], second: list[Artifact]) -> Tensor:
        stacked = [torch.stack([torch.cat([*a.tensors().values()]) for a in part]).double() for part in (first, second)]
        apart = torch.cdist(stacked[0], stacked[1], compute_mode="donot_use_mm_for_euclid_dist")
        return apart.argsort(dim=1)

    seen = ranks(*sessions)
    divided = ranks(*([defense.undone(artifact) for artifact in part] for part in sessions))

    assert torch.equal(seen, divided)
    assert (
        0.1 < float((seen[:, 0] == torch.arange(20)).double().mean()) <= 1
    )  # links are made, so that there is what to keep


def test_the_guarantee_is_none_and_says_why():
    defense_stack = DefenseStack(defenses=[StyleNoise()])
    wire = Wire(secret=lambda upload, number: simulated_stream(0))
    engine = LocalEngine(members=members(6, 8), method=PixelStyles(), seed=0, defense_stack=defense_stack)
    RoundLoop(method=PixelStyles(), engine=engine, wire=wire, key=simulated_key(0), rounds=0).run(None)

    (only,) = wire.ledger.guarantees(delta=1e-5, assumptions=StyleNoise().assumptions)

    assert only.epsilon is None
    assert only.uncovered == ("share/style",)
    assert "no (epsilon, delta): styles are not clipped" in only.assumptions[0]


@pytest.mark.parametrize("options", [{"p": 1.0}, {"p": -0.1}, {"scale": -1.0}, {"least": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]):
    with pytest.raises(UsageError, match="style-noise needs"):
        StyleNoise(**options)  # type: ignore[arg-type]
