"""dp-sgd as a defense: the noise that it asks for, whom it refuses, and what the ledger says afterwards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.defenses.guards import Guards
from fdgsec.experiments.run_config import build
from fdgsec.experiments.setup.guarantees import guarantee_documents
from fdgsec.federation.artifacts import GeneratorState, ModelState, Prototypes, Scores
from fdgsec.federation.defense import Defense, Outgoing, Protected, Sender
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import NUMBERS, Client, Clock, Method
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import Receipt, Upload, Wire
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign_dp import FedAlignDP
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.feddag_aggregation import CrossEvaluation
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.methods.fisc_dp import FISCDP
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.methods.stablefdg_dp import StableFDGDP
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use, epsilon
from fdgsec.privacy.dp_sgd import PrivateTrainer, uses_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import resolve
from fdgsec.runtime.secret_streams import SecretStream, simulated_key, simulated_stream
from tests.support.private_setting import network
from tests.support.round_loop import four_clients
from tests.support.single_records import start

CLOCK = Clock(round=0, rounds=1, participants=())
PLAN = TrainingPlan(batch_size=8, epochs=1, learning_rate=0.05, crop=None, flip=0.0)
SOUND = (FedAvg, CCST, StableFDGDP, FISCDP, FedAlignDP, FedDAGDP)
REFUSED = (
    "stablefdg", "fisc", "fedalign", "feddag", "fpl", "fedadg", "fedbn", "fedccrl", "feddg", "feddg-ga", "fediir",
    "fedsr", "fedprox", "jigen", "rsc", "mixstyle", "dsu", "fedgma", "cross-evaluation",
)  # fmt: skip
USE = Use(mechanism="gaussian", noise=2.0, sensitivity={"zero-out": 1.0}, sampling_rate=0.5, count=3)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return [replace(client, data=client.data.subset(torch.arange(16))) for client in four_clients()]


@dataclass(frozen=True, kw_only=True)
class Inheriting(FedAvg):
    """Extends a method that trains through its trainer, and says nothing for itself."""


@dataclass(frozen=True, kw_only=True)
class Planless:
    """Says that it trains through its trainer, but by no plan."""

    trains_through_trainer: bool = True
    trains_on_own_releases: bool = False
    reviews: str = "none"
    client_plan: None = None


@dataclass(frozen=True, kw_only=True)
class Exchanging:
    """A filter of somebody else's, which says nothing of what it does with shared styles."""

    assumptions: tuple[str, ...] = ()

    def check(self, method: Method) -> None:
        """Every method."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Nothing, where it is sent."""
        return None

    def on_received(self, receipt: Receipt) -> Sequence[Upload]:
        """Whatever it likes."""
        return receipt.uploads


def promises(
    method: FedAvg, clients: Sequence[Client], *defenses: Defense, rounds: int = 2, participation: float = 1.0
) -> Sequence[Mapping[str, object]]:
    """What a run of RoundLoop and LocalEngine promises."""
    defense_stack = DefenseStack(defenses=defenses, name="test")
    defense_stack.check(method)
    wire = Wire(secret=lambda upload, number: simulated_stream(0, number), keep=lambda message: False)
    engine = LocalEngine(members=clients, method=method, seed=0, defense_stack=defense_stack)
    driver = RoundLoop(
        method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds, participation=participation
    )
    driver.run(start(method))
    return guarantee_documents(wire.ledger, defense_stack, method, delta=1e-5, simulated=True)


def outgoing(
    artifact: ModelState | GeneratorState | Scores | Prototypes, name: str = "model", **given: object
) -> Outgoing:
    """What client:0 is about to send after a private step."""
    client = four_clients()[0]
    clock = Clock(round=0, rounds=1, participants=("client:0",))
    sender = Sender(
        client=client, method=FedAvg(), clock=clock, model=None, state={}, statistic_source=None, trained=(USE,)
    )
    plain = Outgoing(round=0, stage="update", name=name, artifact=artifact, sender=sender)
    return replace(plain, **given)  # type: ignore[arg-type]


