"""StableFDG's local objective: which records a loss covers, where things happen, and who is whose partner."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build
from fdgsec.federation.method import Client
from fdgsec.methods.stablefdg import NEGATIVE_STDS, ForwardPass, StableFDG
from fdgsec.nn.networks.attention import HighlightedClassifier
from fdgsec.nn.training.training_loop import predictions
from tests.support.stablefdg_setting import CLOCK, PLAN, batch, drawn, learning, phi, run, start, three_clients


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


def losses(method: StableFDG, client: Client, rows: Sequence[int]) -> Tensor:
    objective, network = learning(method, client)
    return objective(batch(client, *rows), network)


def test_losses_cover_the_oversampled_records(clients: list[Client]):
    always = StableFDG(plan=PLAN, probability=1.0)

    assert losses(always, clients[0], range(14)).shape == (28,)
    assert losses(replace(always, oversampling=0.5), clients[0], range(14)).shape == (21,)
    assert losses(replace(always, oversampling=0.0), clients[0], range(14)).shape == (14,)
    assert losses(replace(always, probability=0.0), clients[0], range(14)).shape == (14,)


def test_independent_exploration_doubles_the_batch_at_every_stage(clients: list[Client]):
    method = StableFDG(plan=PLAN, probability=1.0, explore_once=False)

    assert losses(method, clients[0], range(14)).shape == (14 * 2**3,)
    assert losses(replace(method, explore_at=("stage2",)), clients[0], range(14)).shape == (14 * 2,)


def test_exploration_happens_at_the_first_stage_whose_coin_falls_so(clients: list[Client]):
    objective, network = learning(StableFDG(plan=PLAN), clients[0])
    sizes: dict[str, list[int]] = {"stage2": [], "stage4": []}
    for name, seen in sizes.items():
        network.body.get_submodule(name).register_forward_hook(
            lambda module, given, made, seen=seen: seen.append(len(made))
        )

    for _ in range(40):
        objective(batch(clients[0], *range(14)), network)

    doubled = {name: sum(size == 28 for size in seen) / 40 for name, seen in sizes.items()}
    assert doubled["stage2"] == pytest.approx(0.5, abs=0.24)  # three standard errors
    assert doubled["stage4"] == pytest.approx(0.875, abs=0.16)
    assert set(sizes["stage4"]) == {14, 28}


def test_training_counts_negative_explored_stds_in_the_clients_state(clients: list[Client]):
    method = StableFDG(plan=replace(PLAN, epochs=4))

    outcome = run(method, clients, rounds=1)

    negative, explored = outcome.states["client:0"][NEGATIVE_STDS].tolist()
    assert 0 < negative < explored
    assert explored % (14 * 8) == 0  # whole batches of whole channels


def test_a_sample_alone_in_its_class_is_joined_by_another_image_of_the_class(clients: list[Client]):
    method = StableFDG(style=False, plan=replace(PLAN, flip=0.0))
    objective, network = learning(method, clients[0])
    given = batch(clients[0], 0, 1, 2, 8)  # classes 0, 1, 2, 1

    images, labels = objective.with_partners(given, network)

    assert labels.tolist() == [0, 1, 2, 1, 0, 2]
    assert torch.equal(images[:4], given.images)
    assert torch.equal(images[4:], as_float(clients[0].data.pixels(torch.tensor([7, 9]))))  # the only others
    assert objective(given, network).shape == (6,)
    mirrored, _ = learning(replace(method, plan=replace(PLAN, flip=1.0)), clients[0])
    assert torch.equal(mirrored.with_partners(given, network)[0][4:], images[4:].flip(3))  # augmented as the batch is


def test_where_the_client_has_no_other_image_of_a_class_the_sample_stays_alone(clients: list[Client]):
    few = Client(name="client:0", data=clients[0].data.subset(torch.arange(8)))  # class 0 twice, the others once
    objective, network = learning(StableFDG(style=False, plan=PLAN), few)

    _, labels = objective.with_partners(batch(few, 0, 1, 2), network)

    assert labels.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("options", [{"singletons": "self"}, {"attention": False}, {"similarity": "self"}])
def test_no_image_joins_where_no_partner_is_looked_at(clients: list[Client], options: dict[str, str]):
    method = build(StableFDG, {**options, "plan": {"crop": "none"}}, where="method")
    objective, network = learning(method, clients[0])

    assert len(objective.with_partners(batch(clients[0], 0, 1, 2), network)[0]) == 3


def test_released_training_moves_running_statistics_by_a_second_pass_over_one_image_per_class(clients: list[Client]):
    released = StableFDG(style=False, plan=PLAN, singletons="released")
    second, network = learning(released, clients[0])
    passes: list[int] = []
    network.body.get_submodule("stem").register_forward_hook(lambda module, given, made: passes.append(len(made)))

    second(batch(clients[0], *range(14)), network)

    assert passes == [7, 14]
    assert int(network.state_dict()["body.stem.1.num_batches_tracked"]) == 2


def test_released_singletons_join_exploration_out_of_its_budget(clients: list[Client]):
    method = StableFDG(plan=PLAN, probability=1.0, singletons="released", explore_at=("stage1",), mix_alpha=None)
    objective, network = learning(method, clients[0])
    lengths: list[int] = []
    network.body.get_submodule("stage2").register_forward_hook(lambda module, given, made: lengths.append(len(made)))

    found = objective(batch(clients[0], 0, 7, 1, 2), network)  # classes 0, 0, 1, 2

    assert lengths == [7, 8]  # the second pass; then 4, the 2 that join, and 2 oversampled
    assert found.shape == (8,)


def test_released_singletons_take_the_query_in_the_row_of_their_class_number(clients: list[Client]):
    method = StableFDG(style=False, plan=PLAN, singletons="released")
    objective, network = learning(method, clients[0])
    assert isinstance(network, HighlightedClassifier)
    balanced = objective.balanced_pass(network)
    assert balanced is not None
    last = torch.rand(3, 96, 4, 4, generator=drawn("last"))
    labels = torch.tensor([4, 5, 5])

    logits = objective.logits(network, last, ForwardPass(labels=labels, balanced=balanced))

    own = network.highlighter.queries(last)
    queries = torch.stack([balanced.queries[4], (own[1] + own[2]) / 2, (own[1] + own[2]) / 2])
    assert torch.allclose(logits, network.head(network.highlighted(last, queries)), atol=1e-6)


@pytest.mark.parametrize("singletons", ["extra", "released"])
@pytest.mark.parametrize("selection", ["k-means++", "centroids"])
def test_a_pass_in_bfloat16_gives_losses_in_float32(clients: list[Client], singletons: str, selection: str):
    options = {"singletons": singletons, "selection": selection, "probability": 1.0}
    method = build(StableFDG, {**options, "plan": {"crop": "none"}}, where="method")
    objective, network = learning(method, clients[0], inbox={"distribution.0": phi(1.0, spread=0.1)})

    with torch.autocast("cpu", torch.bfloat16):
        found = objective(batch(clients[0], 0, 7, 1, 2), network)

    assert found.dtype == torch.float32
    assert bool(torch.isfinite(found).all())


@pytest.mark.medium
def test_it_learns_its_training_set(clients: list[Client]):
    method = StableFDG(plan=replace(PLAN, epochs=30))
    data, _ = method.training_set(clients[0], inbox={}, state={}, rng=drawn("fit"))

    outcome = run(method, clients[:1], rounds=1)

    right = predictions(outcome.model.module(), data.images) == data.labels
    assert int(right.sum()) >= 8  # of 14; chance is 2


def test_it_draws_from_a_stream_of_its_own_so_that_batches_come_in_fedavgs_order(clients: list[Client]):
    coins, method = drawn("fit"), StableFDG(probability=1.0)
    made = method.objective(clients[0], model=start(method), inbox={}, state={}, clock=CLOCK, rng=coins)

    made(batch(clients[0], *range(14)), start(method).module().train())

    assert torch.equal(coins.get_state(), drawn("fit").get_state())


def test_only_an_objective_of_its_own_couples_records(clients: list[Client]):
    bare = StableFDG(style=False, attention=False)
    plain = bare.objective(clients[0], model=start(bare), inbox={}, state={}, clock=CLOCK, rng=drawn("fit"))

    assert learning(StableFDG(), clients[0])[0].couples_records
    assert not plain.couples_records
