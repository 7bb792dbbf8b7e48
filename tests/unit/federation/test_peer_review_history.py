"""Who judges whom, what scores and weights follow, and which past models come back."""

import pytest
import torch

from fdgsec.federation.peer_review import (
    PastModel,
    evaluations,
    histories,
    memory_of,
    recalled,
    score_of,
    weights_of,
    worth_keeping,
)
from fdgsec.methods.feddag_aggregation import within_client
from fdgsec.runtime.random_streams import stream

NAMES = [f"client:{number}" for number in range(12)]  # "client:10" sorts before "client:2"


def test_everybody_judges_everybody_else_in_sorted_order():
    judged = evaluations(NAMES, None, 3)

    assert judged == {name: tuple(peer for peer in sorted(NAMES) if peer != name) for name in NAMES}


@pytest.mark.parametrize("evaluators", [1, 2, 5])
def test_with_few_evaluators_each_model_has_as_many_judges_and_nobody_judges_its_own(evaluators: int):
    for round in range(4):
        judged = evaluations(NAMES, evaluators, round)

        judges = [sum(name in peers for peers in judged.values()) for name in NAMES]
        assert judges == [evaluators] * 12
        assert all(len(peers) == len(set(peers)) == evaluators for peers in judged.values())
        assert all(name not in peers and list(peers) == sorted(peers) for name, peers in judged.items())


def test_evaluators_rotate_until_everybody_judged_everybody_equally_often():
    pairs = [
        (reviewer, peer)
        for round in range(11)
        for reviewer, peers in evaluations(NAMES, 3, round).items()
        for peer in peers
    ]

    assert {pairs.count(pair) for pair in pairs} == {3}
    assert len(set(pairs)) == 12 * 11


def test_evaluations_do_not_depend_on_the_order_of_names():
    assert evaluations(reversed(NAMES), 2, 5) == evaluations(NAMES, 2, 5)


def test_one_participant_has_nobody_to_judge():
    assert evaluations(["client:7"], None, 0) == {"client:7": ()}


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 50.0])
def test_weights_sum_to_one(beta: float):
    assert sum(weights_of([0.1, 3.0, 1e12, 7.0], beta)) == pytest.approx(1.0, abs=1e-12)


def test_equal_scores_or_beta_zero_give_uniform_weights():
    assert weights_of([2.5] * 4, 0.3) == [0.25] * 4
    assert weights_of([0.1, 3.0, 1e12, 7.0], 0.0) == [0.25] * 4


def test_a_large_beta_gives_the_best_model_everything():
    assert weights_of([1.0, 1.2, 1.1], 1000.0) == pytest.approx([0.0, 1.0, 0.0], abs=1e-30)


def test_a_perfect_model_has_a_finite_score():
    assert score_of([0.0, 0.0]) == 1e12


def test_the_latest_k_better_models_are_recalled():
    assert recalled([5.0, 1.0, 4.0, 2.0, 3.0], 1.5, 2) == [3, 4]
    assert recalled([5.0, 1.0, 4.0, 2.0, 3.0], 3.5, 4) == [0, 2]


def test_equal_scores_are_not_better():
    assert recalled([2.0, 2.0], 2.0, 4) == []


def test_nothing_is_recalled_with_k_zero_or_no_better_model():
    assert recalled([5.0, 4.0], 1.0, 0) == []
    assert recalled([5.0, 4.0], 6.0, 4) == []


@pytest.mark.parametrize("k", [1, 2, 4])
def test_forgetting_models_that_cannot_come_back_never_changes_what_is_recalled(k: int):
    rng, forgotten = stream(k, "world", "scores"), 0
    for _ in range(60):
        scores = torch.randint(0, 9, (15,), generator=rng).double().tolist()  # with ties
        everything: list[tuple[int, float]] = []
        kept: list[tuple[int, float]] = []
        for round, score in enumerate(scores):
            full = [everything[place][0] for place in recalled([s for _, s in everything], score, k)]
            pruned = [kept[place][0] for place in recalled([s for _, s in kept], score, k)]
            assert pruned == full
            everything.append((round, score))
            kept.append((round, score))
            kept = [kept[place] for place in worth_keeping([s for _, s in kept], k)]
        forgotten += len(everything) - len(kept)
    assert forgotten > 60


def test_models_that_grow_better_take_the_place_of_k():
    assert worth_keeping([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 4) == [2, 3, 4, 5]


def past(round: int, score: float, value: float) -> PastModel:
    return PastModel(round=round, score=score, state={"w": torch.tensor([value]), "seen": torch.tensor(round)})


def test_a_client_without_better_past_models_keeps_its_own_untouched():
    current = past(3, 2.0, 5.0)

    assert within_client(current, [past(0, 1.0, 1.0), past(1, 2.0, 2.0)], 4) is current
    assert within_client(current, [past(0, 9.0, 1.0)], 0) is current


def test_a_client_is_the_plain_mean_of_itself_and_its_latest_better_models():
    history = [past(0, 9.0, 100.0), past(1, 4.0, 1.0), past(2, 0.5, 50.0), past(3, 3.0, 3.0)]

    made = within_client(past(4, 2.0, 5.0), history, 2)

    assert made.state["w"].tolist() == [3.0]
    assert made.score == pytest.approx(3.0)
    assert int(made.state["seen"]) == 4


def test_history_survives_the_servers_memory():
    history = {"client:0": [past(2, 1.5, 1.0), past(10, 2.5, 2.0)], "client:1": [past(9, 0.1, 3.0)]}

    again = histories({**memory_of(history), "generator/w": torch.zeros(1)})

    assert {name: [(p.round, p.score, p.state["w"].tolist()) for p in models] for name, models in again.items()} == {
        "client:0": [(2, 1.5, [1.0]), (10, 2.5, [2.0])],
        "client:1": [(9, 0.1, [3.0])],
    }
