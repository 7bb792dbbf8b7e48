"""Secure aggregation on the wire: one sum reaches the server, which is enough for some methods and refused by the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch

from fdgsec.data.domains import join
from fdgsec.defenses.secure_aggregation import SecureAggregation
from fdgsec.experiments.run_config import build
from fdgsec.experiments.setup.run_federation import FederationRun, observe
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    GeneratorState,
    ModelState,
    Prototypes,
    Scores,
    StyleBank,
    StyleStatistics,
)
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import NUMBERS, Client, Method, State, Update
from fdgsec.federation.wire import Upload
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fisc import FISC
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UnseenError, UsageError
from fdgsec.runtime.registry import METHODS, resolve
from fdgsec.runtime.secret_streams import simulated_stream
from fdgsec.threats.adversary import ADVERSARIES
from tests.support.round_loop import CLIENTS, ROUNDS, Outcome, federated, four_clients

SMALL = {"plan": {"batch_size": 8, "learning_rate": 0.01, "steps": 2}}
LIGHT = {"fedadg": {"hidden": 64, "projected": 64}}
SUMMED = {"fedavg", "fedprox", "fedbn", "mixstyle", "dsu", "rsc", "jigen", "fedsr", "fedadg", "ccst"}
WORN = DefenseStack(defenses=[SecureAggregation()])


def method_named(name: str) -> Method:
    made: Method = build(resolve("methods", name), {**SMALL, **LIGHT.get(name, {})}, where="method")
    return made.fitting(CLIENTS)


def upload(number: int, artifacts: Mapping[str, Artifact], weight: float = 1.0) -> Upload:
    return Upload(round=0, stage="update", sender=f"client:{number}", artifacts=artifacts, weight=weight)


def summed(uploads: Sequence[Upload], least: int = 2) -> Upload:
    (total,) = SecureAggregation(least=least).policy().on_collected(uploads, simulated_stream(0))
    return total


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    """Four clients of different sizes: weights matter."""
    whole = four_clients()
    return [
        Client(name=c.name, data=c.data.subset(torch.arange(9 + 2 * n)), validation=c.validation)
        for n, c in enumerate(whole)
    ]


@pytest.fixture(scope="module")
def exchanged(clients: list[Client]) -> FederationRun:
    return observe(CCST(k=4), clients, seed=0, name="run", defense_stack=WORN)


def test_the_sum_of_overall_styles_is_the_overall_style_of_all_images(clients: list[Client], exchanged: FederationRun):
    together = Client(name="client:0", data=join([client.data for client in clients]))
    oracle = next(m.artifact for m in observe(CCST(k=1), [together], seed=0, name="run").transcript.messages())

    found = next(m.artifact for m in exchanged.transcript.messages() if m.receiver == "server")

    assert isinstance(found, StyleStatistics)
    assert isinstance(oracle, StyleStatistics)
    torch.testing.assert_close(found.mean, oracle.mean, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found.std, oracle.std, atol=1e-4, rtol=1e-5)


def test_one_global_style_goes_to_everybody_and_is_nobodys(exchanged: FederationRun):
    banks = [m for m in exchanged.transcript.messages() if m.sender == "server"]

    assert [m.receiver for m in banks] == ["client:0", "client:1", "client:2", "client:3"]
    for message in banks:
        assert isinstance(message.artifact, StyleBank)
        assert message.artifact.owner.tolist() == [-1]


@pytest.mark.parametrize("adversary", ["server", "client", "outsider"])
def test_no_adversary_sees_a_clients_own_style(exchanged: FederationRun, adversary: str):
    view = ADVERSARIES[adversary].view(exchanged.transcript)

    assert view.messages
    for victim in ("client:1", "client:2", "client:3"):
        assert view.styles(victim) is None
        assert view.artifact(victim) is None


@pytest.mark.parametrize("name", sorted(SUMMED - {"ccst"}))
@pytest.mark.medium
def test_averaging_methods_learn_from_the_sum_what_they_learn_from_single_models(name: str, clients: list[Client]):
    plain = federated(method_named(name), clients, recode=False)

    hidden = federated(method_named(name), clients, recode=False, defense_stack=WORN)

    for entry, value in plain.model.items():
        if value.is_floating_point():  # a wrong weighting is off by 1e-2
            torch.testing.assert_close(hidden.model[entry], value, atol=1e-5, rtol=1e-5)
    senders = {row.sender for row in hidden.transcript.rows if row.receiver == "server"}
    assert senders == {"clients"}
    assert len(hidden.losses) == ROUNDS


@pytest.fixture(scope="module")
def trained(clients: list[Client]) -> Outcome:
    return federated(CCST(k=2, plan=TrainingPlan(steps=2, batch_size=8)), clients, recode=True, defense_stack=WORN)


def test_ccst_trains_on_images_in_the_global_style(trained: Outcome, clients: list[Client]):
    state = trained.states["client:1"]

    originals = clients[1].data.pixels().repeat_interleave(2, dim=0)
    assert state["stylized_images"].shape == originals.shape  # K entries per image, all in the one style that there is
    assert torch.equal(state["stylized_images"][0::2], state["stylized_images"][1::2])
    assert float((state["stylized_images"].double() - originals.double()).abs().mean()) > 1
    assert all(torch.isfinite(value).all() for value in trained.model.values())


def test_weights_and_metrics_reach_the_server_as_sum_and_mean(trained: Outcome, clients: list[Client]):
    numbers = [m.artifact for m in trained.transcript.messages() if isinstance(m.artifact, Scores)]

    assert [float(one.tensors()["values"][0]) for one in numbers] == [sum(len(c.data) for c in clients)] * ROUNDS
    assert float(numbers[0].tensors()["values"][-1]) == 2.0  # every client took two steps


def test_states_and_spectra_are_weighted_means_and_counters_are_rounded():
    def sent(value: float) -> dict[str, Artifact]:
        state = {"w": torch.tensor([value]), "count": torch.tensor(int(value))}
        owner = torch.tensor([int(value)])
        return {
            "model": ModelState(state=state),
            "generator": GeneratorState(state=state),
            "spectrum": Amplitudes(values=torch.full((1, 1, 1, 1), float(value)), owner=owner),
            NUMBERS: Scores(values=torch.tensor([value, value])),
        }

    total = summed([upload(0, sent(1.0), weight=1.0), upload(1, sent(5.0), weight=3.0)])

    assert (total.sender, total.weight) == ("clients", 4.0)
    assert total.artifacts["model"].tensors()["w"].tolist() == [4.0]
    assert int(total.artifacts["model"].tensors()["count"]) == 4
    assert type(total.artifacts["generator"]) is GeneratorState
    spectrum = total.artifacts["spectrum"].tensors()
    assert (spectrum["values"].item(), spectrum["owner"].item()) == (4.0, -1)
    assert total.artifacts[NUMBERS].tensors()["values"].tolist() == [6.0, 4.0]  # weights add up, metrics are averaged


def test_methods_that_need_single_uploads_are_refused_and_say_why():
    refused = {}
    for name in METHODS:
        try:
            SecureAggregation().check(method_named(name))
        except UsageError as error:
            refused[name] = str(error)

    assert set(METHODS) - set(refused) >= SUMMED
    assert set(refused) >= {"stablefdg", "feddag", "fisc", "fedalign", "fedccrl", "cross-evaluation", "fedgma", "fpl"}
    assert "median over clusters of clients" in refused["fisc"]
    assert "the pool without its own rows" in refused["fedalign"]
    assert "another one's styles" in refused["stablefdg"]
    assert "judged by other clients" in refused["feddag"]
    with pytest.raises(UsageError, match="styles of single images"):
        SecureAggregation().check(CCST(style="single"))
    with pytest.raises(UsageError, match="averages the accuracies"):
        SecureAggregation().check(FedAvg(select="validation"))
    SecureAggregation().check(FISC(contrastive="ordinary"))  # shares nothing


@dataclass(frozen=True, kw_only=True)
class Picky(FedAvg):
    """Takes the first client's model, and does not say that it looks at single ones."""

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        return model.with_state(next(iter(updates.values())).artifacts["model"].tensors()), server


