"""What the membership formulas refuse, how they behave at the edges, and what they cost."""

import time
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fdgsec.attacks.statistics.lira_rmia import (
    Population,
    References,
    Variance,
    calibrated_score,
    lira_offline,
    lira_online,
    log_confidence,
    loss_score,
    rmia_offline,
    rmia_online,
    scaled_logit,
)
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def draws(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=stream(0, "world", "draws"), dtype=torch.float64)


def half_seen(models: int, candidates: int) -> Tensor:
    return (torch.arange(models).unsqueeze(1) + torch.arange(candidates)) % 2 == 0


def made(values: Tensor, members: Tensor | None = None) -> References:
    seen = half_seen(values.shape[0], values.shape[1]) if members is None else members
    return References(models=values.shape[0], values=values, members=seen)


def said(*shape: int) -> Tensor:
    """Log-confidences."""
    return draws(*shape).sigmoid().log()


def test_scaled_logit_survives_logits_whose_confidence_rounds_to_one():
    logits = torch.tensor([[60.0, 0.0, -5.0], [90.0, 0.0, -5.0], [1e4, 0.0, 0.0]])

    phi = scaled_logit(logits, torch.tensor([0, 0, 0]))

    assert bool((logits.softmax(1)[:, 0] == 1).all())
    assert phi.tolist() == pytest.approx([60.0 - 0.0067153, 90.0 - 0.0067153, 1e4 - 0.6931472], abs=1e-6)


def test_scaled_logit_of_a_hopeless_label_is_finite():
    assert float(scaled_logit(torch.tensor([-1e4, 0.0]), torch.tensor(0))) == -1e4


def test_scaled_logit_is_the_log_odds_of_the_softmax():
    logits = 3 * draws(5, 7, 4)
    labels = torch.arange(7) % 4

    phi = scaled_logit(logits, labels)

    p = logits.softmax(-1)[:, torch.arange(7), labels]
    assert phi.shape == (5, 7)
    assert torch.allclose(phi, torch.log(p / (1 - p)), atol=1e-10)
    assert torch.allclose(log_confidence(logits, labels), p.log(), atol=1e-12)


def test_half_precision_logits_are_read_in_double():
    logits = torch.tensor([[11.0, 0.0]], dtype=torch.float16)

    assert scaled_logit(logits, torch.tensor([0])).dtype == torch.float64
    assert float(scaled_logit(logits, torch.tensor([0]))) == 11.0


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), "two classes or more"),
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64), r"int64 and fit \(3,\)"),
        (torch.zeros(3, 4), torch.zeros(3), "torch.float32"),
        (torch.zeros(3, 4), torch.tensor([0, 4, 1]), r"lie in 0..3; got 0..4"),
        (torch.full((1, 2), torch.nan), torch.zeros(1, dtype=torch.int64), "2 of 2 values are not"),
        (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), "floating point; got torch.int64"),
    ],
)
def test_logits_and_labels_that_do_not_fit_are_refused(logits: Tensor, labels: Tensor, message: str):
    with pytest.raises(UsageError, match=message):
        scaled_logit(logits, labels)


def test_a_number_of_reference_models_that_is_not_the_declared_one_is_refused():
    with pytest.raises(UsageError, match=r"16 reference models are declared, but references are \(8, 5\)"):
        References(models=16, values=draws(8, 5), members=half_seen(8, 5))
    with pytest.raises(
        UsageError, match=r"8 reference models are declared, but the population's references are \(16, 5\)"
    ):
        Population(models=8, target=said(5), references=said(16, 5))


def test_candidates_and_population_must_have_met_the_same_models():
    z = Population(models=6, target=said(9), references=said(6, 9))

    for score in (rmia_online, rmia_offline):
        with pytest.raises(UsageError, match="got 4 for the candidates, 6 for the population"):
            score(said(5), made(said(4, 5)), population=z)


