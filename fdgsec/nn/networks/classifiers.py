"""Classifiers by the name of their backbone: torchvision's architectures and one small one, images in [0, 1].

Every `Classifier` is a body (stem and four stages, (N, C, h, w)), a neck (pooling to (N, d)) and a linear head. With
`norm` "group" or "frozen" no record influences another and no operation is in place, as DP-SGD with Opacus needs:
"frozen" keeps a pretrained batch norm as the constant map that it is in evaluation mode (FrozenBatchNorm2d).

EfficientNet-Lite0 is not torchvision's; its stages end where the side halves, as MobileNetV3's do.

Differs from torchvision: images are normalized inside the model. MobileNetV3's dropout (.2) draws from a stream that
its training gives it (fdgsec/nn/networks/dropout.py); SqueezeNet's (.5) is left out. SqueezeNet's head is linear,
without the ReLU between its last convolution and the average, so logits are a linear function of the features, as in
all the others, and may be negative.

What builds a network imports torchvision when it is called: its import takes as long as torch's own."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import init

from fdgsec.nn.networks import weights
from fdgsec.nn.networks.dropout import Dropout
from fdgsec.nn.networks.efficientnet_lite import FEATURES, EfficientNetLite0
from fdgsec.runtime.errors import UsageError, unknown_name

Norm = Literal["batch", "group", "frozen"]
StageHooks = Mapping[str, Callable[[Tensor], Tensor]]
BACKBONES = (
    "resnet18", "resnet50", "mobilenet_v3_large", "efficientnet_lite0", "squeezenet1_0", "densenet121", "tiny",
)  # fmt: skip
PARTS = ("stem", "stage1", "stage2", "stage3", "stage4")
"""The parts of every body, in order."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


_LITE_MEAN, _LITE_STD = (
    (127 / 255, 127 / 255, 127 / 255),
    (128 / 255, 128 / 255, 128 / 255),
)  # TensorFlow's (x - 127) / 128 on the scale of 0 to 255


class Normalization(nn.Module):
    """Subtract a mean and divide by a std, per channel of RGB in [0, 1]; ImageNet's unless told otherwise.

    The constants are buffers outside the state dict: they move with the model and are never sent."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: tuple[float, float, float] = IMAGENET_MEAN, std: tuple[float, float, float] = IMAGENET_STD
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, H, W) to the same shape."""
        return (images - self.mean) / self.std


