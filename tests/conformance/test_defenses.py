"""Every bundled defense keeps its promises, and liars are found out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch

from fdgsec.defenses.quantize import Quantize
from fdgsec.experiments.run_config import made
from fdgsec.federation.artifacts import ImageStyles, StyleStatistics
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.methods.ccst import CCST
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.runtime.registry import DEFENSES
from fdgsec.runtime.secret_streams import SecretStream
from fdgsec.testing import BrokenPromiseError, check_defense
from tests.support.broken_defenses import (
    StylesClippedAboutTheirMedian,
    StylesClippedAtTheirMedian,
    StylesOfTheMostFrequentClass,
)
from tests.support.deciding_images import UNDOING, StylesOfAPrivateHalf
from tests.support.misstated_noise import (
    SOUND,
    TOLD_APART,
    MeanStyles,
    StylesAboutTheirMedianLater,
    StylesPaidOnce,
    StylesRoundedAfterwards,
    StylesWithCutNoise,
    StylesWithLaplaceNoise,
)
from tests.support.misstated_updates import UpdatesWithTheirAverages

OPTIONS: Mapping[str, dict[str, object]] = {"dp-sgd": {"noise_multiplier": 1.0}}
SINGLE = CCST(style="single", k=2, styles_per_client=10)
LONG = ("dp-sgd", "private-styles")
"""Take ten seconds, for gradients of single records and for neighbors' releases; the others take one or two, and remain
in the fast suite."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in DEFENSES])
def test_a_bundled_defense_keeps_every_promise(name: str):
    method = SINGLE if name == "k-anonymous" else None
    check_defense(made("defenses", name, OPTIONS.get(name, {}), where=name), method=method)


@dataclass(frozen=True, kw_only=True)
class DrawsGlobally(Quantize):
    """Noise of torch's global generator."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        artifact = outgoing.artifact
        if not isinstance(artifact, StyleStatistics):
            return None
        return Protected(artifact=replace(artifact, mean=artifact.mean + torch.randn(artifact.mean.shape)))


@dataclass(frozen=True, kw_only=True)
class MovesGlobally(Quantize):
    """Draws from torch's global generator, and uses none of it."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        torch.rand(1)
        return super().on_message(outgoing, rng)


@dataclass(frozen=True, kw_only=True)
class Remembers(Quantize):
    """Counts messages on itself."""

    seen: list[str] = field(default_factory=list)

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        self.seen.append(outgoing.name)
        return super().on_message(outgoing, rng)


@dataclass(frozen=True, kw_only=True)
class ChangesKind(Quantize):
    """Sends rows in place of a pooled style."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        artifact = outgoing.artifact
        if not isinstance(artifact, StyleStatistics):
            return None
        rows = artifact.mean.unsqueeze(0), artifact.std.unsqueeze(0)
        return Protected(artifact=ImageStyles(mean=rows[0], std=rows[1]))


@dataclass(frozen=True, kw_only=True)
class WritesOnWhatItGot(Quantize):
    """Rounds in place."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        artifact = outgoing.artifact
        if not isinstance(artifact, StyleStatistics):
            return None
        artifact.mean.round_()
        return Protected(artifact=artifact)


@dataclass(frozen=True, kw_only=True)
class PaysUnsaid(Quantize):
    """Claims a mechanism that it never promised."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        made_of = super().on_message(outgoing, rng)
        use = Use(mechanism="gaussian", noise=1.0, sensitivity={"zero-out": 1.0})
        return None if made_of is None else replace(made_of, uses=(use,))


@dataclass(frozen=True, kw_only=True)
class PromisesAndPaysNothing(Quantize):
    """Promises a guarantee and adds no noise."""

    @property
    def promise(self) -> PlannedGuarantee:
        return PlannedGuarantee(by="liar", stage="share", unit="record", relations=frozenset({"zero-out"}))


@dataclass(frozen=True, kw_only=True)
class DoesNothing(Quantize):
    """Leaves everything as it is."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        return None


@pytest.mark.parametrize(
    ("liar", "promise"),
    [
        (DrawsGlobally(), "a defense draws from the generator it is handed"),
        (MovesGlobally(), "no draws from global randomness: MovesGlobally moved the global state of torch"),
        (Remembers(), "nothing is kept on self: Remembers changed seen"),
        (ChangesKind(), "a defense keeps the kind of every artifact: .* became ImageStyles"),
        (WritesOnWhatItGot(), "a defense leaves what it is handed as it was"),
        (PaysUnsaid(), "a mechanism names its stages.*: PaysUnsaid states a cost, and is post-processing in the share"),
        (PromisesAndPaysNothing(), "a guarantee is none, or what was said before: liar plans to pay"),
        (DoesNothing(), "a defense acts: nothing that CCST sends is changed"),
        (
            StylesClippedAtTheirMedian(epsilon=4.0),
            "a cost does not depend on the records: that of 'style' is another one",
        ),
        *(
            (
                liar(epsilon=4.0),
                "a release moves with one image or client no further than its cost allows: 'style' moves with one image",
            )
            for liar in (StylesClippedAboutTheirMedian, StylesOfTheMostFrequentClass, *UNDOING, *TOLD_APART)
        ),
        (StylesWithCutNoise(epsilon=4.0), "noise has the tails that its cost says: that of 'style' is cut"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.medium
def test_a_liar_is_found_out_and_told_which_promise_it_broke(liar: object, promise: str):
    with pytest.raises(BrokenPromiseError, match=promise):
        check_defense(liar, method=CCST(k=2))


@pytest.mark.parametrize(
    ("liar", "promise"),
    [
        (
            StylesAboutTheirMedianLater(epsilon=4.0),
            "a release moves with one image or client no further than its cost allows",
        ),
        (StylesPaidOnce(epsilon=4.0), "every new release has its cost: 'distribution' of round 1"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.medium
def test_a_liar_in_the_second_round_is_found_out(liar: object, promise: str):
    with pytest.raises(BrokenPromiseError, match=promise):
        check_defense(liar, method="stablefdg")


@pytest.mark.medium
def test_averages_beside_an_update_break_a_promise():
    with pytest.raises(BrokenPromiseError, match=r"in 'body\.stem\.1\.running_mean', which has no noise"):
        check_defense(UpdatesWithTheirAverages(epsilon=4.0), method="fedavg")


@pytest.mark.parametrize(
    ("epsilon", "sound"),
    [*((8.0, sound) for sound in SOUND), (0.5, StylesWithLaplaceNoise), (60.0, StylesRoundedAfterwards)],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
@pytest.mark.medium
def test_sound_noise_that_looks_unusual_keeps_its_promise(epsilon: float, sound: type[MeanStyles]):
    check_defense(sound(epsilon=epsilon), method=CCST(k=2))


@pytest.mark.medium
def test_a_private_half_of_the_images_with_twice_the_noise_is_sound():
    check_defense(StylesOfAPrivateHalf(epsilon=4.0), method=CCST(k=2))
