"""StableFDG's options through its local objective: each reaches what it names."""

from collections import Counter

import pytest
import torch

from fdgsec.experiments.run_config import build
from fdgsec.federation.method import Client
from fdgsec.methods.stablefdg import ForwardPass, StableFDG
from fdgsec.nn.networks.attention import HighlightedClassifier, mixed_queries
from tests.support.stablefdg_setting import CHANNELS, PLAN, drawn, learning, maps, three_clients


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


@pytest.mark.parametrize("similarity", ["mixed", "cross", "self"])
def test_queries_are_those_of_the_similarity(clients: list[Client], similarity: str):
    method = build(StableFDG, {"style": False, "similarity": similarity, "singletons": "self"}, where="method")
    objective, network = learning(method, clients[0])
    assert isinstance(network, HighlightedClassifier)
    last = torch.rand(4, 96, 4, 4, generator=drawn("last"))

    logits = objective.logits(network, last, ForwardPass(labels=torch.tensor([1, 1, 1, 5]), balanced=None))

    mixed = mixed_queries(network.highlighter.queries(last), torch.tensor([1, 2, 0, 3]), similarity=method.similarity)
    assert torch.equal(logits, network.head(network.highlighted(last, mixed)))


def test_the_highlighter_is_as_large_as_the_options_say(clients: list[Client]):
    method = StableFDG(embedding=12, attention_bias=True, unused_parameters=True)

    _, network = learning(method, clients[0])

    found = {name: tuple(value.shape[:2]) for name, value in network.state_dict().items() if "highlighter" in name}
    shapes = {"query": (12, 96), "key": (12, 96), "value": (12, 96), "output": (1, 1)}
    weights = {f"highlighter.{name}.weight": shape for name, shape in shapes.items()}
    biases = {f"highlighter.{name}.bias": shape[:1] for name, shape in shapes.items()}
    assert found == weights | biases


@pytest.mark.parametrize(("oversample", "rare"), [("balanced", 59), ("random", 11)])
def test_oversampling_fills_up_classes_or_draws_blindly(oversample: str, rare: int):
    method = build(StableFDG, {"oversample": oversample, "mix_alpha": None}, where="method")
    labels = torch.tensor([0] * 9 + [1])

    _, found, _ = method.explore_styles(maps(10), labels, drawn("rows"), size=110)

    tolerance = 10  # three standard errors of a tenth of 110; the other is 60 - 1
    assert Counter(found[10:].tolist())[1] == pytest.approx(rare, abs=tolerance)


def test_released_singletons_join_under_their_own_labels(clients: list[Client]):
    method = StableFDG(plan=PLAN, probability=1.0, singletons="released", explore_at=("stage1",), mix_alpha=None)
    objective, network = learning(method, clients[0])
    balanced = objective.balanced_pass(network)
    assert balanced is not None
    passage = ForwardPass(labels=torch.tensor([3, 3, 1, 2]), balanced=balanced)

    made, left = objective._append_balanced("stage1", torch.zeros(4, CHANNELS, 16, 16), passage, balanced, 3)

    assert left == 1
    assert sorted(passage.labels[4:].tolist()) == [1, 2]
    for row, label in zip(made[4:], passage.labels[4:].tolist(), strict=True):
        assert torch.equal(row, balanced.maps["stage1"][balanced.labels.tolist().index(label)])


def test_the_released_second_pass_has_classes_in_an_order_of_its_own(clients: list[Client]):
    objective, network = learning(StableFDG(plan=PLAN, singletons="released"), clients[0])

    orders = [made.labels.tolist() for _ in range(4) if (made := objective.balanced_pass(network)) is not None]

    assert all(sorted(order) == list(range(7)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
