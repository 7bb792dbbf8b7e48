from dataclasses import replace

import pytest
import torch

from fdgsec.attacks.interpolation_leakage.attack import InterpolationLeakage
from fdgsec.attacks.interpolation_leakage.control import planted_cohorts
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Membership, Prediction, Ranking
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = InterpolationLeakage(simulations=500, kept=120)
QUICK = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def test_three_schemes_are_asked_for_and_a_second_session_where_it_says_something():
    plan = ATTACK.plan(QUICK)

    assert [(r.kind, r.count, r.clients, r.scheme, r.rounds) for r in plan] == [
        ("released", 0, 0, "", 0), ("cohorts", 20, 20, "iid", 2), ("cohorts", 20, 20, "dirichlet", 2),
        ("cohorts", 20, 20, "same images", 1),
    ]  # fmt: skip
    assert ATTACK.plan(replace(QUICK, profile="full"))[1].count == 100


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_differ_are_found_in_what_their_federation_published(seed: int):
    planted_control = planted(seed)
    guess = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))

    controls = positive_control(planted_control, guess, Judge(bootstrap_repeats=100), stream(seed, "attack"))

    assert [control.measurement.slice for control in controls] == [{"clients": "planted", "test": "likelihood ratio"}]
    assert all(control.passed for control in controls)


@pytest.mark.slow
def test_exchanged_styles_are_not_significant():
    failures = 0
    for seed in range(10):
        planted_control = planted(seed)
        guess = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        rows = Judge().null(
            guess, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        assert len(rows) == 1
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=1))

    assert failures <= 3  # 10 rows, each fails with probability .05: more than 3 in 1 of 1,000


