"""Release declarations: one record for each kind of message that a method sends besides those of the round loop."""

from dataclasses import dataclass
from typing import Literal

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.released_statistics import ReleasedStatistic

Stage = Literal["share", "combine", "model", "update", "exhibit", "review"]


@dataclass(frozen=True, kw_only=True)
class Release:
    """One kind of message: its stage, its slot (a pattern such as "client:*" for several), and its artifact kind.

    `statistic` is the per-image statistic t(x) of which the message holds the mean over a client's images, or one row
    per image; None if it holds neither. `weighted` is one of whose values it holds a mean with weights that only the
    sender knows, each at least 0 and 1 in all. Styles are computed by the run's encoder unless `encoder` names another
    one, or `layers` names the stage of the received model whose feature maps they describe."""

    stage: Stage
    slot: str
    kind: type[Artifact]
    statistic: ReleasedStatistic | None = None
    weighted: ReleasedStatistic | None = None
    encoder: str | None = None
    layers: str | None = None


TRAINED_MODEL = Release(stage="update", slot="model", kind=ModelState)
"""The update of every client that trains."""
VALIDATION = (
    Release(stage="exhibit", slot="model", kind=ModelState),
    Release(stage="review", slot="scores", kind=Scores),
)
"""The averaged model down, and each client's counts on its validation images up."""
ROUND_LOOP = (
    Release(stage="model", slot="model", kind=ModelState),
    Release(stage="update", slot="numbers", kind=Scores),
)
"""Messages of the round loop for every method: the global model down, each update's weight and metrics up."""
