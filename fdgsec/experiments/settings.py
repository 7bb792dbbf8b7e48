"""The settings that verbs share, declared once: name, type and help; the command line's options and Python's keywords
are these."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict


@dataclass(frozen=True, kw_only=True)
class Option:
    """How the command line shows a setting: its help, the smallest value, and its flags where they are not its name."""

    help: str
    least: int | None = None
    flag: str = ""


class Settings(TypedDict, total=False):
    """What a run may be told; what is left out is the preset's, the profile's, the dataset's or the method's own."""

    encoder: Annotated[str, Option(help="Style encoder (`fdgsec list encoders`).")]
    style_size: Annotated[int, Option(help="Side in pixels at which images are encoded; default: their own.", least=16)]
    backbone: Annotated[str, Option(help="Classifier: a torchvision model, or tiny (`fdgsec list backbones`).")]
    norm: Annotated[
        Literal["batch", "group", "frozen"], Option(help="Normalization layers: batch, group, or frozen batch norm.")
    ]
    pretrained: Annotated[bool, Option(help="Start from stored ImageNet weights.", flag="--pretrained/--no-pretrained")]
    local: Annotated[
        str, Option(help="Local method on top, e.g. mixstyle; its options: --set with.NAME=VALUE.", flag="--with")
    ]
    adapt: Annotated[str, Option(help="Also report accuracy after test-time adaptation: tent or tent-ccst.")]
    splits: Annotated[
        Literal["own", "official"],
        Option(help="Validation images: own (drawn with the seed) or official (the dataset's splits)."),
    ]
    roles: Annotated[
        Literal["none", "aside"],
        Option(help="none, or aside: hold images out from the clients for a later `fdgsec attack --run`."),
    ]
    partition: Annotated[
        Literal["domain", "single-domain", "dirichlet", "lambda"],
        Option(help="How images are divided among clients: domain, single-domain, dirichlet or lambda."),
    ]
    clients: Annotated[int, Option(help="Number of clients; default: the partition's own.")]
    heterogeneity: Annotated[float, Option(help="Alpha of the Dirichlet partition, or lambda.")]
    rounds: Annotated[int, Option(help="Number of training rounds; 0 only exchanges artifacts.", least=0)]
    participation: Annotated[float, Option(help="Fraction of clients per round.")]
    target_domain: Annotated[
        str,
        Option(
            help="Unseen test domain; several as A+B, or @SPLIT; default: the dataset's.",
            flag="--unseen-domain --target-domain",
        ),
    ]
    validation_domain: Annotated[str, Option(help="Second unseen domain, for validation (leave two domains out).")]
    per_domain: Annotated[int, Option(help="Maximum number of images per domain.", least=1)]
    per_class: Annotated[int, Option(help="Maximum number of images per class in each domain.", least=1)]
    image_size: Annotated[int, Option(help="Image side in pixels; default: the dataset's.", least=16)]
    device: Annotated[str, Option(help="Device for training: auto, cpu or cuda.")]
    threads: Annotated[int, Option(help="Threads of all computations; results depend on it. Default: 1.", least=1)]
    keep: Annotated[
        Literal["artifacts", "models=last", "models=all"],
        Option(help="Payloads stored in the transcript: artifacts, models=last (round) or models=all."),
    ]
    delta: Annotated[float, Option(help="Delta at which guarantees are stated.")]
    allow_partial: Annotated[bool, Option(help="Accept an incomplete dataset.", flag="--allow-partial")]
