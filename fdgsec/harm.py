"""What came of a forgery: a run with it beside the same run without, same seed, and the answer that asks for that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fdgsec.answers import Answer


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run came out.

    `ended` says why it did not finish, empty where it did; `refused` that it ended by an error that names the forger first;
    `finite` that all numbers of the last model, and of what clients received, are, where it did finish.
    `accuracy` is the last model's, a share, by the images that it is measured on; empty where nothing was trained or the run
    did not finish. `numbers` are shares by name: "forger_weight" of the aggregated models, "picked_share" of a pool's draws,
    "picked_in_cluster" of those from the same clusters."""

    ended: str = ""
    refused: bool = False
    finite: bool = True
    accuracy: Mapping[str, float] = field(default_factory=dict)
    transcript_sha256: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Harm:
    """Two runs of one seed, `honest` without the forgery and `hostile` with it.

    `displacement` is, by what it is of, |hostile - honest| / |honest| of what honest clients received last (L2 over all of
    them together) and of the last model; what is missing, or not finite, has none. `blind` is, by the same names as the
    accuracies, what one who answers the commonest class gets right."""

    honest: Outcome
    hostile: Outcome
    displacement: Mapping[str, float] = field(default_factory=dict)
    blind: Mapping[str, float] = field(default_factory=dict)

    @property
    def none(self) -> bool:
        """Whether the two runs are the same to the byte: nothing that was sent differs, and neither does what came of it."""
        return self.honest == self.hostile and not any(self.displacement.values())

    @property
    def harmless(self) -> bool:
        """Whether nothing came of it for anybody else, whatever was sent."""
        same = not self.hostile.ended and self.honest.accuracy == self.hostile.accuracy
        return same and not any(self.displacement.values())


@dataclass(frozen=True, kw_only=True)
class Harmed(Answer):
    """The claim that a forgery does harm to a trained federation, or (`exchange`) to what one exchange makes of styles.

    There is nothing to guess: the truth about the two runs is measured."""

    kind: ClassVar[str] = "harmed"
    of: Literal["run", "exchange"] = "run"