def test_membership_of_another_shape_or_type_is_refused():
    with pytest.raises(UsageError, match=r"bool \(4, 5\).* got torch.bool \(5, 4\)"):
        made(draws(4, 5), half_seen(5, 4))
    with pytest.raises(UsageError, match=r"got torch\.float32"):
        made(draws(4, 5), torch.ones(4, 5))


@pytest.mark.parametrize("shape", [(6,), (5, 2), (1,)])
def test_a_target_that_is_not_shaped_like_its_references_is_refused(shape: tuple[int, ...]):
    with pytest.raises(UsageError, match=r"target must be \(5,\)"):
        lira_online(draws(*shape), made(draws(4, 5)), variance="global")


def test_candidates_without_in_models_are_counted_and_refused_online_only():
    members = half_seen(6, 8)
    members[:, [2, 5, 7]] = False
    models, z = made(said(6, 8), members), Population(models=6, target=said(9), references=said(6, 9))

    with pytest.raises(UsageError, match=r"3 of 8 candidates have fewer than 1 IN of 6 .*first: \[2, 5, 7\]"):
        lira_online(said(8), models, variance="global")
    with pytest.raises(UsageError, match=r"3 of 8 candidates have fewer than 1 IN"):
        rmia_online(said(8), models, population=z)

    assert bool(lira_offline(said(8), models, variance="global").isfinite().all())
    assert bool(rmia_offline(said(8), models, population=z).isfinite().all())


def test_candidates_without_out_models_are_refused_by_every_test_with_references():
    members = half_seen(6, 8)
    members[:, 4] = True
    models, z = made(said(6, 8), members), Population(models=6, target=said(9), references=said(6, 9))

    for attempt in (
        lambda: lira_online(said(8), models, variance="global"),
        lambda: lira_offline(said(8), models, variance="global"),
        lambda: rmia_online(said(8), models, population=z),
        lambda: rmia_offline(said(8), models, population=z),
        lambda: calibrated_score(said(8), models),
    ):
        with pytest.raises(UsageError, match=r"1 of 8 candidates have fewer than 1 OUT of 6"):
            attempt()


def test_a_variance_per_example_needs_two_models_a_side_and_says_who_lacks_them():
    saw = torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 1, 0]], dtype=torch.bool)

    with pytest.raises(UsageError, match=r"2 of 5 candidates have fewer than 2 OUT of 3 .*first: \[0, 3\]"):
        lira_offline(draws(5), made(draws(3, 5), saw), variance="per-example")


def test_one_model_a_side_leaves_no_spread_to_estimate():
    with pytest.raises(UsageError, match="no candidate has two IN of 2 reference models"):
        lira_online(draws(5), made(draws(2, 5)), variance="global")


def test_phi_in_the_place_of_log_confidences_is_refused():
    z = Population(models=4, target=said(9), references=said(4, 9))

    with pytest.raises(UsageError, match=r"references must be log-confidences.*use log_confidence, not phi"):
        rmia_offline(said(5), made(draws(4, 5)), population=z)
    with pytest.raises(UsageError, match="target must be log-confidences"):
        calibrated_score(said(5).neg(), made(said(4, 5)))
    with pytest.raises(UsageError, match="target must be log-confidences"):
        loss_score(torch.tensor([0.1]))
    with pytest.raises(UsageError, match="the population's target must be log-confidences"):
        Population(models=4, target=said(9).neg(), references=said(4, 9))


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("inf"), float("nan")])
def test_a_gamma_that_is_no_ratio_is_refused(gamma: float):
    z = Population(models=4, target=said(9), references=said(4, 9))

    with pytest.raises(UsageError, match="gamma must be a ratio above 0"):
        rmia_online(said(5), made(said(4, 5)), population=z, gamma=gamma)


@pytest.mark.parametrize("offline_a", [-0.1, 1.1, float("nan")])
def test_a_line_outside_the_unit_interval_is_refused(offline_a: float):
    z = Population(models=4, target=said(9), references=said(4, 9))

    with pytest.raises(UsageError, match=r"offline_a must lie in \[0, 1\]"):
        rmia_offline(said(5), made(said(4, 5)), population=z, offline_a=offline_a)


