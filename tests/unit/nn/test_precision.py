"""The table of number formats: which row a processor has, what overrides it, and what it must not touch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fdgsec.federation.run_folder import environment, run_key
from fdgsec.nn.networks.classifiers import BACKBONES, Classifier, build_classifier
from fdgsec.nn.training import precision
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.precision import (
    PRECISION,
    VARIABLE,
    Precision,
    Processor,
    device_named,
    precision_of,
    processor_of,
)
from fdgsec.nn.training.training_loop import CrossEntropy, epochs, logits
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

CPU = torch.device("cpu")
PLAN = TrainingPlan(batch_size=4, crop=None, flip=0.0, learning_rate=0.01)
DATA = TrainingSet(
    images=torch.arange(8 * 3 * 32 * 32).remainder(251).reshape(8, 3, 32, 32).to(torch.uint8),
    labels=torch.arange(8) % 2,
)
ZEN = {"cpu_name": "AMD EPYC 9654 96-Core Processor", "avx512_bf16": True}
XEON = {"cpu_name": "INTEL(R) XEON(R) PLATINUM 8581C CPU @ 2.10GHz", "avx512_bf16": True}


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def on(monkeypatch: pytest.MonkeyPatch, known: dict[str, object]) -> None:
    monkeypatch.setattr(precision, "capabilities", lambda: known)


def images(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=stream(0, "world", "images"))


def network() -> Classifier:
    return build_classifier("tiny", 2, rng=stream(0, "world", "network"))


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("row", ["cpu", "cpu-bf16"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_backbone_has_a_row_for_every_kind_of_cpu(row: Processor, backbone: str):
    assert PRECISION[row, backbone].channels_last


@pytest.mark.parametrize(
    ("known", "row"),
    [
        (ZEN, "cpu-bf16"),
        (ZEN | {"avx512_bf16": False}, "cpu"),  # before Zen 4
        (XEON, "cpu"),
        (XEON | {"amx_bf16": True}, "cpu-bf16"),
        ({}, "cpu"),  # a torch that does not tell
    ],
)
def test_a_cpu_is_placed_by_vendor_and_instructions(
    known: dict[str, object], row: Processor, monkeypatch: pytest.MonkeyPatch
):
    on(monkeypatch, known)

    assert processor_of(CPU) == row
    assert precision_of(CPU, "squeezenet1_0") == PRECISION[row, "squeezenet1_0"]
    assert environment()["precision"] == row or torch.cuda.is_available()


def test_what_the_table_does_not_name_runs_in_plain_float32_and_cuda_has_one_row_for_all():
    assert precision_of(CPU, "unheard") == Precision(dtype="float32", channels_last=False)
    assert precision_of(torch.device("cuda"), "unheard") == PRECISION["cuda", "*"]


@pytest.mark.parametrize("known", [ZEN, XEON])
@pytest.mark.parametrize("wish", ["float32", "bfloat16"])
def test_two_machines_can_be_told_to_train_alike(wish: str, known: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    on(monkeypatch, known)
    monkeypatch.setenv(VARIABLE, wish)

    assert {precision_of(CPU, backbone).dtype for backbone in BACKBONES} == {wish}
    assert precision_of(torch.device("cuda"), "resnet18").dtype == wish
    assert environment()["precision"] == wish


def test_a_plans_own_format_wins_over_the_table_and_the_variable_over_both(monkeypatch: pytest.MonkeyPatch):
    gpu = torch.device("cuda")

    assert precision_of(gpu, "resnet50").dtype == "bfloat16"
    assert precision_of(gpu, "resnet50", wanted="float32") == Precision(dtype="float32", channels_last=True)
    monkeypatch.setenv(VARIABLE, "bfloat16")
    assert precision_of(gpu, "resnet50", wanted="float32").dtype == "bfloat16"


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_float32_is_float32_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch):
    """cuDNN's default is TF32, which `precision="float32"` and every released statistic would silently be in."""
    with monkeypatch.context() as machine:
        machine.setattr(torch.cuda, "is_available", lambda: True)
        machine.setattr(torch.backends.cudnn, "allow_tf32", True)

        assert device_named(name) == "cuda"

        assert not torch.backends.cudnn.allow_tf32


def test_a_device_that_is_not_there_is_an_error_and_auto_is_what_there_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert device_named("auto") == "cpu"
    with pytest.raises(UsageError, match="no GPU"):
        device_named("cuda")
    with pytest.raises(UsageError, match="auto, cpu or cuda"):
        device_named("tpu")


def test_a_network_trains_in_the_format_of_its_plan():
    halved, full = network(), network()

    epochs(halved, DATA, CrossEntropy(), replace(PLAN, precision="bfloat16"), stream(0, "world", "fit"))
    epochs(full, DATA, CrossEntropy(), replace(PLAN, precision="float32"), stream(0, "world", "fit"))

    assert not torch.equal(weights_of(halved), weights_of(full))
    again = network()
    epochs(again, DATA, CrossEntropy(), PLAN, stream(0, "world", "fit"))
    assert torch.equal(weights_of(again), weights_of(full))  # the table's format of `tiny` on every CPU


def test_a_format_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "fp8")

    with pytest.raises(UsageError, match="FDGSEC_PRECISION='fp8': use float32 or bfloat16"):
        precision_of(CPU, "tiny")


def test_a_stored_run_is_not_reused_in_another_format(monkeypatch: pytest.MonkeyPatch):
    own = run_key("settings")
    monkeypatch.setenv(VARIABLE, "bfloat16")

    assert run_key("settings") != own


def test_training_in_bfloat16_keeps_float32_weights_and_moves_them_less_than_the_order_of_batches_does(
    monkeypatch: pytest.MonkeyPatch,
):
    data = TrainingSet(images=images(16), labels=torch.arange(16) % 2)

    def trained(wish: str, order: str) -> Tensor:
        monkeypatch.setenv(VARIABLE, wish)
        model = network()
        epochs(model, data, CrossEntropy(), PLAN, stream(0, "world", order))
        return weights_of(model)

    exact, rounded, reordered = trained("float32", "a"), trained("bfloat16", "a"), trained("float32", "b")

    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < 0.5 * (reordered - exact).norm()


def test_evaluation_stays_in_float32(monkeypatch: pytest.MonkeyPatch):
    own = logits(network(), images(6))
    monkeypatch.setenv(VARIABLE, "bfloat16")

    assert torch.equal(logits(network(), images(6)), own)
