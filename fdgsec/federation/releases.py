"""What a method releases: one record for each kind of message that it sends beside the round loop's own."""

from dataclasses import dataclass
from typing import Literal

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.released_statistics import ReleasedStatistic

Stage = Literal["share", "combine", "model", "update", "exhibit", "review"]


@dataclass(frozen=True, kw_only=True)
class Release:
    """One kind of message: the stage it is sent in, its slot (a pattern where there are several: "client:*"), and its kind.

    `statistic` is the per-image statistic t(x) whose mean over a client's images (or whose rows, one per image) it holds;
    None where it is no such mean. Its styles are those of the run's encoder, unless `encoder` names another one, or `layers`
    the stage of the received model whose maps they describe."""

    stage: Stage
    slot: str
    kind: type[Artifact]
    statistic: ReleasedStatistic | None = None
    encoder: str | None = None
    layers: str | None = None


TRAINED_MODEL = Release(stage="update", slot="model", kind=ModelState)
"""What every client sends that trains."""
VALIDATION = (
    Release(stage="exhibit", slot="model", kind=ModelState),
    Release(stage="review", slot="scores", kind=Scores),
)
"""The averaged model, and each client's counts on its validation images."""
ROUND_LOOP = (
    Release(stage="model", slot="model", kind=ModelState),
    Release(stage="update", slot="numbers", kind=Scores),
)
"""What the round loop sends whatever the method: the global model down, and each update's weight and metrics up."""
