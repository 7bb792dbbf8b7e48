"""Mean amplitude spectra (CCST's appendix E) are read exactly, win where there is something, and nothing where not."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.domains import DomainInference
from fdgsec.attacks.attribute_inference.properties import PropertyInference
from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.membership.pooled_styles import CasesByRelease, known_populations, mean_answers
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.attacks.statistics.tracing import likelihood_ratio, standardized_score
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.experiments.setup.style_view import StyleView
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import Amplitudes, StyleStatistics, released_numbers
from fdgsec.federation.method import Client
from fdgsec.federation.released_statistics import MeanSpectra
from fdgsec.methods.ccst import CCST
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.amplitude_spectra import SpectralEncoder, amplitudes
from fdgsec.nn.styles.image_styles import encoder_named, register_encoder, statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.answers import Membership as Scores
from fdgsec.threats.attack import Attack, Case, TargetFacts
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload

READING = MeanSpectra()
ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (Membership(), Differencing(), Linkage(), DomainInference(), PropertyInference(shadows=500))
}
FACTS = TargetFacts(
    artifact_kinds=frozenset({"Amplitudes"}), clients=3, images_per_client=700, classes=7, profile="quick"
)


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=210)


@pytest.fixture(scope="module")
def roles(data: DomainDataset) -> Roles:
    return split_roles(data, rng=stream(0, "world", "roles"))


def seen_at(size: int | None, data: DomainDataset) -> str:
    side = data.image_size if size is None else (size, size)
    return register_encoder(SpectralEncoder(side))


def challenger_of(roles: Roles, adversary: str = "server") -> Challenger:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=CCST(representation="amplitude"), roles=roles, sources=(0, 1, 2), clients=clients,
        adversary=ADVERSARIES[adversary], encoder=seen_at(None, roles.auxiliary), seed=0, released_statistic=READING,
    )  # fmt: skip


def knowledge_of(challenger: Challenger) -> Knowledge:
    auxiliary = challenger.roles.auxiliary.subset(challenger.roles.auxiliary.domains < 3)
    return Knowledge(
        statistics=lambda dataset: statistics(challenger.encoder, dataset), encoder=challenger.encoder,
        class_names=auxiliary.class_names, domain_names=auxiliary.domain_names, auxiliary=auxiliary, unseen=None,
        own=None, released_statistic=READING, simulate=challenger.simulated,
    )  # fmt: skip


def attacked(attack: Attack, challenger: Challenger, *, shuffled: bool = False) -> list[Measurement]:
    """What the attack reaches, or whether its negative control passed (value 1) or not (0)."""
    pairs = [pair for question in attack.plan(FACTS) for pair in challenger.cases(question)]
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]
    if not shuffled:
        answers = attack.run(cases, knowledge_of(challenger), stream(0, "attack"))
        return Judge(bootstrap_repeats=200).measure(answers, cases, truths, stream(0, "world", "judge"))
    answers = attack.negative_control(cases, knowledge_of(challenger), stream(0, "attack"))
    rows = Judge().null(answers, cases, truths, stream(0, "world", "null"))
    controls = negative_controls(rows, comparisons=len(rows))
    return [replace(control.measurement, value=float(control.passed)) for control in controls]


@pytest.mark.parametrize("size", [None, 48])
def test_a_mean_spectrum_is_the_mean_of_its_images(data: DomainDataset, size: int | None):
    members = [Client(name=f"client:{n}", data=data.of_domain(n)) for n in (0, 1)]
    observed = observe(CCST(representation="amplitude", k=2, style_size=size), members, seed=0, name="test")

    for client in members:
        artifact = next(m.artifact for m in observed.transcript.messages() if m.sender == client.name)
        expected = READING.records(statistics(seen_at(size, data), client.data, size=size)).mean(0)
        # float64 on both sides, up to the float32 that is sent: half a unit in the last place is 6e-8
        torch.testing.assert_close(READING.release(artifact)[0], expected, rtol=1e-7, atol=0)


def test_rows_of_single_images_are_their_records(data: DomainDataset):
    images = data.subset(torch.arange(5))
    sent = Amplitudes(values=amplitudes(as_float(images.pixels()).double()).float(), owner=torch.zeros(5).long())

    found = READING.release(sent)

    torch.testing.assert_close(found, READING.records(statistics(seen_at(None, data), images)), rtol=1e-7, atol=0)


def test_the_low_frequencies_of_each_color_are_read_one_by_one():
    spectra = torch.rand(2, 3, 40, 23, generator=stream(0, "attack"), dtype=torch.float64)

    found = READING.release(Amplitudes(values=spectra, owner=torch.zeros(2).long()))

    slow = [
        [float(spectra[n, c, k, m]) for c in range(3) for k in (*range(17), *range(24, 40)) for m in range(17)]
        for n in range(2)
    ]
    assert found.tolist() == slow
    assert found.shape == (2, 1683)


def test_a_reading_of_spectra_has_no_squares_and_refuses_styles():
    t, center = torch.arange(6.0).reshape(2, 3).double(), torch.ones(3).double()

    assert torch.equal(READING.about(t, center), t)
    with pytest.raises(UsageError, match="read from Amplitudes; got StyleStatistics"):
        READING.release(StyleStatistics(mean=torch.zeros(3), std=torch.ones(3)))


def test_a_planted_release_is_read_back_as_the_mean_of_its_records():
    found = planted_moments(torch.rand(7, 5, generator=stream(0, "attack")).double(), torch.ones(7, 5))

    read = READING.release(pooled_release(found, READING))

    torch.testing.assert_close(read[0], READING.records(found).mean(0), rtol=1e-7, atol=0)


def test_spectra_are_looked_at_only_where_they_are_means_and_at_their_size(data: DomainDataset):
    methods = {
        "ccst-amplitude-overall": CCST(representation="amplitude"),
        "ccst-amplitude-single": CCST(representation="amplitude", style="single"),
        "ccst-overall": CCST(),
    }

    pooled, single, styles = (
        StyleView.of(RunConfig(target=name, method="ccst"), data, method, None) for name, method in methods.items()
    )
    config = RunConfig(target="ccst-amplitude-overall", method="ccst", style_size=64)
    larger = StyleView.of(config, data, methods["ccst-amplitude-overall"], None)

    assert isinstance(pooled.released_statistic, MeanSpectra)
    assert (pooled.encoder, larger.encoder) == ("spectrum:32x32:16", "spectrum:64x64:16")
    assert single.encoder == styles.encoder == "mini"
    with pytest.raises(ValueError, match=r"reads images of \(64, 64\); got \(32, 32\)"):
        encoder_named(larger.encoder).encode(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("name", ATTACKS)
def test_spectra_of_single_images_are_not_asked_about_as_means(name: str):
    assert ATTACKS[name].plan(FACTS)
    with pytest.raises(UsageError, match="reads styles that are means over a client's images"):
        ATTACKS[name].plan(replace(FACTS, pooled=False))


def test_a_client_finds_the_spectra_of_others_in_the_bank(roles: Roles):
    others = [roles.federation.of_domain(n).subset(torch.arange(4)) for n in (1, 2)]

    saw = [challenger_of(roles, name) for name in ("server", "client")]
    views = [challenger.view(challenger.exchange(others, name="test")) for challenger in saw]

    sent, received = (view.artifact("client:2") for view in views)
    assert isinstance(sent, Amplitudes)
    assert isinstance(received, Amplitudes)
    assert torch.equal(sent.values, received.values)
    assert views[1].artifact("client:7") is None


def test_whose_a_spectrum_is_is_no_number_of_it():
    values = torch.rand(2, 3, 4, 3, generator=stream(0, "attack"))

    found = released_numbers(Amplitudes(values=values, owner=torch.tensor([5, 6])))

    assert list(found) == ["values"]
    assert found["values"].tolist() == values.double().flatten(1).tolist()


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_planted_in_spectra_is_found_and_nothing_once_it_is_exchanged(name: str):
    attack, rng = ATTACKS[name], stream(0, "attack", "plant")
    blank = Knowledge(
        statistics=lambda dataset: planted_moments(torch.zeros(len(dataset), 1), torch.ones(len(dataset), 1)),
        encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None, released_statistic=READING,
    )  # fmt: skip
    planted_control = attack.positive_control(blank, rng)
    judge = Judge(bootstrap_repeats=100)

    won = attack.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))
    lost = attack.negative_control(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    nulls = judge.null(lost, planted_control.cases, planted_control.truths, stream(0, "world", "null"))
    assert all(control.passed for control in positive_control(planted_control, won, judge, stream(0, "world")))
    assert all(control.passed for control in negative_controls(nulls, comparisons=len(nulls)))
    assert nulls


@pytest.mark.medium
def test_members_of_mean_spectra_are_found_on_shapes_and_the_exchanged_ones_are_not(roles: Roles):
    attack = Membership(sizes=(20,), clients=12)
    challenger = challenger_of(roles)

    rows = [row for row in attacked(attack, challenger) if row.name == "auc"]
    controls = attacked(attack, challenger, shuffled=True)

    assert len(rows) == 3
    assert all(row.low is not None and row.low > 0.6 for row in rows)
    assert all(row.value == 1 for row in controls)


def test_an_added_image_is_named_by_the_difference_of_mean_spectra_on_shapes(roles: Roles):
    attack = Differencing(records=8, clients=4, size=20)
    challenger = challenger_of(roles)

    rows = attacked(attack, challenger)
    controls = attacked(attack, challenger, shuffled=True)

    named = [row.value for row in rows if row.name == "top1"]
    errors = [(row.value, row.chance) for row in rows if row.name == "relative_error"]
    assert named == [1.0] * 3  # of 8 images among 31 candidates each
    # 147 x half a unit in the last place of float32 is 9e-6; guessing the domain's mean misses by far more
    assert all(value is not None and value < 1e-5 and chance is not None and chance > 0.03 for value, chance in errors)
    assert controls
    assert all(row.value == 1 for row in controls)


def noise_images(count: int, rng: torch.Generator) -> Tensor:
    """Random pictures whose contrast differs a lot from one to the next, as that of photographs does: (n, D) spectra."""
    contrast = torch.rand(count, 1, 1, 1, generator=rng, dtype=torch.float64).square()
    values = 0.5 + contrast * torch.randn(count, 3, 32, 32, generator=rng, dtype=torch.float64)
    return amplitudes(values.clamp(0, 1)).flatten(1)


@pytest.mark.nightly
@pytest.mark.slow
def test_without_information_the_membership_tests_raise_no_more_false_alarms_than_their_level():
    asked, alarms = 40, {likelihood_ratio: 0, standardized_score: 0}
    for seed in range(60):
        spectra = noise_images(60 + 2 * asked + 20, stream(seed, "world", "false alarms"))
        cases, knowledge = unrelated(spectra, asked)
        known = known_populations(CasesByRelease.of(cases), cases, knowledge)  # of 60 records with 1,632 coordinates
        for test in alarms:
            answer, _ = mean_answers([0], cases, knowledge, known, test=test, rng=stream(seed, "attack", "blur"))
            assert isinstance(answer, Scores)
            ranks = answer.scores.argsort().argsort().double() + 1
            z = (ranks[:asked].sum() - asked * (2 * asked + 1) / 2) / (asked * asked * (2 * asked + 1) / 12) ** 0.5
            alarms[test] += int(abs(float(z)) > 1.96)

    assert max(alarms.values()) <= 9  # P(more than 9 of 60 at level .05) = .1%


def unrelated(spectra: Tensor, asked: int) -> tuple[list[Case], Knowledge]:
    """A release of the last 20 images, and candidates that are all others; the first 60 are public."""
    moments = planted_moments(spectra, torch.zeros_like(spectra), pixels=1)
    nothing = torch.zeros(len(spectra), dtype=torch.int64)
    images = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
    of_release = torch.arange(60 + 2 * asked, len(spectra))
    case = Case(
        question="resampled_clients", views=(upload(pooled_release(moments.rows(of_release), READING)),), victim="client:0",
        records=20, domain="planted", slice={"domain": "planted", "n_per_client": 20},
        candidates=images.subset(torch.arange(60, 60 + 2 * asked)),
    )  # fmt: skip
    knowledge = Knowledge(
        statistics=PlantedStatistics(moments=moments), encoder="none", class_names=("any",), domain_names=("planted",),
        auxiliary=images.subset(torch.arange(60)), unseen=None, own=None, released_statistic=READING,
    )  # fmt: skip
    return [case], knowledge
