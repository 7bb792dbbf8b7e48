"""The styles that an attack reads: those of an encoder, or of the layers of the model that the server sent last."""

from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import World
from fdgsec.experiments.setup.style_view import StyleView
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Method
from fdgsec.federation.wire import Transcript
from fdgsec.nn.styles.image_styles import prepare_statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import Progressive


def prepare_style_view(
    config: RunConfig, world: World, method: Method, model: GlobalModel | None, *, fresh: bool, progress: Progressive
) -> StyleView:
    """The style view of the run, with the style statistics of all images computed."""
    style_view = StyleView.of(config, world.dataset, method, model)
    prepare_statistics(
        style_view.encoder, world.dataset, reuse=not fresh, size=style_view.style_size,
        progress=lambda done, total: progress.update("style statistics", done, total),
    )  # fmt: skip
    return style_view


def follows_model(method: Method) -> bool:
    """Whether clients share styles of the received model's layers."""
    return method.shared_mean is not None and method.shared_mean.layers is not None


def last_global_model(transcript: Transcript, model: GlobalModel) -> GlobalModel:
    """The global model that the server sent last. Raises UsageError if the transcript kept none."""
    sent = [
        message.artifact
        for message in transcript.messages()
        if message.stage == "model" and isinstance(message.artifact, ModelState)
    ]
    if not sent:
        raise UsageError(
            "the method shares styles of the model's layers, but this run kept no model; train it again with "
            "--keep models=last."
        )
    return model.with_state(sent[-1].tensors())
