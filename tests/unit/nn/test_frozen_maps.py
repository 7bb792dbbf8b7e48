"""Training on the outputs of frozen parts is training on the images, and happens where nothing else may."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fdgsec.methods.fedprox import Proximal
from fdgsec.nn.networks.classifiers import BACKBONES, Classifier, Norm, Normalization, build_classifier
from fdgsec.nn.training import frozen_maps, numerics
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.frozen_maps import BLOCK, can_take_outputs, kept_part, outputs_of, through_frozen
from fdgsec.nn.training.precision import PRECISION, Precision, processor_of
from fdgsec.nn.training.training_loop import CrossEntropy, Objective, epochs, logits
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from tests.support.private_setting import trainer

FLOAT = Precision(dtype="float32", channels_last=True)
BRAIN = Precision(dtype="float32", channels_last=True, frozen="bfloat16")
HEAD = TrainingPlan(
    steps=12, batch_size=8, optimizer="adam", learning_rate=0.01, crop=None, flip=0.0, frozen="stage4", freeze_norm=True
)  # fmt: skip
PRIVATE = replace(HEAD, freeze_norm=False)


def network(norm: str = "batch", seed: int = 0) -> Classifier:
    rng = stream(seed, "world", "network")
    return build_classifier("tiny", 3, norm="batch" if norm == "batch" else "group", rng=rng)


def images(count: int = 20, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=stream(0, "world", "images"))


def labelled(count: int = 20) -> TrainingSet:
    return TrainingSet(images=images(count), labels=torch.arange(count) % 3)


def head(model: Classifier) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.head.parameters()])


class LooksAtPixels(CrossEntropy):
    """Cross-entropy that wants images, and fails where it gets anything else."""

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        assert batch.images.shape[1:] == (3, 32, 32)
        return super().__call__(batch, model)


class Anything(CrossEntropy):
    """Cross-entropy that does not say what it does with images."""


def trained(objective: Objective, plan: TrainingPlan = HEAD) -> Tensor:
    model = network()
    epochs(model, labelled(), objective, plan, stream(0, "world", "training"))
    return head(model)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin every test with no outputs in memory."""
    monkeypatch.setattr(frozen_maps, "_KEPT", OrderedDict())


