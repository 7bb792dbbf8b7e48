"""Nothing that an honest client of any method sends is refused with every check on."""

from collections.abc import Mapping, Sequence

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.guards import Guards
from fdgsec.defenses.quantize import Quantize
from fdgsec.defenses.secure_aggregation import SecureAggregation
from fdgsec.defenses.shuffle import Shuffle
from fdgsec.experiments.run_config import build
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import Wire
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.fedbn import FedBN
from fdgsec.methods.feddag_aggregation import CrossEvaluation
from fdgsec.methods.feddg import FedDG
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import METHODS, resolve
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.round_loop import four_clients

PLAN = {"batch_size": 8, "learning_rate": 0.01}
SMALL = TrainingPlan(batch_size=8, learning_rate=0.01)
OTHERWISE: Mapping[str, Sequence[Mapping[str, object]]] = {
    "fedavg": [{"select": "validation"}, {"weights": "uniform", "keep_optimizer": True}],
    "ccst": [{"style": "single"}, {"representation": "amplitude"}, {"leaky_validation": True, "select": "validation"}],
    "feddag": [{"warm_up": 0, "distribution": "both"}, {"warm_up": 1, "distribution": "global-student", "rho": 0.0}],
    "fedbn": [{"unseen": "initial"}],
    "fedsr": [{"reference": "averaged"}],
    "fedadg": [{"discriminators": "averaged"}],
    "fediir": [{"mean": "clients"}],
    "feddg-ga": [{"rule": "pardon"}, {"select": "validation"}],
    "cross-evaluation": [{"rho": 0.0, "evaluators": 1}],
    "stablefdg": [{"attention": False}, {"style": False}],
}
"""Options under which other things are sent."""
VARIANTS = [(name, {}) for name in METHODS] + [(name, options) for name, many in OTHERWISE.items() for options in many]


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()


def trained(
    method: Method, clients: Sequence[Client], *, checked: bool, quorum: float = 1.0, norm: str = "batch",
    defense_stack: DefenseStack | None = None,
) -> tuple[str, int]:  # fmt: skip
    """Two rounds: the transcript's hash, and how many failed."""
    stack = defense_stack or DefenseStack(usual=Guards())
    plan = Blueprint(backbone="tiny", classes=7, norm="group" if norm == "group" else "batch", remodel=method.remodel)
    model = GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "start")))))
    wire = Wire(
        secret=lambda upload, number: simulated_stream(0, upload.round, upload.stage, number), guards=stack.guards,
        policies=stack.policies, filters=stack.filters,
    )  # fmt: skip
    engine = LocalEngine(members=clients, method=method, seed=0, defense_stack=stack, tolerant=quorum < 1)
    driver = RoundLoop(
        method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=2, checked=checked, quorum=quorum
    )
    driver.run(model)
    return wire.transcript.sha256, len(driver.failures)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda value: str(value))
@pytest.mark.medium
def test_no_honest_reply_is_refused(name: str, options: Mapping[str, object], clients: list[Client]):
    made: Method = build(resolve("methods", name), {"plan": PLAN, **options}, where="method")
    method = made.fitting(len(clients))

    assert trained(method, clients, checked=True)[1] == 0  # at quorum 1 the first refusal ends the run


COMPOSED: Mapping[str, Method] = {
    "fedbn++": CrossEvaluation(base=FedBN(plan=SMALL), rho=0.05),
    "ccst with feddg": Stacked(base=CCST(k=2, plan=SMALL), local=FedDG()),
}


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.medium
def test_no_honest_reply_of_a_method_on_another_is_refused(name: str, clients: list[Client]):
    assert trained(COMPOSED[name], clients, checked=True, quorum=0.5)[1] == 0


@pytest.mark.parametrize(
    ("method", "defenses"),
    [
        (FedAvg(plan=SMALL), [DPFedAvg(noise_multiplier=0.1)]),
        (FedAvg(plan=SMALL), [DPFedAvg(noise_multiplier=0.1, trust="server"), SecureAggregation()]),
        (CCST(k=2, plan=SMALL), [SecureAggregation()]),
        (CCST(k=2, plan=SMALL, style="single"), [Quantize(), Shuffle()]),
    ],
    ids=["dp-fedavg", "dp-fedavg at the server, summed", "summed", "quantized and shuffled"],
)
@pytest.mark.medium
def test_no_defended_reply_is_refused(method: Method, defenses: list[Defense], clients: list[Client]):
    defense_stack = DefenseStack(defenses=defenses, usual=Guards())

    usual = trained(method, clients, checked=False, norm="group", defense_stack=defense_stack)
    checked = trained(method, clients, checked=True, quorum=0.5, norm="group", defense_stack=defense_stack)

    assert checked[0] == usual[0]
    assert checked[1] == 0
