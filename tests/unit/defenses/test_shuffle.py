"""Shuffling on the wire: everything arrives, whole, and without a name."""

import pytest
import torch

from fdgsec.defenses.shuffle import Shuffle
from fdgsec.experiments.run_config import build
from fdgsec.experiments.setup.run_federation import FederationRun, observe
from fdgsec.federation.artifacts import Amplitudes, Artifact, ModelState, Scores, StyleBank
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import NUMBERS, Client, Method
from fdgsec.federation.wire import Upload, number_of
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fisc import FISC
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import METHODS, resolve
from fdgsec.runtime.secret_streams import simulated_stream
from fdgsec.threats.adversary import ADVERSARIES
from tests.support.round_loop import CLIENTS, federated, four_clients

SMALL = {"plan": {"batch_size": 8, "learning_rate": 0.01, "steps": 2}}
ANONYMOUS = ["anonymous:0", "anonymous:1", "anonymous:2", "anonymous:3"]
WORN = DefenseStack(defenses=[Shuffle()])


def method_named(name: str) -> Method:
    made: Method = build(resolve("methods", name), SMALL, where="method")
    return made.fitting(CLIENTS)


def sent_up(observed: FederationRun) -> list[tuple[str, Artifact]]:
    return [(m.sender, m.artifact) for m in observed.transcript.messages() if m.receiver == "server"]


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()


def test_the_same_styles_arrive_under_other_names_in_another_order(clients: list[Client]):
    plain = sent_up(observe(CCST(k=4), clients, seed=0, name="run"))

    shuffled = sent_up(observe(CCST(k=4), clients, seed=0, name="run", defense_stack=WORN))

    assert [sender for sender, _ in shuffled] == ANONYMOUS
    hashes = [artifact.sha256 for _, artifact in plain], [artifact.sha256 for _, artifact in shuffled]
    assert sorted(hashes[0]) == sorted(hashes[1])


def test_every_run_and_stage_has_an_order_of_its_own(clients: list[Client]):
    orders = {
        tuple(
            artifact.sha256
            for _, artifact in sent_up(observe(CCST(k=4), clients, seed=0, name=name, defense_stack=WORN))
        )
        for name in ("one", "two", "three", "four", "five")
    }

    assert len(orders) > 1


def test_the_parts_of_an_upload_stay_together():
    uploads = [
        Upload(
            round=0, stage="update", sender=f"client:{n}", weight=float(n),
            artifacts={"model": ModelState(state={"w": torch.tensor([n])}), NUMBERS: Scores(values=torch.tensor([float(n)]))},
        )
        for n in range(20)
    ]  # fmt: skip

    found = Shuffle().policy().on_collected(uploads, simulated_stream(0))

    came = [int(u.artifacts["model"].tensors()["w"]) for u in found]
    assert came == [int(u.artifacts[NUMBERS].tensors()["values"]) for u in found]
    assert came == [int(u.weight) for u in found]
    assert sorted(came) == list(range(20))
    assert came != list(range(20))


def test_spectra_do_not_name_their_sender():
    spectra = Amplitudes(values=torch.ones(2, 1, 1, 1), owner=torch.tensor([3, 3]))
    upload = Upload(round=0, stage="share", sender="client:3", artifacts={"styles": spectra})

    (found,) = Shuffle().policy().on_collected([upload], simulated_stream(0))

    assert found.artifacts["styles"].tensors()["owner"].tolist() == [-2, -2]
    assert number_of("anonymous:0") == -2


def test_no_adversary_finds_a_clients_style_by_its_name(clients: list[Client]):
    observed = observe(CCST(k=4), clients, seed=0, name="run", defense_stack=WORN)

    for adversary in ("server", "client", "outsider"):
        assert ADVERSARIES[adversary].view(observed.transcript).styles("client:1") is None
    bank = next(m.artifact for m in observed.transcript.messages() if m.sender == "server")
    assert isinstance(bank, StyleBank)
    assert sorted(bank.owner.tolist()) == [-5, -4, -3, -2]


def test_a_median_over_clients_does_not_mind_their_order(clients: list[Client]):
    plain = observe(FISC(), clients, seed=0, name="run")
    shuffled = observe(FISC(), clients, seed=0, name="run", defense_stack=WORN)

    first, second = (
        next(m.artifact for m in one.transcript.messages() if m.sender == "server").tensors()
        for one in (plain, shuffled)
    )
    torch.testing.assert_close(second["mean"], first["mean"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(second["std"], first["std"], atol=1e-5, rtol=1e-5)
    receivers = [m.receiver for m in shuffled.transcript.messages() if m.sender == "server"]
    assert receivers == [client.name for client in clients]


@pytest.mark.parametrize("name", ["fedavg", "fedgma", "fpl", "fediir", "ccst"])
@pytest.mark.medium
def test_methods_that_look_at_unnamed_uploads_train_under_it(name: str, clients: list[Client]):
    plain = federated(method_named(name), clients, recode=False)

    shuffled = federated(method_named(name), clients, recode=True, defense_stack=WORN)

    up = [row.sender for row in shuffled.transcript.rows if row.receiver == "server"]
    assert set(up) == set(ANONYMOUS)
    assert all(torch.isfinite(value).all() for value in shuffled.model.values())
    if name != "ccst":  # there a client no longer knows its own style
        for entry, value in plain.model.items():
            torch.testing.assert_close(shuffled.model[entry], value, atol=2e-4, rtol=2e-3)


def test_methods_that_must_know_who_sent_what_are_refused_and_say_why():
    refused = {}
    for name in METHODS:
        try:
            Shuffle().check(method_named(name))
        except UsageError as error:
            refused[name] = str(error)

    assert set(refused) >= {"stablefdg", "feddag", "fedalign", "fedccrl", "cross-evaluation", "feddg", "feddg-ga"}
    assert not set(refused) & {"fedavg", "ccst", "fisc", "fedbn", "fpl"}
    assert "another one's styles, never its own" in refused["stablefdg"]
    assert "judged by other clients" in refused["feddag"]
    assert "the pool without its own rows" in refused["fedalign"]


def test_a_sum_of_all_clients_is_not_renamed():
    """Who reads it must know that it is a sum: dp-fedavg adds its rounding, guards cannot outvote anybody in it."""
    whole = Upload(round=0, stage="update", sender="clients", artifacts={"numbers": Scores(values=torch.ones(1))})

    assert Shuffle().policy().on_collected([whole], simulated_stream(0, "shuffle")) == [whole]