def rng() -> SecretStream:
    return simulated_stream(0, "test")


def model_state() -> ModelState:
    return ModelState(state=detached(network()))


@pytest.mark.parametrize(("asked", "rounds"), [(1.0, 3), (8.0, 2)])
@pytest.mark.medium
def test_all_rounds_of_a_client_together_cost_what_was_asked_for_and_never_more(
    clients: list[Client], asked: float, rounds: int
):
    clock = Clock(round=0, rounds=rounds, participants=())

    trainer = DPSGD(epsilon=asked).trainer(clients[0], FedAvg(plan=PLAN), clock, rng())

    use = uses_of(16, PLAN, noise_multiplier=trainer.noise_multiplier, max_grad_norm=1.0)
    whole = epsilon([use] * rounds, delta=1e-5, relation="zero-out")
    assert (use.sampling_rate, use.count) == (0.5, 2)
    assert 0.98 * asked <= whole <= asked


@pytest.mark.medium
def test_the_ledger_of_a_whole_run_composes_to_what_was_asked_for(clients: list[Client]):
    (run,) = promises(FedAvg(plan=PLAN), clients[:2], DPSGD(epsilon=8.0))

    assert (run["part"], run["unit"], run["relation"]) == ("run", "record", "zero-out")
    assert run["covers"] == ["update/model", "update/numbers"]
    assert 0.98 * 8 <= float(str(run["epsilon"])) <= 8


@pytest.mark.medium
def test_noise_is_for_all_rounds_whoever_takes_part_and_the_ledger_counts_who_did(clients: list[Client]):
    every, some = (
        promises(FedAvg(plan=PLAN), clients, DPSGD(epsilon=8.0), rounds=rounds, participation=share)[0]
        for rounds, share in ((2, 1.0), (2, 0.25))
    )
    once = epsilon([_one_round(clients[0], rounds=2)], delta=1e-5, relation="zero-out")

    assert float(str(every["epsilon"])) == pytest.approx(8.0, rel=1e-3)
    assert min(abs(float(str(some["epsilon"])) - cost) for cost in (once, 8.0)) < 1e-3  # whoever took part most often
    assert any("as if every client took part in all rounds" in str(text) for text in _texts(some))
    assert any("a choice by results on them is not accounted for" in str(text) for text in _texts(some))


def _one_round(client: Client, *, rounds: int) -> Use:
    clock = Clock(round=0, rounds=rounds, participants=())
    trainer = DPSGD(epsilon=8.0).trainer(client, FedAvg(plan=PLAN), clock, rng())
    return uses_of(len(client.data), PLAN, noise_multiplier=trainer.noise_multiplier, max_grad_norm=1.0)


def _texts(guarantee: Mapping[str, object]) -> Sequence[object]:
    texts = guarantee["assumptions"]
    assert isinstance(texts, list)
    return texts


def test_a_given_multiplier_is_taken_as_it_is(clients: list[Client]):
    clock = Clock(round=0, rounds=7, participants=())

    trainer = DPSGD(noise_multiplier=3.0, max_grad_norm=0.5).trainer(clients[0], FedAvg(plan=PLAN), clock, rng())

    assert (trainer.noise_multiplier, trainer.max_grad_norm) == (3.0, 0.5)


def test_refusals_while_training_say_the_name_by_which_a_method_is_called(clients: list[Client]):
    trainer = DPSGD(epsilon=8.0).trainer(clients[0], StableFDGDP(), CLOCK, rng())
    unregistered = DPSGD(epsilon=8.0).trainer(clients[0], Inheriting(), CLOCK, rng())

    assert (trainer.method, unregistered.method) == ("stablefdg-dp", "Inheriting")


