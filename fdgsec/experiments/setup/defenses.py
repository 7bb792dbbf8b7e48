"""From the names of defenses to what clients wear, and from the ledger to what a report promises."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.config import RunConfig, build, parse_value
from fdgsec.experiments.setup.style_view import Eyes
from fdgsec.federation.defense import Defense, Look, Shield
from fdgsec.federation.method import GlobalModel, Method, SharesDistributions
from fdgsec.federation.released_statistics import Reading
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import resolve


def named_options(text: str) -> tuple[str, dict[str, Any]]:
    """Read "NAME:k=v,k=v" as a name and options. Raises UsageError for an option without a value."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        option, equals, value = item.partition("=")
        if not equals or not option:
            raise UsageError(f"--defense expects NAME:option=value,...; got {item!r} in {text!r}.")
        options[option.strip()] = parse_value(value.strip())
    return name, options


def defenses_of(config: RunConfig) -> tuple[Defense, ...]:
    """Build the run's defenses in order. Raises UsageError for an unknown name or option."""
    made = []
    for text in config.defenses:
        name, options = named_options(text)
        made.append(build(resolve("defenses", name), options, where=f"defense {name}"))
    return tuple(made)


@dataclass(frozen=True, kw_only=True, eq=False)
class EyesLens:
    """A lens of the eyes that the run is looked at by: the adversary's encoder is the method's own."""

    eyes: Eyes

    @property
    def reading(self) -> Reading:
        """Of which t a release is the mean."""
        return self.eyes.reading

    def records(self, images: DomainDataset) -> Tensor:
        """Give t(x) of every image, (n, D) float64."""
        return self.reading.records(statistics(self.eyes.encoder, images, size=self.eyes.style_size))


def lens_of(config: RunConfig, method: Method) -> Look:
    """How a client reads its own releases, given its images and the model that it received.

    Layers of a model are an encoder that is made once, however many clients and simulations read by it."""
    made: WeakKeyDictionary[GlobalModel, EyesLens] = WeakKeyDictionary()

    def look(images: DomainDataset, model: GlobalModel | None) -> EyesLens:
        if model is None or not isinstance(method, SharesDistributions):
            return EyesLens(eyes=Eyes.of(config, images, method, model))
        if model not in made:
            made[model] = EyesLens(eyes=Eyes.of(config, images, method, model))
        return made[model]

    return look


def shield_of(config: RunConfig, method: Method) -> Shield:
    """What every client of the run wears. Raises UsageError where a defense does not work with the method."""
    usual = build(resolve("defenses", "guards"), {}, where="guards")
    shield = Shield(defenses=defenses_of(config), seed=config.seed, look=lens_of(config, method), usual=usual)
    shield.check(method)
    return shield


def defense_documents(config: RunConfig) -> list[Mapping[str, object]]:
    """The run's defenses with all their options, as reports list them."""
    return [
        {"name": text.partition(":")[0], "options": {name: _plain(value) for name, value in _options(defense).items()}}
        for text, defense in zip(config.defenses, defenses_of(config), strict=True)
    ]


def _options(defense: Defense) -> dict[str, object]:
    return dataclasses.asdict(defense)  # type: ignore[call-overload,no-any-return]


def _plain(value: object) -> object:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value