@pytest.fixture
def counted(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the blocks that are computed, with an empty cache and none in memory."""
    sizes, compute = list[int](), frozen_maps._outputs

    def seen(model: Classifier, block: Tensor, last: str, precision: Precision) -> Tensor:
        sizes.append(len(block))
        return compute(model, block, last, precision)

    monkeypatch.setattr(frozen_maps, "_outputs", seen)
    return sizes


def test_a_head_trains_on_outputs_as_on_images(counted: list[int]):
    torch.testing.assert_close(trained(CrossEntropy()), trained(LooksAtPixels()), rtol=1e-4, atol=1e-6)

    assert counted == [20]  # none in the run that looks at pixels


def test_a_private_trainer_does_as_well(counted: list[int]):
    def with_noise(objective: Objective) -> Tensor:
        model, how = network("group"), trainer(noise=0.5, bound=1.0, probes=8)
        for number in range(2):
            how(model, labelled(), objective, PRIVATE, stream(0, "world", "training"), round=number, rounds=2)
        return head(model)

    torch.testing.assert_close(with_noise(CrossEntropy()), with_noise(LooksAtPixels()), rtol=1e-4, atol=1e-6)

    assert counted == [20]


def test_a_private_trainer_computes_outputs_in_float32(counted: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PRECISION, (processor_of(torch.device("cpu")), "tiny"), BRAIN)
    formats, compute = list[str](), frozen_maps._through_parts

    def seen(model: Classifier, block: Tensor, last: str, precision: Precision) -> Tensor:
        formats.append(precision.frozen)
        return compute(model, block, last, precision)

    monkeypatch.setattr(frozen_maps, "_through_parts", seen)
    trainer(noise=0.5, bound=1.0)(network("group"), labelled(), CrossEntropy(), PRIVATE, stream(0, "world", "training"))
    assert set(formats) == {"float32"}

    trained(CrossEntropy())
    assert "bfloat16" in formats


def test_outputs_in_bfloat16_are_of_that_format(own_cache: Path):
    model = network().eval()
    exact, rounded = (outputs_of(model, images(), "stage4", each) for each in (FLOAT, BRAIN))

    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=0.1, atol=0.02)


@pytest.mark.medium
def test_parts_after_the_frozen_ones_train_on_outputs_as_on_images(counted: list[int]):
    plan = replace(HEAD, frozen="stage3", learning_rate=0.001)
    data = TrainingSet(images=images(20, side=64), labels=torch.arange(20) % 3)
    found = list[Tensor]()
    for objective in (CrossEntropy(), Anything()):
        model = build_classifier("efficientnet_lite0", 3, rng=stream(0, "world", "network"))
        epochs(model, data, objective, plan, stream(0, "world", "training"))
        found.append(
            torch.cat([parameter.detach().flatten() for parameter in model.body.get_submodule("stage4").parameters()])
        )

    torch.testing.assert_close(*found, rtol=1e-3, atol=2e-4)
    assert counted == [20]


def test_outputs_are_recalled_until_weights_images_or_processor_change(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
):
    model = network().eval()
    first = outputs_of(model, images(), "stage4", FLOAT)
    again = outputs_of(model, images(), "stage4", FLOAT)
    frozen_maps._KEPT.clear()
    read = outputs_of(model, images(), "stage4", FLOAT)
    assert torch.equal(first, again)
    assert torch.equal(first, read)
    assert counted == [20]

    outputs_of(model, images(19), "stage4", FLOAT)
    outputs_of(network(seed=1).eval(), images(), "stage4", FLOAT)
    outputs_of(model, images(), "stage4", replace(FLOAT, frozen="bfloat16"))
    with torch.no_grad():
        next(iter(model.body.get_submodule("stage4").buffers())).add_(1)
    changed = outputs_of(model, images(), "stage4", FLOAT)
    monkeypatch.setattr(numerics, "capabilities", lambda: {"cpu_name": "another", "amx_bf16": True})
    outputs_of(model, images(), "stage4", FLOAT)

    assert counted == [20, 19, 20, 20, 20, 20]
    assert not torch.equal(changed, first)


def test_a_damaged_file_is_computed_anew(counted: list[int], own_cache: Path, capsys: pytest.CaptureFixture[str]):
    model = network().eval()
    first = outputs_of(model, images(), "stage4", FLOAT)
    (path,) = (own_cache / "features").glob("frozen-*.safetensors")
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    frozen_maps._KEPT.clear()

    assert torch.equal(outputs_of(model, images(), "stage4", FLOAT), first)
    assert counted == [20, 20]
    assert path.stat().st_mode & 0o777 == 0o600
    assert "its seal does not hold" in capsys.readouterr().err


def test_what_comes_of_an_image_does_not_depend_on_the_others(own_cache: Path):
    model, many = network().eval(), images(2 * BLOCK + 3)
    whole = outputs_of(model, many, "stage4", FLOAT)

    for rows in (slice(0, 1), slice(5, 12), slice(BLOCK - 1, None)):
        assert torch.equal(outputs_of(model, many[rows], "stage4", FLOAT), whole[rows])


@pytest.mark.medium
def test_maps_in_the_middle_of_a_network_go_on_from_there(own_cache: Path):
    model = build_classifier("efficientnet_lite0", 3, rng=stream(0, "world", "network")).eval()
    few = images(5, side=64)
    assert can_take_outputs(model, "stage3", few)
    outputs = outputs_of(model, few, "stage3", FLOAT)

    with torch.no_grad(), model.taking_outputs("stage3", outputs.shape[1:]):
        made, plain = model(outputs), model(few / 255.0)

    assert outputs.shape[2:] == (4, 4)
    torch.testing.assert_close(made, plain, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="images must be float"):
        model(outputs)  # outside, maps are no images


def test_a_network_that_takes_outputs_takes_no_hooks_between_stages(own_cache: Path):
    model = network().eval()
    outputs = outputs_of(model, images(), "stage4", FLOAT)

    with model.taking_outputs("stage4", outputs.shape[1:]), pytest.raises(ValueError, match="no hooks between stages"):
        model.maps(outputs, between={"stage1": lambda maps: maps})


def test_a_model_is_judged_on_outputs_as_on_images(counted: list[int]):
    model = network()

    judged = [logits(model, images(), frozen=part) for part in ("none", "stage4", "stage4")]

    torch.testing.assert_close(judged[0], judged[1], rtol=1e-5, atol=1e-6)
    assert torch.equal(judged[1], judged[2])
    assert counted == [20]


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.medium
def test_every_backbone_is_judged_on_its_means_as_on_images(backbone: str, norm: Norm, own_cache: Path):
    model = build_classifier(backbone, 3, norm=norm, rng=stream(0, "world", "network")).eval()
    few = images(3, side=64)
    assert can_take_outputs(model, "stage4", few)

    ours, plain = (logits(model, few, frozen=part) for part in ("stage4", "none"))

    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


def test_only_a_first_round_leaves_a_file(counted: list[int], own_cache: Path):
    for number in range(3):  # a defense that changes the weights in every round
        model = network(seed=number)
        epochs(model, labelled(), CrossEntropy(), HEAD, stream(0, "world", "training"), round=number, rounds=3)

    assert counted == [20, 20, 20]
    assert len(list((own_cache / "features").glob("frozen-*"))) == 1


def test_memory_for_outputs_is_bounded(counted: list[int], monkeypatch: pytest.MonkeyPatch):
    model = network().eval()
    monkeypatch.setattr(frozen_maps, "KEPT_BYTES", 20 * 96 * 4)
    for count in (20, 19, 18):
        outputs_of(model, images(count), "stage4", FLOAT, store=False)
    outputs_of(model, images(18), "stage4", FLOAT, store=False)
    assert len(frozen_maps._KEPT) == 1

    outputs_of(model, images(20), "stage4", FLOAT, store=False)
    assert counted == [20, 19, 18, 20]


def test_outputs_stay_in_memory_where_the_cache_cannot_be_written(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "file" / "cache"))

    torch.testing.assert_close(trained(CrossEntropy()), trained(LooksAtPixels()), rtol=1e-4, atol=1e-6)
    assert counted == [20]


def test_a_model_may_be_judged_while_it_trains(own_cache: Path):
    model, judged = network(), list[Tensor]()

    def judge(_step: int, _loss: float) -> None:
        judged.append(logits(model, images(4), frozen="stage4"))

    epochs(model, labelled(), CrossEntropy(), HEAD, stream(0, "world", "training"), on_step=judge)

    assert len(judged) == HEAD.steps
    torch.testing.assert_close(judged[-1], logits(model, images(4)), rtol=1e-5, atol=1e-6)


def test_a_plan_that_changes_images_keeps_no_part():
    assert kept_part(HEAD) == "stage4"
    assert kept_part(replace(HEAD, frozen="none")) == "none"
    for changed in ({"crop": (0.8, 1.0)}, {"flip": 0.5}, {"translate": 0.1}):
        assert kept_part(replace(HEAD, **changed)) == "none"


def given_for(
    model: Classifier, data: TrainingSet, objective: object = CrossEntropy(), plan: TrainingPlan = HEAD
) -> TrainingSet:  # fmt: skip
    with through_frozen(model.eval(), data, objective, plan, precision=FLOAT, first=True) as given:
        return given


class Doubling(nn.Module):
    """A layer that comes from elsewhere, and may do anything."""

    def forward(self, maps: Tensor) -> Tensor:
        return 2 * maps


def hooked(place: str) -> Callable[[Classifier], Classifier]:
    def more(_module: nn.Module, _given: object, made: Tensor) -> Tensor:
        return made + 1

    def change(model: Classifier) -> Classifier:
        model.get_submodule(place).register_forward_hook(more)
        return model

    return change


def hooked_before(model: Classifier) -> Classifier:
    model.body.get_submodule("stage1").register_forward_pre_hook(lambda _module, given: (given[0] + 1,))
    return model


def with_a_layer_of_its_own(model: Classifier) -> Classifier:
    model.body.get_submodule("stage2").add_module("own", Doubling())
    return model


def with_a_layer_that_couples_images(model: Classifier) -> Classifier:
    model.body.get_submodule("stage4").add_module("own", nn.Softmax(dim=0))
    return model


def with_another_neck(model: Classifier) -> Classifier:
    model.neck = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return model


def with_other_constants(model: Classifier) -> Classifier:
    model.normalize = Normalization((0, 0, 0), (1, 1, 1))
    return model


def with_a_function_in_its_place(model: Classifier) -> Classifier:
    stage = model.body.get_submodule("stage2")
    forward = stage.forward
    stage.forward = lambda maps: torch.add(forward(maps), 1)  # type: ignore[method-assign]
    return model


class Own(Classifier):
    """A network that a method made of another."""


def of_another_class(model: Classifier) -> Classifier:
    return Own(backbone="tiny", norm="batch", body=model.body, neck=model.neck, head=model.head)


@pytest.mark.parametrize(
    "change", [
        *map(hooked, ["normalize", "body", "body.stage1", "neck"]), hooked_before, with_a_layer_of_its_own,
        with_a_layer_that_couples_images, with_another_neck, with_other_constants, with_a_function_in_its_place,
        of_another_class,
    ],
)  # fmt: skip
def test_a_network_that_is_not_as_it_was_built_gets_images(
    change: Callable[[Classifier], Classifier], counted: list[int]
):
    data = labelled()

    assert given_for(change(network()), data) is data
    assert counted == []


def test_images_stay_where_outputs_would_not_do(counted: list[int]):
    data = labelled()
    pairs = replace(data, partners=data.images)
    floating = replace(data, images=data.images / 255.0)

    assert given_for(network(), data, LooksAtPixels()) is data
    assert given_for(network(), data, object()) is data
    assert given_for(network(), data, Anything()) is data  # what a class says is not said of its heirs
    assert given_for(network(), data, plan=replace(HEAD, steps=2)) is data  # 16 images are drawn, of 20
    assert given_for(network(), data, plan=HEAD.one_step(20)) is data
    assert given_for(network(), data, plan=replace(HEAD, flip=0.5)) is data
    assert given_for(network(), pairs) is pairs
    assert given_for(network(), floating) is floating
    assert counted == []
    assert given_for(network(), data, plan=replace(HEAD, frozen="stem")) is data  # maps that are larger than images
    assert given_for(network(), data, Proximal(CrossEntropy(), {}, 0.1)).images.shape == (20, 96, 1, 1)
    assert given_for(network(), data, Proximal(LooksAtPixels(), {}, 0.1)) is data
