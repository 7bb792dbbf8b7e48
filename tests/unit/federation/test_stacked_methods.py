"""A local method on top of another: what travels, what each half sees, and which pairs are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import pytest
import torch

from fdgsec.experiments.run_config import RunConfig, resolve_settings
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State, Update
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.methods.ccst import CCST
from fdgsec.methods.dsu import DSU
from fdgsec.methods.fedadg import FedADG
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedbn import FedBN
from fdgsec.methods.feddag import FedDAG
from fdgsec.methods.feddag_aggregation import CrossEvaluation
from fdgsec.methods.fedprox import FedProx
from fdgsec.methods.fedsr import FedSR
from fdgsec.methods.jigen import JiGen, JigsawClassifier
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_loop import CrossEntropy, Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream
from tests.support.round_loop import federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)


@dataclass(frozen=True, kw_only=True)
class Announcing(FedAvg):
    """A local method whose clients share their number and train only if everybody's sum comes back."""

    when: Literal["once", "every"] = "once"
    least: int = 1

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        return self.when

    def check(self, clients: int) -> None:
        if clients < self.least:
            raise UsageError(f"announcing needs {self.least} clients.")

    def fitting(self, clients: int) -> Self:
        return replace(self, least=min(self.least, clients))

    def releasing_all(self) -> Self | None:
        return replace(self, least=0)

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        assert set(state) <= {"announced"}
        number = Scores(values=torch.tensor([float(client.number)]))
        return {"bank": number}, {"announced": torch.tensor(client.number)}

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        assert set(server) <= {"total"}
        total = torch.stack([inbox["bank"].tensors()["values"] for inbox in shared.values()]).sum(0)
        return {name: {"bank": Scores(values=total)} for name in shared}, {"total": total}

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        assert set(inbox) == {"bank"}
        assert inbox["bank"].tensors()["values"].tolist() == [6.0]
        assert {name: int(value) for name, value in state.items()} == {"announced": client.number}
        return CrossEntropy()


