"""Questions about a trained run, and training that an adversary simulates: who is compared with whom, and what is kept."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.experiments.setup.run_inputs import with_validation
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import GeneratorState, ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.wire import SERVER
from fdgsec.methods.feddag import FedDAG
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, View
from fdgsec.threats.attack import Question

METHOD = FedDAG(warm_up=1, generator="fcn16")


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=16, per_domain=100), rng=stream(0, "world", "roles"))


def challenger_of(roles: Roles, *clients: DomainDataset, adversary: str = "server") -> Challenger:
    network = build_classifier("tiny", 7, rng=stream(0, "world", "initialisation"))
    state = ModelState(state={name: value.detach() for name, value in network.state_dict().items()})
    model = GlobalModel(
        blueprint=Blueprint(backbone="tiny", classes=7, norm="batch", device="cpu", remodel=METHOD.remodel), state=state
    )
    members = [
        with_validation(Client(name=f"client:{number}", data=data), seed=0) for number, data in enumerate(clients)
    ]
    return Challenger(
        method=METHOD, roles=roles, sources=(0, 1, 2), clients=members, adversary=ADVERSARIES[adversary],
        encoder="mini", seed=0, model=model, run=observe(METHOD, members, seed=0, name="run", model=model, rounds=2),
    )  # fmt: skip


def simulated(challenger: Challenger, images: DomainDataset) -> View:
    halves = images.subset(torch.arange(0, len(images), 2)), images.subset(torch.arange(1, len(images), 2))
    return challenger.simulated(halves, stream(0, "attack", "simulation"), rounds=2)


def handed_out(view: View) -> GeneratorState:
    """The generator that the server gave to its clients in the last round."""
    found = [m.artifact for m in view.messages if m.sender == SERVER and isinstance(m.artifact, GeneratorState)]
    return found[-1]


def test_others_are_of_the_classes_that_members_are_of_where_a_client_holds_few_classes(roles: Roles):
    images = roles.federation.of_domain(0)
    skewed = images.subset((images.labels < 2) | (torch.arange(len(images)) % 7 == 0))
    challenger = challenger_of(roles, skewed, roles.federation.of_domain(1))

    cases = challenger.cases(Question(kind="trained", count=10))

    for case, truth in cases:
        assert case.candidates is not None
        assert truth.members is not None
        members = Counter(case.candidates.labels[truth.members].tolist())
        assert members == Counter(case.candidates.labels[~truth.members].tolist())
        assert 4 <= members.total() <= 10
    assert [case.victim for case, _ in cases] == ["client:0", "client:1"]


def test_so_many_clients_are_asked_about_in_equal_steps(roles: Roles):
    images = roles.federation
    parts = [images.subset(torch.arange(number, len(images), 6)) for number in range(6)]
    challenger = challenger_of(roles, *parts)

    asked = {most: challenger.cases(Question(kind="trained", count=4, clients=most)) for most in (1, 3, 4, 9)}

    victims = {most: [case.victim.removeprefix("client:") for case, _ in cases] for most, cases in asked.items()}
    assert victims == {1: ["0"], 3: ["0", "2", "4"], 4: ["0", "1", "3", "4"], 9: ["0", "1", "2", "3", "4", "5"]}


def test_members_without_a_held_out_image_of_their_class_are_not_asked_about(roles: Roles):
    bare = replace(roles, held_out=roles.held_out.subset(roles.held_out.labels != 3))
    challenger = challenger_of(bare, roles.federation.of_domain(0))

    ((case, truth),) = challenger.cases(Question(kind="trained", count=1000))

    assert case.candidates is not None
    assert truth.members is not None
    assert 3 not in case.candidates.labels.tolist()
    assert int(truth.members.sum()) == len(bare.held_out.of_domain(0))


def test_simulated_training_keeps_the_models_of_its_last_round_alone(roles: Roles):
    challenger = challenger_of(roles, roles.federation.of_domain(0))

    view = simulated(challenger, roles.auxiliary.of_domain(0))

    trained = [m for m in view.messages if type(m.artifact) is ModelState and m.stage == "update"]
    assert {message.round for message in trained} == {1}


def test_simulated_training_keeps_the_models_of_all_rounds_where_the_run_does(roles: Roles):
    challenger = replace(challenger_of(roles, roles.federation.of_domain(0)), every_round=True)

    view = simulated(challenger, roles.auxiliary.of_domain(0))

    trained = [m for m in view.messages if type(m.artifact) is ModelState and m.stage in ("model", "update")]
    assert {(message.round, message.stage) for message in trained} == {
        (number, stage) for number in (0, 1) for stage in ("model", "update")
    }


@pytest.mark.medium
def test_a_server_simulates_from_the_generator_that_it_gave_its_clients_and_a_client_from_another(roles: Roles):
    server = challenger_of(roles, roles.federation.of_domain(0), roles.federation.of_domain(1))
    client = replace(server, adversary=ADVERSARIES["client"], memo={})
    assert server.run is not None
    given = handed_out(server.view(server.run))

    mine = handed_out(simulated(server, roles.auxiliary.of_domain(0)))
    theirs = handed_out(simulated(client, client.clients[0].data))

    assert torch.equal(mine.tensors()["stem.weight"], given.tensors()["stem.weight"])
    assert not torch.equal(theirs.tensors()["stem.weight"], given.tensors()["stem.weight"])
