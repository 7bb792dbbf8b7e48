"""Set reconstruction from several rounds: every model gives new equations for the same list of images."""

from dataclasses import replace

import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.release_equations import reader_of
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import FederationRun, RunRequest, federate
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.experiments.simulated_runs.model_round_cases import sent_models
from fdgsec.federation.artifacts import ModelState, StyleDistribution
from fdgsec.federation.early_layer_encoder import ModelEncoder
from fdgsec.federation.method import Client, Method
from fdgsec.federation.released_statistics import StyleDistributions
from fdgsec.federation.wire import SERVER, Message
from fdgsec.methods.ccst import CCST
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import register_encoder, statistics
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge, Statistics, View
from fdgsec.threats.answers import MemberList, Membership
from fdgsec.threats.attack import Case, Question, TargetFacts, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload
from tests.support.stablefdg_setting import start

AUXILIARY, CHANNELS, MODELS = 60, 8, 4
STATISTIC = StyleDistributions()
ATTACK = SetReconstruction()


def model(number: int) -> ModelState:
    return ModelState(state={"number": torch.tensor([float(number)])})


def tables(images: int) -> tuple[list[Moments], DomainDataset]:
    """Each model's statistics of the same images: 4 x 8 numbers of each."""
    found = []
    for number in range(MODELS):
        rng = stream(number, "attack", "planted rounds")
        mean = 4 + torch.randn(AUXILIARY + images, CHANNELS, generator=rng, dtype=torch.float64)
        variance = 9 + torch.randn(AUXILIARY + images, CHANNELS, generator=rng, dtype=torch.float64).clamp(-4, 4)
        found.append(planted_moments(mean, variance))
    nothing = torch.zeros(AUXILIARY + images, dtype=torch.int64)
    return found, planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))


def known(moments: list[Moments], images: DomainDataset) -> Knowledge:
    def statistics_under(state: ModelState) -> Statistics:
        return PlantedStatistics(moments=moments[int(state.state["number"])])

    return Knowledge(
        statistics=PlantedStatistics(moments=moments[0]), encoder="planted", class_names=("any",),
        domain_names=("planted",), auxiliary=images.subset(torch.arange(AUXILIARY)), unseen=None, own=None,
        released_statistic=STATISTIC, statistics_under=statistics_under,
    )  # fmt: skip


def asked(
    moments: list[Moments], images: DomainDataset, members: int, count: int, *, models: tuple[int, ...], seed: int = 0
) -> tuple[Case, Truth]:
    """A client in one round under each of `models`."""
    views = []
    for turn, number in enumerate(models):
        sent = pooled_release(moments[number].rows(AUXILIARY + torch.arange(members)), STATISTIC)
        told = Message(round=turn, stage="model", sender=SERVER, receiver="client:0", artifact=model(number))
        views.append(View(messages=(told, *upload(sent).messages)))
    order = torch.randperm(count, generator=stream(seed, "attack", "order"))
    case = Case(
        question="model_rounds", views=tuple(views), victim="client:0", records=members, domain="planted",
        slice={"domain": "planted", "rounds": len(models)}, candidates=images.subset(AUXILIARY + order),
    )  # fmt: skip
    return case, Truth(members=order < members)


