from dataclasses import replace

import pytest
import torch

from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.federation.method import Client
from fdgsec.methods.fedalign import FedAlign
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge, View
from fdgsec.threats.answers import Exposure, InferredSize, Palettes, Prediction, Ranking
from fdgsec.threats.attack import Answers, Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload
from tests.support.noisy_styles import Noise


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = PoolExposure()
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")
Rows = dict[tuple[str, ...], Measurement]


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def measured(guess: Answers, planted_control: PositiveControl, seed: int = 0) -> Rows:
    rows = Judge(bootstrap_repeats=100).measure(
        guess, planted_control.cases, planted_control.truths, stream(seed, "attack")
    )
    return {(row.name, *(str(v) for k, v in row.slice.items() if k != "domain")): row for row in rows}


def test_exchanges_and_rows_in_number_are_asked_for():
    quick, full = ATTACK.plan(FACTS), ATTACK.plan(replace(FACTS, profile="full"))

    assert [(r.kind, r.count, r.records, r.rounds) for r in quick[:4]] == [
        ("rounds", 10, 40, 3), ("rounds", 10, 130, 3), ("rounds", 10, 40, 10), ("rounds", 10, 130, 10),
    ]  # fmt: skip
    assert {(r.count, r.rounds) for r in full[:4]} == {(30, 10), (30, 50)}
    assert [(r.kind, r.gallery, r.per_class) for r in quick[4:]] == [("released", 1000, 0), ("as_if_released", 0, 20)]
    with pytest.raises(UsageError, match="auxiliary or own data"):
        ATTACK.plan(replace(FACTS, knows=frozenset({"encoder"})))


@pytest.mark.parametrize("seed", range(3))
def test_everything_that_was_planted_is_found(seed: int):
    planted_control = planted(seed)
    guess = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))

    controls = positive_control(planted_control, guess, Judge(bootstrap_repeats=100), stream(seed, "attack"))
    rows = measured(guess, planted_control, seed)

    assert [control.measurement.slice["n_per_client"] for control in controls] == [20, 40]
    assert all(control.passed for control in controls)
    assert all(float(rows["relative_error", size, "4", "client size"].value or 0) < 0.06 for size in ("20", "40"))
    assert rows["relative_error", "20", "4", "client size"].chance == pytest.approx(2 ** (3 / 5) - 1, abs=0.05)
    assert rows["relative_error", "40", "4", "client size"].high is None  # three clients have no interval
    assert float(rows["top1", "as_if_released", "palette"].value or 0) > 0.9
    assert rows["palette_emd_gain", "as_if_released", "public median"].leaks
    assert rows["median_rank", "as_if_released", "neighbors"].leaks
    assert rows["lag1_p_value",].value == 1 / 1000


