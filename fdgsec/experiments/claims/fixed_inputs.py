"""What the ledger's runs read besides their settings, by hash: images, and weights of encoders and backbones."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import load_world
from fdgsec.metrics.feature_extractors import LITE
from fdgsec.nn.networks.weights import record
from fdgsec.nn.styles.encoders import ENCODER_WEIGHTS
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime.errors import MissingResourceError
from fdgsec.runtime.progress import NoProgress

VGG_FAMILY = ("vgg19", "vgg19-pre-relu", "vgg16-hed")
"""The encoders that compute relu4_1 of a VGG network as the papers do, in float32."""
MISSING = "missing"
_IMAGES: dict[tuple[object, ...], str] = {}  # memo: settings of the images -> their hash, per process


def inputs_of(config: RunConfig, *, data_root: Path | None) -> Mapping[str, str]:
    """The SHA-256 of everything that one run reads: its images, and the weights that its settings name.

    Raises MissingResourceError."""
    return {name: read() for name, read in _readers(config, data_root)}


def registered_inputs(runs: Iterable[RunConfig], *, data_root: Path | None) -> Mapping[str, str]:
    """The SHA-256 of everything that some of `runs` read; MISSING for what is not there."""
    found = dict[str, str]()
    for config in runs:
        for name, read in _readers(config, data_root):
            if name not in found:
                try:
                    found[name] = read()
                except MissingResourceError:
                    found[name] = MISSING
    return found


def _readers(config: RunConfig, data_root: Path | None) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each input's name, and how its hash is read."""
    caps = {"px": config.image_size, "per domain": config.per_domain, "per class": config.per_class}
    drawn = [f"{value} {name}" for name, value in caps.items() if value is not None]
    if config.per_domain is not None or config.per_class is not None:  # which images are left depends on the seed
        drawn.append(f"seed {config.seed}")
    yield ", ".join((f"images of {config.dataset}", *drawn)), lambda: _images_sha256(config, data_root)
    yield f"encoder {config.encoder}", lambda: encoder_named(config.encoder).fingerprint
    if config.pretrained:
        yield f"weights {config.backbone}", lambda: record(config.backbone).sha256
    if "style-inversion" in config.attacks:
        yield f"weights {LITE}", _recognizer_sha256


def _recognizer_sha256() -> str:
    """The hash of the weights that recognize classes in pictures; MISSING without them: other rows need none."""
    try:
        return record(LITE).sha256
    except MissingResourceError:
        return MISSING


def _images_sha256(config: RunConfig, data_root: Path | None) -> str:
    settings = (
        str(data_root), config.dataset, config.image_size, config.per_domain, config.per_class, config.seed,
        config.target_domain, config.validation_domain, config.allow_partial,
    )  # fmt: skip
    if settings not in _IMAGES:
        _IMAGES[settings] = load_world(config, data_root=data_root, progress=NoProgress()).dataset.content_sha256
    return _IMAGES[settings]


@cache
def published(encoder: str) -> bool:
    """Whether an encoder's stored weights are the published files, byte for byte; False where one is missing."""
    try:
        return all(record(name).official for name in ENCODER_WEIGHTS[encoder])
    except MissingResourceError:
        return False