def answered(case: Case, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    scores, listed = ATTACK.run([case], knowledge, stream(0, "attack"))
    assert isinstance(scores, Membership)
    assert isinstance(listed, MemberList)
    return scores.scores, listed.believed


@pytest.mark.medium
def test_four_rounds_determine_a_list_that_one_leaves_open():
    """160 candidates: 32 numbers leave the list open, 128 do not."""
    moments, images = tables(160)
    areas, exact = [], []
    for models in ((0,), (0, 1, 2, 3)):
        case, truth = asked(moments, images, 60, 160, models=models)
        scores, listed = answered(case, known(moments, images))
        assert truth.members is not None
        areas.append(auc(scores[truth.members], scores[~truth.members]))
        exact.append(torch.equal(listed, truth.members))

    assert exact == [False, True]
    assert 0.55 < areas[0] < 0.95
    assert areas[1] == 1.0


def test_a_linear_program_finds_the_same_list_in_all_rounds_together():
    """The second implementation: HiGHS on the sums of (mu, sigma, mu^2, sigma^2) of every round."""
    moments, images = tables(160)
    case, truth = asked(moments, images, 60, 160, models=(0, 1, 2, 3))
    assert case.candidates is not None
    rows, sums = [], []
    for number, table in enumerate(moments):
        t = STATISTIC.records(table.rows(case.candidates.rows))
        rows.append(t / t.std(0))
        sums.append(60 * STATISTIC.release(case.release(number))[0] / t.std(0))
    matrix, target = torch.cat(rows, dim=1).T.numpy(), torch.cat(sums).numpy()
    equations, columns = matrix.shape
    eye = torch.eye(equations, dtype=torch.float64).numpy()
    found = linprog(
        [0.0] * columns + [1.0] * (2 * equations), A_eq=torch.cat([torch.from_numpy(part) for part in (
            matrix, eye, -eye
        )], dim=1).numpy(), b_eq=target, bounds=[(0, 1)] * columns + [(0, None)] * (2 * equations), method="highs",
    )  # fmt: skip

    _, listed = answered(case, known(moments, images))

    assert truth.members is not None
    assert found.x is not None
    assert (found.x[:columns] > 0.5).tolist() == truth.members.tolist() == listed.tolist()


def test_copies_of_a_release_are_no_new_equations():
    moments, images = tables(40)
    case, _ = asked(moments, images, 20, 40, models=(0, 1, 0, 1, 2))
    reader = reader_of([case], known(moments, images), stream(0, "attack"))
    assert list(reader.runs) == [0, 1, 4]
    assert reader.equations(case, case).release.shape == (3 * 4 * CHANNELS,)


def test_each_round_is_read_under_its_own_model():
    moments, images = tables(40)
    case, _ = asked(moments, images, 20, 40, models=(2, 0))
    reader = reader_of([case], known(moments, images), stream(0, "attack"))
    assert case.candidates is not None
    placed = reader.equations(case, case)
    expected = []
    for number in (2, 0):
        t = STATISTIC.records(moments[number].rows(torch.arange(AUXILIARY)))
        about = t.mean(0)
        centered = STATISTIC.about(STATISTIC.records(moments[number].rows(case.candidates.rows)), about)
        reference = STATISTIC.about(t, about)
        expected.append((centered - reference.mean(0)) / reference.std(0, correction=0))
    torch.testing.assert_close(torch.from_numpy(placed.candidates), torch.cat(expected, dim=1))


def test_a_round_without_its_model_is_an_error():
    moments, images = tables(40)
    case, _ = asked(moments, images, 20, 40, models=(0, 1))
    silent = replace(case, views=tuple(View(messages=view.messages[1:]) for view in case.views))
    with pytest.raises(UsageError, match="needs the model of each round"):
        ATTACK.run([silent], known(moments, images), stream(0, "attack"))


def test_releases_of_others_give_no_evidence_in_any_number_of_rounds():
    moments, images = tables(80)
    pairs = [asked(moments, images, 40, 80, models=(0, 1, 2, 3), seed=seed) for seed in range(8)]
    answers = ATTACK.negative_control([case for case, _ in pairs], known(moments, images), stream(2, "attack", "null"))
    areas = []
    for answer in answers:
        members = pairs[answer.case][1].members
        assert members is not None
        if isinstance(answer, Membership):
            areas.append(auc(answer.scores[members], answer.scores[~members]))
        if isinstance(answer, MemberList):
            assert not torch.equal(answer.believed, members)
    assert abs(sum(areas) / len(areas) - 0.5) < 0.12


def test_the_null_is_of_the_same_images_in_every_round():
    moments, images = tables(40)
    case, _ = asked(moments, images, 20, 40, models=(0, 0, 1))
    knowledge = known(moments, images)
    reader = reader_of([asked(moments, images, 20, 40, models=(0, 1, 2))[0]], knowledge, stream(0, "attack"))
    again = reader.independent(case, stream(0, "attack", "null"))
    drawn = reader.independent(case, stream(0, "attack", "null"))
    for run in range(3):
        assert torch.equal(again.release(run).tensors()["mean"], drawn.release(run).tensors()["mean"])
        assert not torch.equal(again.release(run).tensors()["mean"], case.release(run).tensors()["mean"])


def test_rounds_are_asked_about_where_styles_are_of_a_models_layers_and_enough_are_kept():
    attack = SetReconstruction(sizes=(40,), model_rounds=(1, 5, 20))
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleDistribution"}), clients=3, images_per_client=100, classes=7, profile="quick",
        rounds=20, kept_rounds=5,
    )  # fmt: skip
    asked_for = [question.rounds for question in attack.plan(facts) if question.kind == "model_rounds"]
    assert sorted(set(asked_for)) == [1, 5]
    pooled = replace(facts, artifact_kinds=frozenset({"StyleStatistics"}))
    assert not [question for question in attack.plan(pooled) if question.kind == "model_rounds"]


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=32, per_domain=140), rng=stream(0, "world", "roles"))