@pytest.mark.parametrize("defense", [DPSGD(noise_multiplier=0.0), DPSGD(epsilon=math.inf)])
@pytest.mark.medium
def test_training_without_noise_is_named_as_unprotected(clients: list[Client], defense: DPSGD):
    (run,) = promises(FedAvg(plan=PLAN), clients[:1], defense, rounds=1)

    assert run["epsilon"] is None
    assert run["uncovered"] == ["update/model", "update/numbers"]


@pytest.mark.medium
def test_scores_that_choose_the_round_are_named_as_unprotected(clients: list[Client]):
    run, model = promises(FedAvg(plan=PLAN, select="validation"), clients[:2], DPSGD(epsilon=8.0))

    assert run["epsilon"] is None
    assert run["uncovered"] == ["review/scores"]
    assert model["part"] == "model only"


@pytest.mark.parametrize(
    ("guards", "returns"),
    [
        (Guards(), False),
        (Guards(norm=1e9, on_outlier="clip"), False),
        (Guards(outlier=50.0), False),
        (Guards(center="median", acts_on="models"), False),
        (Guards(center="median", acts_on="styles"), True),
        (Guards(outlier=3.0, on_outlier="clip"), True),
        (Guards(outlier=3.0, on_outlier="replace"), True),
        (Guards(norm=1e9, on_outlier="replace"), True),
        (Exchanging(), True),
    ],
)
@pytest.mark.medium
def test_a_model_is_unprotected_where_the_server_mixes_its_own_unprotected_style_into_others(
    guards: Defense, returns: bool, clients: list[Client]
):
    run, *parts = promises(CCST(plan=PLAN, k=1), clients[:3], DPSGD(epsilon=8.0), guards, rounds=1)

    assert ("update/model" in run["uncovered"]) == returns  # type: ignore[operator]
    assert [part["part"] for part in parts] == ([] if returns else ["model only"])
    assert any("may come back into its training" in str(text) for text in _texts(run)) == returns


@pytest.mark.medium
def test_moments_that_outlive_rounds_are_those_of_noisy_gradients_and_cost_nothing_more(clients: list[Client]):
    plan = replace(PLAN, optimizer="adam")

    (run,) = promises(FedAvg(plan=plan, keep_optimizer=True), clients[:2], DPSGD(epsilon=8.0))

    assert 0.98 * 8 <= float(str(run["epsilon"])) <= 8


def test_two_clients_and_two_rounds_draw_noise_of_their_own(clients: list[Client]):
    defense_stack, method = DefenseStack(defenses=(DPSGD(noise_multiplier=1.0),)), FedAvg(plan=PLAN)
    clocks = [Clock(round=number, rounds=2, participants=()) for number in (0, 1)]

    trainers = [defense_stack.with_trainer(client, method, clock)[1] for client in clients[:2] for clock in clocks]

    drawn = [t.secret.uniform(4).tolist() for t in trainers if isinstance(t, PrivateTrainer)]
    assert len({tuple(values) for values in drawn}) == 4


@pytest.mark.parametrize("method", SOUND)
def test_methods_whose_records_stay_apart_are_taken(method: type[FedAvg]):
    DPSGD(epsilon=8.0).check(method())


@pytest.mark.parametrize("name", REFUSED)
def test_other_methods_are_refused_with_what_to_take_instead(name: str):
    method = build(resolve("methods", name), {}, where="method")

    with pytest.raises(UsageError, match=f"no guarantee for {name}: .*stablefdg-dp, fisc-dp, fedalign-dp or feddag-dp"):
        DPSGD(epsilon=8.0).check(method)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Stacked(base=CCST(), local=MixStyle()), "mixstyle on top of ccst.*leave --with out"),
        (CCST(local=MixStyle()), "no guarantee for ccst: its records meet"),
        (CrossEvaluation(base=CCST()), "no guarantee for cross-evaluation: "),
        (Inheriting(), "Inheriting"),
        (Planless(), "Planless trains by no plan"),
    ],
)
def test_what_stands_on_a_sound_method_is_not_sound_for_that(method: Method, said: str):
    with pytest.raises(UsageError, match=said):
        DPSGD(epsilon=8.0).check(method)