def test_a_promise_is_not_inherited_by_a_method_that_aggregates_in_its_own_way():
    with pytest.raises(UsageError, match="nothing says that its server can do with less"):
        SecureAggregation().check(Picky())


def test_one_client_has_no_sum():
    with pytest.raises(UnseenError, match="at least 2 clients, and 1 took part"):
        summed([upload(0, {"model": ModelState(state={"w": torch.ones(1)})})])
    with pytest.raises(UnseenError, match="at least 3 clients, and 2 took part"):
        summed([upload(n, {"model": ModelState(state={"w": torch.ones(1)})}) for n in (0, 1)], least=3)


def test_what_has_no_sum_is_refused():
    rows = Prototypes(features=torch.ones(2, 3), classes=torch.arange(2))
    small, large = ModelState(state={"w": torch.ones(1)}), ModelState(state={"w": torch.ones(2)})

    with pytest.raises(UsageError, match="cannot sum a Prototypes"):
        summed([upload(0, {"prototypes": rows}), upload(1, {"prototypes": rows})])
    with pytest.raises(UsageError, match="different things as 'model'"):
        summed([upload(0, {"model": small}), upload(1, {"model": large})])
    with pytest.raises(UsageError, match="sent different ones"):
        summed([upload(0, {"model": small}), upload(1, {})])
    with pytest.raises(UsageError, match="weights of at least 0"):
        summed([upload(0, {"model": small}, weight=0.0), upload(1, {"model": small}, weight=0.0)])
    with pytest.raises(UsageError, match="at least 2"):
        SecureAggregation(least=1)