def recorded(roles: Roles, method: Method, *, keep: str = "models=all") -> tuple[FederationRun, list[Client]]:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    config = RunConfig(target="stablefdg", method="stablefdg", rounds=2, keep=keep)  # type: ignore[arg-type]
    return federate(RunRequest(method=method, members=clients, model=start(method), config=config)), clients


def challenger_of(roles: Roles, method: Method, *, keep: str = "models=all") -> Challenger:
    run, clients = recorded(roles, method, keep=keep)
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES["server"],
        encoder="mini", seed=0, run=run, model=start(method), released_statistic=STATISTIC, rounds=2,
    )  # fmt: skip


@pytest.mark.medium
def test_clients_are_seen_under_the_models_that_the_run_recorded(roles: Roles):
    """The control through the target: a run of two rounds, whose lists are exact from both rounds together."""
    method = StableFDG(plan=TrainingPlan(steps=2, batch_size=8))
    challenger = challenger_of(roles, method)
    models = sent_models(challenger)
    pairs = challenger.cases(Question(kind="model_rounds", count=2, records=20, gallery=40, rounds=2))
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]

    assert len(cases) == 6
    assert len(models) == 2
    assert models[0].state.sha256 == start(method).state.sha256 != models[1].state.sha256
    statistic = StyleDistributions(unbiased=method.unbiased, eps=method.eps)
    for case, truth in pairs:
        assert case.candidates is not None
        assert truth.members is not None
        for turn, view in enumerate(case.views):
            sent, told = case.release(turn), view.latest(ModelState)
            assert isinstance(sent, StyleDistribution)
            assert told is not None
            assert told.sha256 == models[turn].state.sha256
            encoder = register_encoder(ModelEncoder(models[turn], stage=method.stage))
            mean = statistic.records(statistics(encoder, case.candidates.subset(truth.members))).mean(0)
            torch.testing.assert_close(statistic.release(sent)[0], mean, rtol=1e-4, atol=1e-5)

    def under(state: ModelState) -> Statistics:
        encoder = register_encoder(ModelEncoder(start(method).with_state(state.tensors()), stage=method.stage))
        return lambda dataset: statistics(encoder, dataset)

    auxiliary = roles.auxiliary.subset(roles.auxiliary.domains < 3)
    knowledge = Knowledge(
        statistics=under(models[1].state), encoder="any", class_names=auxiliary.class_names,
        domain_names=auxiliary.domain_names, auxiliary=auxiliary, unseen=None, own=None, released_statistic=statistic,
        statistics_under=under,
    )  # fmt: skip
    for answer in ATTACK.run(cases, knowledge, stream(0, "attack")):
        if isinstance(answer, MemberList):
            members = truths[answer.case].members
            assert members is not None
            assert torch.equal(answer.believed, members)


def test_rounds_whose_models_were_not_kept_are_not_asked_about(roles: Roles):
    method = StableFDG(plan=TrainingPlan(steps=1, batch_size=8))
    challenger = challenger_of(roles, method, keep="models=last")
    question = Question(kind="model_rounds", count=1, records=20, gallery=40, rounds=2)
    assert challenger.cases(question) == []
    assert replace(challenger, run=None, memo={}).cases(question) == []
    assert replace(challenger, method=CCST(), memo={}).cases(question) == []