def test_exposure_is_the_share_of_images_that_were_published_and_close_to_what_theory_says():
    planted_control = planted()

    rows = measured(ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack")), planted_control)

    for size in ("20", "40"):
        members = [t.members for c, t in zip(planted_control.cases, planted_control.truths, strict=True) if c.slice.get("n_per_client") == int(size)]  # fmt: skip
        true = sum(int(m.sum()) for m in members if m is not None) / (3 * int(size))
        assert rows["exposed_fraction", size, "4"].value == pytest.approx(true)
        assert rows["distinct_fraction", size, "4"].value == pytest.approx(true)
        assert rows["expected_exposed_fraction", size, "4"].value == 1 - 0.5**4


@pytest.mark.medium
def test_exchanged_releases_are_not_significant():
    failures = rows = 0
    for seed in range(10):
        planted_control = planted(seed)
        guess = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        nulls = Judge().null(
            guess, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        failures += sum(not control.passed for control in negative_controls(nulls, comparisons=len(nulls)))
        rows += len(nulls)

    assert rows == 40  # two sizes, palette, neighbors
    assert failures <= 3  # each fails with probability .0125; P(more) = .1%


@pytest.mark.medium
def test_foreign_images_published_over_rounds_expose_nobody():
    alarms = 0
    for seed in range(20):
        planted_control, rng = planted(seed % 4), stream(seed, "attack", "foreign")
        cases = [blank(case, rng) for case in planted_control.cases]
        rows = measured(ATTACK.run(cases, planted_control.knowledge, rng), replace(planted_control, cases=cases), seed)
        told = [("exposed_fraction", "20", "4"), ("exposed_fraction", "40", "4"), ("top1", "as_if_released", "palette"),
                ("median_rank", "as_if_released", "neighbors"), ("palette_emd_gain", "as_if_released", "public median")]  # fmt: skip
        alarms += sum(rows[name].leaks for name in told)

    assert alarms <= 10  # of 100; P(more | 5%) = 1.1%


def blank(case: Case, rng: torch.Generator) -> Case:
    """The case with rows of random colors, as many as there were."""
    views = []
    for run in range(len(case.views)):
        count = len(case.released(run)[0])
        mean, std = 2 * torch.randn(count, 3, generator=rng), torch.rand(count, 3, generator=rng)
        views.append(upload(ImageStyles(mean=mean, std=std), sender=case.victim))
    return replace(case, views=tuple(views))


def test_what_an_adversary_knows_too_little_for_is_named():
    planted_control = planted()
    untold = [replace(case, records=None) for case in planted_control.cases]
    little = replace(planted_control.knowledge, simulate=None, encoder="mini")

    guess = ATTACK.run(untold, little, stream(0, "attack"))

    assert not [a for a in guess if isinstance(a, Exposure | InferredSize | Palettes)]
    assert [a.slice["by"] for a in guess if isinstance(a, Ranking)] == ["neighbors"]
    missing = {row.name: str(row.unavailable) for row in ATTACK.missing(untold, little)}
    assert "how many images" in missing["exposed_fraction"]
    assert "public method" in missing["relative_error"]
    assert "closed form" in missing["palette_emd"]
    assert ATTACK.missing(planted_control.cases, planted_control.knowledge) == []


def test_a_client_without_rows_exposes_nothing():
    planted_control = planted()
    empty = upload(ImageStyles(mean=torch.zeros(0, 3), std=torch.zeros(0, 3)), sender="client:0")
    cases = [replace(planted_control.cases[0], views=(empty, empty)), *planted_control.cases[1:]]

    guess = ATTACK.run(cases, planted_control.knowledge, stream(0, "attack"))

    mine = [answer for answer in guess if answer.case == 0]
    assert isinstance(mine[0], Exposure)
    assert not mine[0].published.any()
    assert [a.value for a in mine if isinstance(a, Prediction)] == [0, 0]
    assert [a.images for a in mine if isinstance(a, InferredSize)] == [1]  # fewer than two images


def test_without_the_victims_domain_only_the_blind_palette_changes():
    planted_control = planted()
    images = planted_control.knowledge.auxiliary
    assert images is not None
    halved = replace(images, domains=torch.arange(len(images)) % 2, domain_names=("planted", "other"))
    known = replace(planted_control.knowledge, auxiliary=halved)
    untold = [replace(case, domain=None) for case in planted_control.cases]

    told, blind = (
        next(a for a in ATTACK.run(cases, known, stream(0, "attack")) if isinstance(a, Palettes))
        for cases in (planted_control.cases, untold)
    )

    assert torch.equal(told.palettes, blind.palettes)
    assert not torch.equal(told.without, blind.without)


@pytest.fixture(scope="module")
def fedalign() -> tuple[Challenger, Knowledge]:
    data = shapes(image_size=32, per_domain=112)
    roles = split_roles(data, rng=stream(0, "world", "roles"))
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    challenger = Challenger(
        method=FedAlign(), roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES["server"],
        encoder="pixels", seed=0,
    )  # fmt: skip
    knowledge = Knowledge(
        statistics=lambda dataset: statistics("pixels", dataset), encoder="pixels", class_names=data.class_names,
        domain_names=data.domain_names, auxiliary=roles.auxiliary.subset(roles.auxiliary.domains < 3), unseen=None,
        own=None, simulate=challenger.simulated,
    )  # fmt: skip
    return challenger, knowledge


@pytest.mark.medium
def test_fedaligns_pool_exposes_one_minus_a_power_of_the_images_and_its_order_says_nothing(
    fedalign: tuple[Challenger, Knowledge],
):
    challenger, knowledge = fedalign
    attack = PoolExposure(sizes=(20, 40), clients=6, rounds=(10,), per_class=5, gallery=150)
    pairs = [pair for question in attack.plan(FACTS) for pair in challenger.cases(question)]
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]

    guess = attack.run(cases, knowledge, stream(0, "attack"))
    rows = Judge(bootstrap_repeats=200).measure(guess, cases, truths, stream(0, "attack"))

    exposed = [row for row in rows if row.name == "exposed_fraction"]
    expected = 1 - 0.9**10
    assert len(exposed) == 6
    for row in exposed:
        deviation = (expected * (1 - expected) / row.n) ** 0.5
        assert row.value == pytest.approx(expected, abs=3 * deviation)
    sizes = [row for row in rows if row.name == "relative_error"]
    assert all(row.leaks for row in sizes)
    assert max(float(row.value or 0) for row in sizes) < 0.35  # 20 images send as many rows as 29
    order = [row for row in rows if row.name == "median_rank" and row.slice.get("by") == "neighbors"]
    assert not [row for row in order if row.leaks]
    palette = [row for row in rows if row.name == "palette_emd_gain" and row.slice["over"] == "public median"]
    assert all(row.leaks for row in palette if row.slice["rows"] == "as_if_released")


def test_a_truth_about_pools_without_images_is_unavailable():
    planted_control = planted()
    truths = [replace(truth, images=None) if truth.images is not None else truth for truth in planted_control.truths]

    rows = measured(
        ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack")),
        replace(planted_control, truths=truths),
    )

    assert "no true image" in str(rows["palette_emd", "as_if_released"].unavailable)
    assert isinstance(truths[-1], Truth)


def behind(planted_control: PositiveControl, noise: Noise) -> PositiveControl:
    """The same rows with noise on them, and an adversary who knows of it."""

    def seen_view(number: int, run: int, view: View) -> View:
        sent = view.latest(ImageStyles)
        assert sent is not None
        child_rng = stream(0, "world", "noise", number, run)
        return replace(view, messages=(replace(view.messages[0], artifact=noise.on(sent, child_rng)),))

    cases = [
        replace(case, views=tuple(seen_view(number, run, view) for run, view in enumerate(case.views)))
        for number, case in enumerate(planted_control.cases)
    ]
    return replace(planted_control, cases=cases, knowledge=replace(planted_control.knowledge, defended=noise))


def test_behind_noise_rows_are_compared_in_its_metric():
    noisy = behind(planted(), Noise(scale=0.3))
    found = {}
    for name, knowledge in (("aware", noisy.knowledge), ("not", replace(noisy.knowledge, defended=None))):
        found[name] = measured(ATTACK.run(noisy.cases, knowledge, stream(0, "attack")), noisy)
    for size in ("20", "40"):
        exposed = {name: rows["exposed_fraction", size, "4"].value for name, rows in found.items()}
        assert (exposed["aware"] or 0) > (exposed["not"] or 0) + 0.05
    emd = {name: rows["palette_emd", "as_if_released"].value for name, rows in found.items()}
    assert (emd["aware"] or 0) < (emd["not"] or 0)
    assert "distinct_fraction" in {key[0] for key in found["not"]}
    assert "distinct_fraction" not in {key[0] for key in found["aware"]}  # noise tells copies of a row apart


def test_clients_of_one_size_tell_nothing_about_inferring_it():
    """The guess without a release would be the others' size, which is the truth: no row may call that no leak."""
    found = planted()
    kept = [n for n, case in enumerate(found.cases) if case.slice.get("n_per_client") in (None, 20)]
    cases = [found.cases[number] for number in kept]

    guess = ATTACK.run(cases, found.knowledge, stream(0, "attack"))

    assert not [answer for answer in guess if isinstance(answer, InferredSize)]
    both = ATTACK.run(found.cases, found.knowledge, stream(0, "attack"))
    assert any(isinstance(answer, InferredSize) for answer in both)
    missing = [row for row in ATTACK.missing(cases, found.knowledge) if row.name == "relative_error"]
    assert ["equally many images" in (row.unavailable or "") for row in missing] == [True]
    assert not [row for row in ATTACK.missing(found.cases, found.knowledge) if row.name == "relative_error"]