@dataclass(frozen=True, kw_only=True)
class Deaf(FedAvg):
    """Trains nothing, and so never asks for an objective."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        return Update(artifacts={"model": model.state}, weight=1.0, metrics={"loss": 0.0}), state


@dataclass(frozen=True, kw_only=True)
class Weighing(FedAvg):
    """Has an objective of its own, and an aggregation too."""

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        return CrossEntropy()

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        return model, server


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def test_a_local_method_on_fedavg_is_that_method(members: list[Client]):
    alone = federated(MixStyle(plan=PLAN), members[:2], recode=False)

    stacked = federated(Stacked(base=FedAvg(plan=PLAN), local=MixStyle()), members[:2], recode=False)

    assert stacked.transcript.sha256 == alone.transcript.sha256


@pytest.mark.medium
def test_ccst_with_mixstyle_shares_what_ccst_shares_and_trains_what_mixstyle_trains(members: list[Client]):
    ccst = CCST(plan=PLAN, k=2)
    plain, stacked = (federated(m, members[:2], recode=False) for m in (ccst, Stacked(base=ccst, local=MixStyle())))
    inner = federated(replace(ccst, local=MixStyle()), members[:2], recode=False)

    assert [row.sha256 for row in stacked.transcript.rows][:6] == [row.sha256 for row in plain.transcript.rows][:6]
    assert [(r.stage, r.kind, r.bytes) for r in stacked.transcript.rows] == [
        (r.stage, r.kind, r.bytes) for r in plain.transcript.rows
    ]
    assert stacked.transcript.sha256 == inner.transcript.sha256 != plain.transcript.sha256


@pytest.mark.medium
def test_artifacts_of_both_travel_side_by_side_and_each_half_sees_its_own(members: list[Client]):
    method = Stacked(base=CCST(plan=PLAN, k=2), local=Announcing())

    plain, recoded = (federated(method, members, recode=recode) for recode in (False, True))

    exchange = [
        (r.stage, r.sender, r.receiver, r.kind) for r in plain.transcript.rows if r.stage in ("share", "combine")
    ]
    assert exchange == [
        *[("share", f"client:{i}", "server", kind) for i in range(4) for kind in ("StyleStatistics", "Scores")],
        *[("combine", "server", f"client:{i}", kind) for i in range(4) for kind in ("StyleBank", "Scores")],
    ]
    assert plain.transcript.sha256 == recoded.transcript.sha256
    state = plain.states["client:2"]
    assert set(state) == {"local.announced", "stylized_images", "stylized_labels"}
    assert int(state["local.announced"]) == 2


def test_a_base_that_shares_nothing_still_exchanges_for_the_method_on_top(members: list[Client]):
    method = Stacked(base=FedAvg(plan=PLAN), local=Announcing(when="every"))

    outcome = federated(method, members, recode=False)

    assert method.shares == "every"
    assert [(r.round, r.stage) for r in outcome.transcript.rows if r.kind == "Scores" and r.stage != "update"] == [
        (number, stage) for number in (0, 1) for stage in ("share",) * 4 + ("combine",) * 4
    ]


def test_the_server_keeps_the_memory_of_both_apart():
    method = Stacked(base=FedAvg(select="validation"), local=Announcing())
    clock = Clock(round=0, rounds=1, participants=("client:2", "client:4"))
    shared = {name: {"local.bank": Scores(values=torch.tensor([3.0]))} for name in clock.participants}

    handed, server = method.combine(shared, server={}, clock=clock, rng=simulated_stream(0, "t"))
    judged = {name: Scores(values=torch.tensor([1.0, 2.0])) for name in clock.participants}
    after = method.weigh(judged, server=server, clock=clock)

    assert handed["client:4"]["local.bank"].tensors()["values"].tolist() == [6.0]
    assert {name: value.tolist() for name, value in after.items()} == {"validation_accuracy": 0.5, "local.total": [6.0]}


def test_the_network_is_the_bases_changed_by_the_method_on_top():
    rng = stream(0, "world", "t")
    method = Stacked(base=FedBN(), local=JiGen(permutations=4))

    made = method.remodel(build_classifier("tiny", 3, rng=rng), rng)

    assert isinstance(made, JigsawClassifier)
    assert made.jigsaw.out_features == 5


def test_fedprox_may_lie_below_for_its_term_goes_around_any_objective(members: list[Client]):
    stacked = federated(Stacked(base=FedProx(plan=PLAN, mu=0.5), local=DSU()), members[:2], recode=False)
    inner = federated(FedProx(plan=PLAN, mu=0.5, local=DSU()), members[:2], recode=False)

    assert stacked.transcript.sha256 == inner.transcript.sha256


def test_both_halves_check_and_fit_themselves_to_the_number_of_clients():
    method = Stacked(base=CCST(k=3), local=Announcing(least=4))

    fitted = method.fitting(2)

    assert fitted == Stacked(base=CCST(k=2), local=Announcing(least=2))
    with pytest.raises(UsageError, match=r"k must lie in 1\.\.2"):
        method.check(2)
    with pytest.raises(UsageError, match="announcing needs 4 clients"):
        method.check(3)


def test_whichever_half_can_release_all_does():
    single = CCST(style="single")

    assert Stacked(base=FedAvg(), local=MixStyle()).releasing_all() is None
    assert Stacked(base=single, local=MixStyle()).releasing_all() == Stacked(
        base=replace(single, styles_per_client="all"), local=MixStyle()
    )
    assert Stacked(base=FedAvg(), local=Announcing()).releasing_all() == Stacked(
        base=FedAvg(), local=Announcing(least=0)
    )


REFUSED: list[tuple[Method, Method, str]] = [
    (MixStyle(), DSU(), "DSU cannot go on top of MixStyle, which trains an objective of its own"),
    (FedADG(), MixStyle(), "MixStyle cannot go on top of FedADG, which trains an objective of its own"),
    (CCST(), FedAvg(), "FedAvg is no local method, for it has no objective of its own; --with takes"),
    (FedAvg(), FedBN(), "FedBN is no local method, for it changes kept_entries, results, aggregation"),
    (FedAvg(), FedSR(), "FedSR is no local method, for it changes kept_entries"),
    (FedAvg(), Weighing(), "Weighing is no local method, for it changes aggregate"),
    (Stacked(base=FedAvg(), local=DSU()), MixStyle(), "MixStyle cannot go on top of Stacked"),
    (CCST(local=DSU()), MixStyle(), "MixStyle cannot go on top of CCST, which trains an objective of its own"),
    (CCST(), Announcing(when="every"), "CCST exchanges once and Announcing every"),
    (CCST(), MixStyle(plan=PLAN), "set method.plan, not with.plan"),
    (CCST(), MixStyle(weights="uniform"), "set method.weights, not with.weights"),
]


@pytest.mark.parametrize(("base", "local", "words"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_be_stacked_is_refused(base: Method, local: Method, words: str):
    with pytest.raises(UsageError, match=words):
        Stacked(base=base, local=local)


def test_a_base_that_takes_no_local_method_says_so_before_anybody_trains():
    for base, words in ((FedDAG(), "own objectives"), (CrossEvaluation(base=CCST()), "give local to the base instead")):
        with pytest.raises(UsageError, match=words):
            Stacked(base=base, local=MixStyle()).check(4)


def test_a_base_that_trains_without_the_method_on_top_is_found_out(members: list[Client]):
    with pytest.raises(UsageError, match="Deaf trained without the objective of MixStyle on top of it"):
        federated(Stacked(base=Deaf(), local=MixStyle()), members[:1], recode=False)


def test_a_state_that_the_base_did_not_change_need_not_be_stored_again(members: list[Client]):
    method = Stacked(base=CCST(plan=PLAN, k=1), local=MixStyle())
    outcome = federated(method, members[:2], recode=False)
    state = outcome.states["client:0"]
    model = GlobalModel(
        blueprint=Blueprint(backbone="tiny", classes=7, remodel=method.remodel),
        state=ModelState(state=dict(outcome.model)),
    )
    clock = Clock(round=2, rounds=3, participants=("client:0",))

    _, after = method.fit(members[0], model=model, inbox={}, state=state, clock=clock, rng=stream(0, "world", "fit"))

    assert after is state


def test_settings_name_the_method_on_top_and_its_options():
    config = resolve_settings(
        {"local": "ccst"},
        preset=None,
        assignments=["with.k=1", "method.weights=uniform"],
        defaults={"method": "fedavg"},
    )

    assert (config.method_name, config.local_options, config.options) == (
        "fedavg+ccst",
        {"k": 1},
        {"weights": "uniform"},
    )
    with pytest.raises(UsageError, match="CCST is no local method, for it changes training_set"):
        method_of(config)


def test_options_of_a_method_on_top_that_is_not_there_are_refused():
    with pytest.raises(UsageError, match=r"with\.p is set, but no method is on top; add --with NAME"):
        method_of(RunConfig(method="fedavg", local_options={"p": 1}))


def test_a_base_is_built_by_name_and_trains_with_the_same_plan():
    options = {"rho": 0.0, "plan": {"learning_rate": 0.5}, "base": {"method": "ccst", "k": 2}}

    made = method_of(RunConfig(method="cross-evaluation", options=options))

    assert isinstance(made, CrossEvaluation)
    assert made.base == CCST(k=2, plan=replace(CCST().plan, learning_rate=0.5))


def test_a_base_of_a_method_that_has_none_and_an_unknown_one_are_refused():
    with pytest.raises(UsageError, match="fisc has no base"):
        method_of(RunConfig(method="fisc", options={"base": "ccst"}))
    with pytest.raises(UsageError, match="did you mean 'ccst'"):
        method_of(RunConfig(method="cross-evaluation", options={"base": "ccsst"}))
