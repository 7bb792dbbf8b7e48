"""FedSR: random features that predict deterministically, a reference that stays at home. Its loss is in golden."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fedavg import KEPT, detached
from fdgsec.methods.fedsr import REFERENCE, FedSR, SimpleRepresentation, StochasticClassifier, divergence
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)


def network(method: FedSR, seed: int = 0) -> StochasticClassifier:
    made = Blueprint(backbone="tiny", classes=7, remodel=method.remodel).network(stream(seed, "world", "t"))
    assert isinstance(made, StochasticClassifier)
    return made.eval()


def images(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=stream(0, "world", "images"))


def test_a_prediction_depends_on_its_image_alone_and_is_always_the_same():
    model = network(FedSR())
    together = model(images(6))

    reversed_order = model(images(6).flip(0)).flip(0)
    alone = torch.cat([model(image) for image in images(6).split(1)])

    assert torch.equal(together, model(images(6)))
    assert torch.allclose(together, reversed_order, atol=1e-6)
    assert torch.allclose(together, alone, atol=1e-6)


def test_predictions_are_logarithms_of_probabilities():
    made = network(FedSR())(images(5))

    assert torch.allclose(made.exp().sum(1), torch.ones(5), atol=1e-6)


def test_the_test_time_noise_is_the_same_in_every_network_and_is_never_sent():
    first, second = network(FedSR()), network(FedSR(), seed=1)

    assert torch.equal(first.noise, second.noise)
    assert first.noise.shape == (20, 96)
    assert "noise" not in first.state_dict()
    assert not torch.equal(first.encoder.weight, second.encoder.weight)


def test_features_are_the_mean_representation_of_the_width_that_was_asked_for():
    model = network(FedSR(width=10, samples=3))

    mean, std = model.distribution(images(4))

    assert (model.features_width, model.classes) == (10, 7)
    assert torch.equal(model.features(images(4)), mean)
    assert bool((std > 0).all())


def test_the_reference_starts_at_mean_zero_and_scale_one():
    model = network(FedSR())

    assert float(model.scale.detach()) == 1.0
    assert bool((model.reference_mean == 0).all())
    assert bool((model.reference_spread == 1).all())


@pytest.mark.parametrize("reference", ["local", "averaged"])
def test_what_crosses_the_wire_in_two_rounds(reference: str):
    method = FedSR(plan=PLAN, reference="local" if reference == "local" else "averaged")

    plain, recoded = (federated(method, four_clients()[:2], recode=recode) for recode in (False, True))

    state = network(method).state_dict()
    whole = sum(value.numel() * value.element_size() for value in state.values())
    sent = whole - (4 * (2 * 7 * 96 + 1) if reference == "local" else 0)
    down = [("model", "server", f"client:{i}", "ModelState", whole) for i in (0, 1)]
    up = [("update", f"client:{i}", "server", *a) for i in (0, 1) for a in (("ModelState", sent), ("Scores", 24))]
    rows = [(r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in plain.transcript.rows]
    assert rows == 2 * (down + up)
    assert plain.transcript.sha256 == recoded.transcript.sha256
    assert all(torch.equal(plain.model[name], recoded.model[name]) for name in plain.model)


def test_a_local_reference_is_remembered_by_its_client_and_unknown_to_the_server():
    method = FedSR(plan=PLAN)
    outcome = federated(method, four_clients()[:2], recode=False)

    kept = [outcome.states[name] for name in ("client:0", "client:1")]
    assert all(set(state) == {f"{KEPT}{name}" for name in REFERENCE} for state in kept)
    assert not torch.equal(kept[0][f"{KEPT}reference_mean"], kept[1][f"{KEPT}reference_mean"])
    assert bool((outcome.model["reference_mean"] == 0).all())
    uploads = [m.artifact.tensors() for m in outcome.transcript.messages() if m.stage == "update"]
    assert not any(set(REFERENCE) & set(tensors) for tensors in uploads)


def test_a_client_goes_on_from_the_reference_that_it_remembers():
    method, client = FedSR(plan=PLAN), four_clients()[0]
    blueprint = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    model = GlobalModel(blueprint=blueprint, state=ModelState(state=detached(network(method))))
    clock = Clock(round=0, rounds=2, participants=("client:0",))
    _, state = method.fit(client, model=model, inbox={}, state={}, clock=clock, rng=stream(0, "world", "fit"))

    begun = method.start(client, model=model, state=state).state_dict()

    assert all(torch.equal(begun[name], state[f"{KEPT}{name}"]) for name in REFERENCE)
    assert torch.equal(begun["encoder.weight"], model.state.state["encoder.weight"])


def test_an_averaged_reference_is_the_servers_too():
    outcome = federated(FedSR(plan=PLAN, reference="averaged"), four_clients()[:2], recode=False)

    assert bool((outcome.model["reference_mean"] != 0).any())
    assert not any(outcome.states.values())


def trained(method: FedSR) -> tuple[StochasticClassifier, Client]:
    """One client's network after two rounds of four epochs, with the reference that it remembers."""
    client = four_clients()[0]
    outcome = federated(
        replace(method, plan=TrainingPlan(batch_size=8, learning_rate=0.02, epochs=4)), [client], recode=False
    )
    own = {name: outcome.states["client:0"][f"{KEPT}{name}"] for name in REFERENCE}
    model = network(method)
    model.load_state_dict({**outcome.model, **own})
    return model, client


def test_a_heavy_norm_shrinks_representations():
    def length(l2r: float) -> float:
        model, client = trained(FedSR(l2r=l2r, cmi=0.0))
        with torch.inference_mode():
            mean, std = model.distribution(as_float(client.data.pixels()))
            return float((mean.square() + std.square()).sum(1).mean())

    assert length(5.0) < 0.5 * length(0.0)


def test_a_heavy_second_regularizer_brings_representations_near_their_classs_reference():
    def gap(cmi: float) -> float:
        model, client = trained(FedSR(l2r=0.0, cmi=cmi))
        with torch.inference_mode():
            mean, std = model.distribution(as_float(client.data.pixels()))
            spread = functional.softplus(model.reference_spread)[client.data.labels]
            wanted = model.reference_mean[client.data.labels]
            return float(divergence(model.scale * mean, model.scale * std, wanted, spread).mean())

    assert gap(1.0) < 0.5 * gap(0.0)


def test_another_network_is_not_trained():
    plain = Blueprint(backbone="tiny", classes=7).network(stream(0, "world", "t"))
    step = SimpleRepresentation(0.01, 0.001, "plain", stream(0, "world", "z"))

    with pytest.raises(TypeError, match="trains a StochasticClassifier; got a Classifier"):
        step(Batch(images=images(2), labels=torch.arange(2), records=torch.arange(2)), plain)


@pytest.mark.parametrize("method", [{"l2r": -1.0}, {"cmi": -1.0}, {"samples": 0}, {"width": 0}])
def test_options_out_of_range_are_refused(method: dict[str, float]):
    with pytest.raises(UsageError, match="fedsr needs"):
        build(FedSR, method, where="method")