def test_batch_norm_is_refused_and_group_norm_named(clients: list[Client]):
    plain = Blueprint(backbone="tiny", classes=7, norm="batch")
    model = GlobalModel(blueprint=plain, state=ModelState(state=detached(plain.network(stream(0, "world", "start")))))
    defense_stack = DefenseStack(defenses=(DPSGD(noise_multiplier=1.0),))
    engine = LocalEngine(members=clients[:1], method=FedAvg(plan=PLAN), seed=0, defense_stack=defense_stack)
    wire = Wire(secret=lambda upload, number: rng(), keep=lambda message: False)

    with pytest.raises(UsageError, match=r"BatchNorm2d.*--norm group"):
        RoundLoop(method=FedAvg(plan=PLAN), engine=engine, wire=wire, key=simulated_key(0), rounds=1).run(model)


def test_the_model_pays_and_other_networks_of_the_same_steps_are_free():
    defense, state = DPSGD(epsilon=8.0), model_state()

    model, perturbed = (defense.on_message(outgoing(state, name), rng()) for name in ("model", "perturbed"))
    generator = defense.on_message(outgoing(GeneratorState(state=state.state), "generator"), rng())

    assert model is not None
    assert model.uses is not None
    assert dict(model.uses[0].sensitivity) == {"zero-out": 1.0}  # the size is told: nobody can join unnoticed
    assert [found.uses for found in (perturbed, generator) if found is not None] == [(), ()]


@pytest.mark.parametrize(
    ("metrics", "weight", "covered"),
    [
        ({"steps"}, "images", True), (set[str](), "images", True), ({"steps"}, 1.0, True),
        ({"steps", "loss"}, "images", False), ({"steps"}, 3.25, False),
    ],
)  # fmt: skip
def test_numbers_are_covered_where_no_image_decides_them(metrics: set[str], weight: float | str, covered: bool):
    count = float(len(four_clients()[0].data)) if weight == "images" else float(weight)
    told = outgoing(Scores(values=torch.tensor([count, 0.0])), NUMBERS, metrics=frozenset(metrics))

    assert (DPSGD(epsilon=8.0).on_message(told, rng()) is not None) == covered


@pytest.mark.parametrize(
    "message",
    [
        outgoing(Prototypes(features=torch.zeros(2, 3), classes=torch.arange(2)), "prototypes"),
        outgoing(model_state(), stage="share"),
        outgoing(model_state(), sender=replace(outgoing(model_state()).sender, trained=None)),
        outgoing(model_state(), sender=replace(outgoing(model_state()).sender, trained=())),
    ],
    ids=["another kind", "another stage", "no private trainer", "a trainer that nobody called"],
)
def test_what_noisy_steps_did_not_make_is_none_of_its_business(message: Outgoing):
    assert DPSGD(epsilon=8.0).on_message(message, rng()) is None


@pytest.mark.parametrize("turn", [1, -1], ids=["first", "last"])
def test_no_other_mechanism_releases_the_model(clients: list[Client], turn: int):
    both = (DPFedAvg(), DPSGD(noise_multiplier=1.0))[::turn]

    with pytest.raises(UsageError, match="both mechanisms on what clients send"):
        promises(FedAvg(plan=PLAN), clients[:1], *both, rounds=1)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"epsilon": 8.0, "noise_multiplier": 1.0}, {"epsilon": 0.0}, {"epsilon": math.nan},
        {"epsilon": 8.0, "delta": 0.0}, {"noise_multiplier": -1.0}, {"noise_multiplier": math.inf},
        {"epsilon": 8.0, "max_grad_norm": 0.0}, {"epsilon": 8.0, "max_grad_norm": math.inf},
        {"epsilon": 8.0, "max_grad_norm": 1e-25},
        {"epsilon": 8.0, "max_physical_batch": 0},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: Mapping[str, object]):
    with pytest.raises(UsageError, match="dp-sgd"):
        build(DPSGD, options, where="defense dp-sgd")
