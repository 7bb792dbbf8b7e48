"""Within an audit, private trainings of one kind are checked once, and all others every time."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import CrossEntropy, Objective
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.privacy.passed_checks import checked_once, passed
from fdgsec.privacy.record_independence import BatchCouplingError
from fdgsec.runtime.random_streams import stream
from tests.support.private_setting import WHOLE, data, network, secret, trainer, weights, world

Mixing = Callable[[Classifier], AbstractContextManager[None]]


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


def train(
    objective: Objective | None = None, model: Classifier | None = None, how: PrivateTrainer | None = None
) -> Tensor:  # fmt: skip
    model = network() if model is None else model
    how = trainer(noise=1.0, bound=1.0, probes=8) if how is None else how
    how(model, data(), objective or CrossEntropy(), WHOLE, world())
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


class Subclass(PrivateTrainer):
    """A trainer that may do anything."""


def test_what_a_check_depends_on_is_another_kind(checks: list[object]):
    frozen, softer = network(), network()
    next(frozen.parameters()).requires_grad = False
    next(layer for layer in softer.modules() if isinstance(layer, nn.GroupNorm)).eps = 1.0
    other = build_classifier("tiny", 5, norm="group", rng=stream(0, "world"))
    usual = trainer(noise=1.0, bound=1.0, probes=8)
    subclass = Subclass(noise_multiplier=1.0, max_grad_norm=1.0, secret=secret(), method=usual.method, probes=8)
    with checked_once(CrossEntropy):
        for _ in range(2):
            train(how=usual)
            train(how=replace(usual, probes=9))
            train(how=replace(usual, method="another"))
            train(how=subclass)
            for model in (frozen, softer, other):
                train(model=model)

    assert len(checks) == 7


def mixed(values: Tensor) -> Tensor:
    return 0.5 * values + 0.5 * values.mean(0, keepdim=True)


class MixedMaps:
    """A network's maps, each half of those of the batch."""

    def __init__(self, model: Classifier) -> None:
        self.model = model

    def __call__(self, images: Tensor) -> Tensor:
        return mixed(type(self.model).maps(self.model, images))


class MixedConvolution:
    """What a convolution of torch calls, mixed."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer

    def __call__(self, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return mixed(functional.conv2d(values, weight, bias, self.layer.stride, self.layer.padding))


@contextmanager
def by_an_attribute(model: Classifier) -> Iterator[None]:
    model.maps = MixedMaps(model)  # type: ignore[assignment,method-assign]
    yield


@contextmanager
def by_an_attribute_of_a_layer(model: Classifier) -> Iterator[None]:
    layer = next(each for each in model.modules() if isinstance(each, nn.Conv2d))
    layer._conv_forward = MixedConvolution(layer)  # type: ignore[assignment,method-assign]
    yield


@contextmanager
def by_its_class(_model: Classifier) -> Iterator[None]:
    maps = Classifier.maps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Classifier, "maps", lambda self, images, *, between=None: mixed(maps(self, images, between=between))
        )
        yield


@contextmanager
def by_a_hook_of_all_layers(_model: Classifier) -> Iterator[None]:
    mixing: Any = lambda layer, _given, found: mixed(found) if isinstance(layer, nn.AdaptiveAvgPool2d) else None
    hook = module.register_module_forward_hook(mixing)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def by_a_function_of_torch(_model: Classifier) -> Iterator[None]:
    linear = functional.linear
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", lambda values, *more: linear(mixed(values), *more))
        yield


@pytest.mark.parametrize(
    "mixing",
    [by_an_attribute, by_an_attribute_of_a_layer, by_its_class, by_a_hook_of_all_layers, by_a_function_of_torch],
)
def test_records_that_meet_after_a_training_that_passed_are_noticed(mixing: Mixing):
    with checked_once(CrossEntropy):
        train()
        model = network()
        with mixing(model), pytest.raises(BatchCouplingError):
            train(model=model)
        train()


def test_an_objective_that_fails_has_not_passed():
    with checked_once(CrossEntropy, Coupled):
        train()
        for _ in range(2):
            with pytest.raises(BatchCouplingError):
                train(Coupled())