def test_rmia_refuses_several_queries():
    z = Population(models=4, target=said(9), references=said(4, 9))

    with pytest.raises(UsageError, match="RMIA takes one query"):
        rmia_offline(said(5, 3), made(said(4, 5, 3)), population=z)


@pytest.mark.parametrize("variance", ["per-example", "global"])
def test_scores_do_not_depend_on_the_scale_or_zero_of_phi(variance: Variance):
    values, target = draws(9, 40, 2), draws(40, 2) + 1
    models, moved = made(values), made(values * 7 - 3)

    for score in (lira_online, lira_offline):
        assert torch.allclose(score(target * 7 - 3, moved, variance=variance), score(target, models, variance=variance))


def test_in_models_do_not_enter_an_offline_score():
    values = said(8, 12)
    changed = torch.where(half_seen(8, 12), values * 3, values)
    z = Population(models=8, target=said(9), references=said(8, 9))

    assert torch.equal(
        lira_offline(said(12), made(values), variance="global"),
        lira_offline(said(12), made(changed), variance="global"),
    )
    assert torch.equal(
        rmia_offline(said(12), made(values), population=z), rmia_offline(said(12), made(changed), population=z)
    )
    assert torch.equal(calibrated_score(said(12), made(values)), calibrated_score(said(12), made(changed)))


def test_a_candidate_on_which_all_references_agree_does_not_decide_alone():
    values = draws(12, 50)
    values[:, 0] = 4.0
    target = draws(50)
    target[0] = 4.001

    score = lira_offline(target, made(values), variance="per-example")

    assert float(score[0]) == pytest.approx(1.0, abs=0.3)  # .001 above, with a floor of .001 of the pooled spread of 1


def test_references_that_agree_on_everything_are_refused():
    with pytest.raises(UsageError, match="agree exactly on every candidate"):
        lira_offline(draws(5), made(torch.ones(6, 5)), variance="per-example")


def test_pairs_of_equal_ratios_reach_gamma_one_however_many_models_were_averaged():
    wrong = []
    for hundredths in range(1, 101):
        equal = torch.full((5, 6), hundredths / 100, dtype=torch.float64).log()
        z = Population(models=5, target=equal[0], references=equal)

        for score in (rmia_online, rmia_offline):
            if score(equal[0], made(equal), population=z).tolist() != [1.0] * 6:
                wrong.append(hundredths)

    assert wrong == []


class LargestTensor(TorchDispatchMode):
    """Watches how many numbers the largest tensor of any operation holds."""

    numbers = 0

    def __torch_dispatch__(  # type: ignore[override]
        self,
        func: torch._ops.OpOverload[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.mark.parametrize("attack", ["lira_online", "lira_offline", "rmia_online", "rmia_offline", "calibrated"])
def test_ten_thousand_candidates_with_ten_thousand_z_and_sixteen_models_take_seconds_and_no_table_of_pairs(attack: str):
    models, target = made(said(16, 10_000)), said(10_000)
    z = Population(models=16, target=said(10_000), references=said(16, 10_000))
    attacks: dict[str, Callable[[], Tensor]] = {
        "lira_online": lambda: lira_online(target, models, variance="per-example"),
        "lira_offline": lambda: lira_offline(target, models, variance="global"),
        "rmia_online": lambda: rmia_online(target, models, population=z, gamma=2.0),
        "rmia_offline": lambda: rmia_offline(target, models, population=z, gamma=2.0),
        "calibrated": lambda: calibrated_score(target, models),
    }

    started = time.process_time()
    with LargestTensor() as watched:
        scores = attacks[attack]()
    seconds = time.process_time() - started

    assert scores.shape == (10_000,)
    assert watched.numbers == 16 * 10_000  # the input's own size, where pairs would be 10^8
    assert seconds < 5.0  # hundredths of a second were measured