@pytest.mark.nightly
@pytest.mark.slow
def test_without_a_tie_between_style_and_clients_the_false_alarms_are_those_of_the_level():
    alarms = 0
    for seed in range(100):
        planted_control = planted_cohorts(BLANK, stream(seed, "attack"), informative=False)
        guess = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))
        rows = Judge().null(
            guess, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        alarms += rows[0].p_value <= 0.05

    assert alarms <= 11  # binomial(100, .05) exceeds 11 in 4 of 1,000


def test_an_adversary_that_takes_part_counts_itself_in_and_is_no_candidate():
    planted_control = planted()
    case, knowledge = planted_control.cases[0], planted_control.knowledge
    assert case.candidates is not None
    assert case.groups is not None
    assert knowledge.simulate is not None
    groups = case.groups
    own = case.candidates.subset(groups == 19)
    members = [3, 4, 5, 6, 7, 8, 9]
    view = knowledge.simulate([own, *(case.candidates.subset(groups == g) for g in members)], stream(0, "attack"))
    seen = View(messages=tuple(m for m in view.messages if m.sender == SERVER))
    asked = replace(case, views=(seen,), groups=groups[groups < 14], candidates=case.candidates.subset(groups < 14))

    (answer,) = (
        a for a in ATTACK.run([asked], replace(knowledge, own=own), stream(0, "attack")) if isinstance(a, Membership)
    )

    assert answer.scores.shape == (14,)
    assert float(answer.scores[3:10].mean()) > float(torch.cat([answer.scores[:3], answer.scores[10:]]).mean())


def test_a_style_published_by_no_known_rule_is_compared_by_distance():
    planted_control = planted()
    simulate = planted_control.knowledge.simulate
    assert simulate is not None

    def largest(data: list[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        view = simulate(data, rng)
        sent = [m.artifact for m in view.messages if isinstance(m.artifact, StyleStatistics)]
        style = InterpolationStyle(
            mean=torch.stack([a.mean for a in sent]).amax(0), std=torch.stack([a.std for a in sent]).amax(0)
        )
        last = Message(round=1, stage="broadcast", sender=SERVER, receiver="client:1", artifact=style)
        return View(messages=(*view.messages, last))

    answers = ATTACK.run(
        planted_control.cases[:1], replace(planted_control.knowledge, simulate=largest), stream(0, "attack")
    )

    assert [(type(a), a.slice) for a in answers] == [(Membership, {"test": "nearest style"})]


def with_uploads(seed: int, *, rows: int) -> Case:
    """A federation's case with the uploads of three clients, whose median (of `rows` coordinates) was published."""
    rng = stream(seed, "attack")
    sent = [StyleStatistics(mean=torch.rand(8, generator=rng), std=torch.rand(8, generator=rng)) for _ in range(3)]
    mean, std = (torch.stack([getattr(s, name) for s in sent]).median(0).values for name in ("mean", "std"))
    mean[rows:], std[rows:] = mean[rows:] + 0.01, std[rows:] + 0.01
    artifacts = [*sent, InterpolationStyle(mean=mean, std=std)]
    senders = ["client:0", "client:1", "client:2", SERVER]
    messages = tuple(
        Message(round=0, stage="share", sender=sender, receiver=SERVER, artifact=artifact)
        for sender, artifact in zip(senders, artifacts, strict=True)
    )
    return Case(question="released", views=(View(messages=messages),), victim="client:0", slice={"domain": "a"})


@pytest.mark.parametrize(("rows", "share"), [(8, 1.0), (6, 0.75), (0, 0.0)])
def test_a_median_over_clients_is_copied_from_them_coordinate_by_coordinate(rows: int, share: float):
    case = with_uploads(0, rows=rows)

    answers = ATTACK.run([case, case], BLANK, stream(0, "attack"))

    (copied,) = answers  # both cases of the run show one style
    assert isinstance(copied, Prediction)
    assert (copied.name, copied.value, copied.slice) == ("verbatim_fraction", share, {"domain": "all"})


def test_whoever_sees_no_uploads_counts_no_copies():
    case = with_uploads(0, rows=8)
    seen = View(messages=case.views[0].messages[-1:])

    assert ATTACK.run([replace(case, views=(seen,))], BLANK, stream(0, "attack")) == []


def sessions(seed: int, *, same: bool) -> tuple[list[Case], list[Truth]]:
    """Eight federations, each seen in two sessions; the second view of a case is of the one three places on."""
    rng = stream(seed, "attack", "sessions")
    own = torch.randn(8, 20, generator=rng) + 5
    again = (own if same else torch.randn(8, 20, generator=rng) + 5) + 0.3 * torch.randn(8, 20, generator=rng)

    def view(style: torch.Tensor) -> View:
        artifact = InterpolationStyle(mean=style[:10], std=style[10:].abs())
        return View(messages=(Message(round=0, stage="b", sender=SERVER, receiver="client:1", artifact=artifact),))

    planted_control = planted()
    cases = [
        replace(planted_control.cases[0], views=(view(own[i]), view(again[(i + 3) % 8])), slice={"clients": 20})
        for i in range(8)
    ]
    return cases, [Truth(partner=(i - 3) % 8) for i in range(8)]


@pytest.mark.parametrize("same", [True, False])
def test_second_sessions_are_linked_where_federations_differ_for_good(same: bool):
    cases, truths = sessions(1, same=same)
    blind = [replace(case, question="cohorts") for case in cases]
    attack = InterpolationLeakage(simulations=500, kept=120)
    guess = [a for a in attack.run(blind, small(), stream(0, "attack")) if isinstance(a, Ranking)]

    rows = Judge(bootstrap_repeats=100).measure(guess, blind, truths, stream(0, "attack"))

    top1 = next(row.value for row in rows if row.name == "top1")
    assert top1 is not None
    assert (top1 == 1.0) if same else (top1 < 0.5)


def small() -> Knowledge:
    """Knowledge whose public method publishes styles of another width, so that only sessions matter."""
    planted_control = planted()
    simulate = planted_control.knowledge.simulate
    assert simulate is not None

    def narrow(data: list[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        found = []
        for message in simulate(data, rng).messages:
            artifact = message.artifact
            assert isinstance(artifact, StyleStatistics | InterpolationStyle)
            cut = replace(artifact, mean=artifact.mean[:10], std=artifact.std[:10])
            found.append(replace(message, artifact=cut))
        return View(messages=tuple(found))

    return replace(planted_control.knowledge, simulate=narrow)


@pytest.mark.parametrize(
    ("clients", "kept", "simulations"), [(20, 30, 1500), (20, 250, 100), (1, 250, 1500), (200, 250, 1500)]
)
def test_options_that_cannot_trace_a_pool_are_refused_before_anything_runs(clients: int, kept: int, simulations: int):
    with pytest.raises(UsageError, match="keeps two simulations for each client of a pool"):
        InterpolationLeakage(clients=clients, kept=kept, simulations=simulations)
