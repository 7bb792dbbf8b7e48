"""Within an audit, private trainings of one kind are checked once, and all others every time."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import CrossEntropy, Objective
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.passed_checks import checked_once, passed
from fdgsec.privacy.record_independence import BatchCouplingError
from fdgsec.runtime.random_streams import stream
from tests.support.private_setting import WHOLE, data, network, trainer, weights, world

Train = Callable[..., Tensor]


class OtherCrossEntropy(CrossEntropy):
    """A subclass may compute anything."""


class Coupled(CrossEntropy):
    """The mean loss of the batch, for each record."""

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        losses = super().__call__(batch, model)
        return losses.mean().expand(len(losses))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What was checked, in turn."""
    made, check = list[object](), dp_sgd.check_independence
    monkeypatch.setattr(
        dp_sgd, "check_independence", lambda *given, **more: made.append(given[0]) or check(*given, **more)
    )
    yield made
    assert passed() is None


def train(objective: Objective | None = None, model: Classifier | None = None, *, probes: int = 8) -> Tensor:
    model = network() if model is None else model
    trainer(noise=1.0, bound=1.0, probes=probes)(model, data(), objective or CrossEntropy(), WHOLE, world())
    return weights(model)


def test_trainings_of_one_kind_are_checked_once_and_end_alike(checks: list[object]):
    apart = [train() for _ in range(2)]
    assert len(checks) == 2

    with checked_once(CrossEntropy):
        within = [train() for _ in range(2)]
        with checked_once():  # of another audit within
            within.append(train())

    assert len(checks) == 3
    assert all(torch.equal(one, apart[0]) for one in (*apart, *within))
    train()
    assert len(checks) == 4


def hooked() -> Classifier:
    model = network()
    model.head.register_forward_hook(lambda _layer, _given, found: found)
    return model


class OwnForward:
    """A function in place of a layer's `forward` that can be copied."""

    def __call__(self, values: Tensor) -> Tensor:
        return values


def with_own_forward() -> Classifier:
    model = network()
    model.normalize.forward = OwnForward()  # type: ignore[method-assign]
    return model


class Body(nn.Sequential):
    """A layer of another package."""


def of_another_package() -> Classifier:
    model = network()
    model.body.__class__ = Body
    return model


@pytest.mark.parametrize("made", [hooked, with_own_forward, of_another_package])
def test_networks_that_may_do_anything_are_checked_every_time(made: Callable[[], Classifier], checks: list[object]):
    with checked_once(CrossEntropy):
        for _ in range(2):
            train()
            train(model=made())

    assert len(checks) == 3


def test_other_objectives_are_checked_every_time(checks: list[object]):
    with checked_once(CrossEntropy):
        for _ in range(2):
            train()
            train(OtherCrossEntropy())

    assert [type(one) for one in checks] == [CrossEntropy, OtherCrossEntropy, OtherCrossEntropy]


def test_what_a_check_depends_on_is_another_kind(checks: list[object]):
    frozen = network()
    next(frozen.parameters()).requires_grad = False
    other = build_classifier("tiny", 5, norm="group", rng=stream(0, "world"))
    with checked_once(CrossEntropy):
        train()
        train(probes=9)
        train(model=frozen)
        train(model=other)

    assert len(checks) == 4


def test_an_objective_that_fails_has_not_passed():
    with checked_once(CrossEntropy, Coupled):
        train()
        for _ in range(2):
            with pytest.raises(BatchCouplingError):
                train(Coupled())