class Classifier(nn.Module):
    """A network from images (N, 3, H, W) in [0, 1] to logits (N, classes), by `features_width` penultimate features.

    `body` has the children stem, stage1, ..., stage4, for methods that act between stages."""

    def __init__(self, *, backbone: str, norm: str, body: nn.Module, neck: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.norm = norm
        self.classes = head.out_features
        self.features_width = head.in_features
        lite = backbone == "efficientnet_lite0"
        self.normalize = Normalization(_LITE_MEAN, _LITE_STD) if lite else Normalization()
        self.body = body
        self.neck = neck
        self.head = head
        self._in_brain_format = 0  # the first parts that compute in bfloat16 while the network is in training mode
        self._computed: tuple[int, torch.Size] = (0, torch.Size())  # `taking_outputs`: parts, and shape of an output

    def maps(self, images: Tensor, *, between: StageHooks | None = None) -> Tensor:
        """Compute the last stage's feature maps, (N, C, h, w), with the hooks of `between` on the way.

        Each entry of `between` replaces the output of its place: "conv" (the first convolution), "stem", "stage1", ...,
        "stage4". Raises ValueError: images not float (N, 3, H, W); AttributeError: no such place."""
        computed, shape = self._computed
        if computed and images.shape[1:] == shape:
            if between:
                raise ValueError("a network that takes outputs of its frozen parts takes no hooks between stages.")
            return self._through(images, computed)
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(f"images must be float (N, 3, H, W) in [0, 1]; got {images.dtype} {tuple(images.shape)}.")
        hooks = [
            self.place(name).register_forward_hook(lambda _module, _given, made, change=change: change(made))
            for name, change in (between or {}).items()
        ]
        try:
            return self._through_body(self.normalize(images))
        finally:
            for hook in hooks:
                hook.remove()

    def _through_body(self, maps: Tensor) -> Tensor:
        if not (self.training and self._in_brain_format):
            return cast(Tensor, self.body(maps))
        parts = list(self.body.children())
        with torch.autocast(maps.device.type, torch.bfloat16):
            for part in parts[: self._in_brain_format]:
                maps = part(maps)
        return self._through(maps.float(), self._in_brain_format)

    def _through(self, maps: Tensor, computed: int) -> Tensor:
        for part in list(self.body.children())[computed:]:
            maps = part(maps)
        return maps

    @contextmanager
    def taking_outputs(self, last: str, shape: torch.Size) -> Iterator[None]:
        """Inside, inputs (N, *shape) are no images but outputs of the part `last`, and go through what comes after it.

        Of the last part, means over the places (N, C, 1, 1) serve as well where the neck begins with them."""
        names, before = [name for name, _ in self.body.named_children()], self._computed
        self._computed = names.index(last) + 1, shape
        try:
            yield
        finally:
            self._computed = before

    def freeze(self, last: str, *, brain: bool = False) -> None:
        """Keep the weights and batch-norm statistics of the parts up to and including `last` as they are.

        Their parameters require no gradient, and their batch norms are in evaluation mode until the next `train()`.
        With `brain` they compute in bfloat16 while the network is in training mode. Raises UsageError where the body
        has no such part."""
        names = [name for name, _ in self.body.named_children()]
        if last not in names:
            raise UsageError(f"{self.backbone} has no part {last!r} to freeze; its parts are {', '.join(names)}.")
        for name in names[: names.index(last) + 1]:
            self.body.get_submodule(name).requires_grad_(False).eval()
        self._in_brain_format = names.index(last) + 1 if brain else 0

    def place(self, name: str) -> nn.Module:
        """Find the module whose output `between` calls `name`. Raises AttributeError where there is none."""
        if name == "conv":
            stem = self.body.get_submodule("stem")
            return next(module for module in stem.modules() if isinstance(module, nn.Conv2d))
        return self.body.get_submodule(name)

    def features(self, images: Tensor) -> Tensor:
        """Compute the penultimate features, (N, features_width): the input of the linear head."""
        return cast(Tensor, self.neck(self.maps(images)))

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits, (N, classes)."""
        return cast(Tensor, self.head(self.features(images)))


def build_classifier(
    backbone: str,
    classes: int,
    *,
    norm: Norm = "batch",
    pretrained: bool = False,
    weights_path: Path | None = None,
    rng: torch.Generator | None,
) -> Classifier:
    """Build a classifier on the CPU, its parameters drawn from `rng` by torchvision's initialization.

    Without an `rng` nothing is drawn and parameters and buffers are undefined: use it to load a whole state next.
    `pretrained` loads ImageNet weights (`weights_path`, else the store) into everything but the head, which stays
    random. A group-norm network takes the convolutions and each norm's weight and bias but not the running statistics,
    so it must be fine-tuned before use; a frozen-norm one takes all of them, and without `pretrained` its norms do
    nothing. Raises UsageError for an unknown backbone, for norm or classes out of range,
    and for weights that do not fit; WeightsUnavailableError where they are not stored."""
    if backbone not in BACKBONES:
        raise unknown_name("backbone", backbone, BACKBONES)
    if norm not in get_args(Norm):
        raise UsageError(f"norm must be 'batch', 'group' or 'frozen'; got {norm!r}.")
    if classes < 1:
        raise UsageError(f"classes must be at least 1; got {classes}.")
    if weights_path is not None and not pretrained:
        raise UsageError(f"weights_path {weights_path} is given, but pretrained is off: turn it on, or drop the path.")
    if pretrained and backbone not in weights.CATALOG:
        raise UsageError(f"{backbone} has no pretrained weights; build it with pretrained=False.")
    with torch.device("meta"):
        network = _network(backbone, norm)
        if norm != "batch":
            from fdgsec.nn.networks.residual import without_batch_norm

            without_batch_norm(network, frozen=norm == "frozen")
    network.to_empty(device="cpu")
    if rng is not None:
        for module in network.modules():
            _initialize(backbone, module, rng)
    if pretrained:
        state = weights.load_state(backbone, path=weights_path)
        network.load_state_dict({key: state[key] for key in network.state_dict()})
    body, neck, width = _PARTS[backbone](network)
    head = drawn_head(backbone, width, classes, rng=rng)
    return Classifier(backbone=backbone, norm=norm, body=body, neck=neck, head=head)


def drawn_head(backbone: str, width: int, classes: int, *, rng: torch.Generator | None) -> nn.Linear:
    """Build a linear head on the CPU, drawn from `rng` by torchvision's initialization of the head of `backbone`.

    Without an `rng` its parameters are undefined, as in `build_classifier`."""
    with torch.device("meta"):
        head = nn.Linear(width, classes)
    head.to_empty(device="cpu")
    if rng is not None:
        _initialize(backbone, head, rng)
    return head


def _network(backbone: str, norm: Norm) -> nn.Module:
    """Build torchvision's module (or ours, for tiny and Lite0), with in-place blocks only where `norm` allows them."""
    if backbone == "tiny":
        return _tiny()
    if backbone == "efficientnet_lite0":
        return EfficientNetLite0()
    from torchvision import models as library

    from fdgsec.nn.networks.residual import BasicBlock, Bottleneck, InvertedResidual

    if backbone == "resnet18":
        return cast(
            nn.Module, library.ResNet(library.resnet.BasicBlock if norm == "batch" else BasicBlock, [2, 2, 2, 2])
        )
    if backbone == "resnet50":
        return cast(
            nn.Module, library.ResNet(library.resnet.Bottleneck if norm == "batch" else Bottleneck, [3, 4, 6, 3])
        )
    if backbone == "mobilenet_v3_large" and norm != "batch":
        return cast(nn.Module, library.mobilenet_v3_large(weights=None, block=InvertedResidual))
    return cast(nn.Module, library.get_model(backbone, weights=None))


def _tiny() -> nn.Sequential:
    """Build the small network of quick runs and tests: five 3x3 convolutions, 105k parameters, for 32 to 64 px."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    plan = {
        "stem": (3, 24, 2),
        "stage1": (24, 32, 1),
        "stage2": (32, 48, 2),
        "stage3": (48, 64, 2),
        "stage4": (64, 96, 1),
    }
    return nn.Sequential(OrderedDict((name, block(*sizes)) for name, sizes in plan.items()))


def _initialize(backbone: str, module: nn.Module, rng: torch.Generator) -> None:
    """Draw the own parameters of `module` from `rng`, as torchvision's constructor of `backbone` does."""
    if isinstance(module, nn.GroupNorm) or hasattr(module, "running_var"):  # torchvision's FrozenBatchNorm2d has it too
        _initialize_norm(module)
    elif isinstance(module, nn.Conv2d):
        if backbone == "squeezenet1_0":
            init.kaiming_uniform_(module.weight, generator=rng)
        else:
            fan: Literal["fan_in", "fan_out"] = "fan_in" if backbone == "densenet121" else "fan_out"
            init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu", generator=rng)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        # the default of nn.Linear, for its weight and its bias; torchvision's EfficientNet counts outputs
        bound = (module.out_features if backbone == "efficientnet_lite0" else module.in_features) ** -0.5
        if backbone in ("squeezenet1_0", "mobilenet_v3_large"):
            init.normal_(module.weight, std=0.01, generator=rng)
        else:
            init.uniform_(module.weight, -bound, bound, generator=rng)
        if backbone in ("resnet18", "resnet50", "tiny"):
            init.uniform_(module.bias, -bound, bound, generator=rng)
        else:
            init.zeros_(module.bias)
    else:
        assert not list(module.parameters(recurse=False)), f"no law for {type(module).__name__}"


def _initialize_norm(module: nn.Module) -> None:
    """Make a norm the map that changes nothing, with weights of 1 and biases of 0."""
    for name, values in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        values.data.fill_(1 if name in ("weight", "running_var") else 0)


Parts = tuple[nn.Sequential, nn.Sequential, int]  # body, neck, width of the features


def _body(stem: nn.Module, *stages: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(zip(PARTS, (stem, *stages), strict=True)))


def _neck(*after: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *after)


def _named(module: nn.Module, *names: str) -> nn.Sequential:
    """Pick children of `module`, under their names."""
    children = dict(module.named_children())
    return nn.Sequential(OrderedDict((name, children[name]) for name in names))


def _slices(layers: nn.Sequential, *starts: int) -> list[nn.Sequential]:
    """Cut `layers` before each of `starts`; the parts keep the layers' numbers as names."""
    bounds = [0, *starts, len(layers)]
    return [_named(layers, *(str(number) for number in range(first, last))) for first, last in pairwise(bounds)]


def _resnet_parts(network: nn.Module) -> Parts:
    stages = [network.get_submodule(f"layer{number}") for number in (1, 2, 3, 4)]
    width = cast(nn.Linear, network.get_submodule("fc")).in_features
    return _body(_named(network, "conv1", "bn1", "relu", "maxpool"), *stages), _neck(), width


def _mobilenet_parts(network: nn.Module) -> Parts:
    stem, *stages = _slices(cast(nn.Sequential, network.get_submodule("features")), 2, 4, 7, 13)
    linear = cast(nn.Linear, network.get_submodule("classifier.0"))
    dropout = Dropout(cast(nn.Dropout, network.get_submodule("classifier.2")).p)
    return _body(stem, *stages), _neck(linear, network.get_submodule("classifier.1"), dropout), linear.out_features


def _lite_parts(network: nn.Module) -> Parts:
    first, *stages = _slices(cast(nn.Sequential, network.get_submodule("blocks")), 1, 3, 5, 11)
    stem, last = _named(network, "pad", "conv_stem", "bn0"), stages[-1]
    stem.add_module("relu0", nn.ReLU6())
    stem.add_module("block0", first.get_submodule("0"))
    for name in ("conv_head", "bn1"):
        last.add_module(name, network.get_submodule(name))
    last.add_module("relu1", nn.ReLU6())
    return _body(stem, *stages), _neck(), FEATURES


def _squeezenet_parts(network: nn.Module) -> Parts:
    stem, *stages = _slices(cast(nn.Sequential, network.get_submodule("features")), 3, 6, 9, 11)
    return _body(stem, *stages), _neck(), 512


def _densenet_parts(network: nn.Module) -> Parts:
    features = network.get_submodule("features")
    stages = [_named(features, "denseblock1")]
    stages += [_named(features, f"transition{number}", f"denseblock{number + 1}") for number in (1, 2, 3)]
    stages[-1].add_module("norm5", features.get_submodule("norm5"))
    stages[-1].add_module("relu5", nn.ReLU())  # torchvision applies it in DenseNet.forward
    return _body(_named(features, "conv0", "norm0", "relu0", "pool0"), *stages), _neck(), 1024


def _tiny_parts(network: nn.Module) -> Parts:
    return cast(nn.Sequential, network), _neck(), 96


_PARTS: Mapping[str, Callable[[nn.Module], Parts]] = {
    "resnet18": _resnet_parts,
    "resnet50": _resnet_parts,
    "mobilenet_v3_large": _mobilenet_parts,
    "efficientnet_lite0": _lite_parts,
    "squeezenet1_0": _squeezenet_parts,
    "densenet121": _densenet_parts,
    "tiny": _tiny_parts,
}
