"""The run's defenses as each client's defense stack, and as a report lists them."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.run_config import RunConfig, build
from fdgsec.experiments.setup.style_view import StyleView
from fdgsec.federation.defense import Defense, StatisticSource
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Method
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.registry import name_of, resolve
from fdgsec.runtime.secret_streams import simulated_key


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewedStatistic:
    """The record statistic of the run's style view."""

    style_view: StyleView

    @property
    def released_statistic(self) -> ReleasedStatistic:
        """The statistic t of which a release is the mean."""
        return self.style_view.released_statistic

    def records(self, images: DomainDataset) -> Tensor:
        """t(x) of every image, (n, D) float64."""
        return self.released_statistic.records(
            statistics(self.style_view.encoder, images, size=self.style_view.style_size)
        )


def statistic_source_of(config: RunConfig, method: Method) -> StatisticSource:
    """The record statistic of a client's releases, given its images and the received model.

    The encoder of a model's layers is built once per model and shared by all clients and simulations."""
    made: WeakKeyDictionary[GlobalModel, ViewedStatistic] = WeakKeyDictionary()

    def statistic_source(images: DomainDataset, model: GlobalModel | None) -> ViewedStatistic:
        shared = method.shared_mean
        if model is None or shared is None or shared.layers is None:
            return ViewedStatistic(style_view=StyleView.of(config, images, method, model))
        if model not in made:
            made[model] = ViewedStatistic(style_view=StyleView.of(config, images, method, model))
        return made[model]

    return statistic_source


def defense_stack_of(config: RunConfig, method: Method) -> DefenseStack:
    """Each client's defense stack. Raises UsageError where a defense does not work with the method."""
    usual = build(resolve("defenses", "guards"), {}, where="guards")
    defense_stack = DefenseStack(
        defenses=config.defenses,
        key=simulated_key(config.seed),
        statistic_source=statistic_source_of(config, method),
        usual=usual,
    )
    defense_stack.check(method)
    return defense_stack


def defense_documents(config: RunConfig) -> list[Mapping[str, object]]:
    """The run's defenses with all their options, as reports list them."""
    return [
        {
            "name": name_of("defenses", type(defense)),
            "options": {name: _plain(value) for name, value in _options(defense).items()},
        }
        for defense in config.defenses
    ]


def _options(defense: Defense) -> dict[str, object]:
    return dataclasses.asdict(defense)  # type: ignore[call-overload,no-any-return]


def _plain(value: object) -> object:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value
