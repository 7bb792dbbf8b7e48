"""The published weights that a training run needs, checked before any image is read."""

from collections.abc import Iterator

from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import options_of
from fdgsec.nn.networks import weights
from fdgsec.nn.styles.encoders import ENCODER_WEIGHTS
from fdgsec.runtime.errors import WeightsUnavailableError


def check_weights(config: RunConfig) -> None:
    """Raise WeightsUnavailableError where weights are not stored, naming all of them and the commands that store them.

    A pretrained network without its weights, or styles of another encoder, would be another experiment."""
    missing = [name for name in required_weights(config) if not weights.stored(name)]
    if not missing:
        return
    what = f"preset {config.preset}" if config.preset else config.method_name
    how = ". ".join(weights.CATALOG[name].how_to_get for name in missing)
    raise WeightsUnavailableError(f"{what} needs weights that are not stored: {', '.join(missing)}. {how}.")


def required_weights(config: RunConfig) -> list[str]:
    """The names of the weights of the pretrained network, and of the encoder if a method of the run has one."""
    pretrained = [config.backbone] if config.pretrained and config.backbone in weights.CATALOG else []
    encoding = any("encoder" in options_of(name) for name in _methods(config))
    return [*pretrained, *(ENCODER_WEIGHTS.get(config.encoder, ()) if encoding else ())]


def _methods(config: RunConfig) -> Iterator[str]:
    """The names of the method, of the local method, and of the method below."""
    yield config.method
    if config.local:
        yield config.local
    base = config.options.get("base")
    if isinstance(base, str):
        yield base
    elif isinstance(base, dict) and isinstance(base.get("method"), str):
        yield base["method"]
