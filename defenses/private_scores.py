"""Private scores: noise on peer-review scores, calibrated to the bounded effect of one validation image.

FedDAG's clients evaluate their peers' models on validation images (Che et al. 2025, arXiv:2501.13967, eqs. 5 and 6):
one more release of images, which DP-SGD does not cover. A method that clips each image's loss at B sends means over n
images. One image changes each of m scores by at most B / n, and all of them by sqrt(m) B / n in the L2 norm. The noise
is that of the analytic Gaussian mechanism (Balle & Wang, ICML 2018, Theorem 8). A run of R rounds composes, so its
noise grows with sqrt(R)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fdgsec.federation.artifacts import Scores
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.privacy.accounting import Relation, Use
from fdgsec.privacy.discrete_gaussian import lattice_gaussian
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream


@runtime_checkable
class BoundsLosses(Protocol):
    """A method whose scores are means of losses in [0, `loss_bound`], one per validation image."""

    @property
    def loss_bound(self) -> float:
        """The value at which each loss is clipped."""
        ...


def sensitivity_of_scores(*, scores: int, images: int, bound: float) -> float:
    """The maximum L2 change of `scores` means of values in [0, `bound`] for one of `images`: sqrt(m) B / n.

    It is reached where the image's losses all change from 0 to B, so that replacing an image (n is public) and having
    it contribute nothing cost the same."""
    return math.sqrt(scores) * bound / images


@dataclass(frozen=True, kw_only=True)
class PrivateScores:
    """Add Gaussian noise to the scores that clients give each other's models, for (epsilon, delta) over all rounds.

    `epsilon` inf adds no noise and gives no guarantee."""

    epsilon: float = 8.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise UsageError(
                f"private-scores needs epsilon above 0 and delta in (0, 1); got {self.epsilon} and {self.delta}."
            )

    @property
    def mechanism_on(self) -> frozenset[str]:
        """Replaces what the review stage sends by a noisy function of the records."""
        return frozenset({"review"})

    @property
    def assumptions(self) -> Sequence[str]:
        """The assumptions of the guarantee."""
        return (
            "private-scores: the numbers of validation images and of judged models are public",
            "private-scores: validation images are counted as if they were trained on too",
            (
                "private-scores: an image keeps its file name (and its class, where other images of the client have "
                "that name), from which its part in validation follows"
            ),
        )

    @property
    def promise(self) -> PlannedGuarantee | None:
        """A guarantee per validation image, whose number is public; none without noise."""
        if math.isinf(self.epsilon):
            return None
        relations: frozenset[Relation] = frozenset({"replace-one", "zero-out"})
        return PlannedGuarantee(by="private-scores", stage="review", unit="record", relations=relations)

    def check(self, method: Method) -> None:
        """Raise UsageError for a method that sends no scores, or scores that one image can change without bound."""
        if method.reviews == "none":
            raise UsageError(f"private-scores has nothing to protect: {type(method).__name__} sends no scores.")
        if not isinstance(method, BoundsLosses):
            raise UsageError(
                f"private-scores needs losses with a bound, which those of {type(method).__name__} have not; take "
                "feddag-dp."
            )

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Add noise to a review's scores.

        Raises UsageError for a client without validation images, or scores out of bounds."""
        method, scores = outgoing.sender.method, outgoing.artifact
        if outgoing.stage != "review" or not isinstance(scores, Scores) or not isinstance(method, BoundsLosses):
            return None
        validation = outgoing.sender.client.validation
        if validation is None or not len(validation):
            raise UsageError(f"{outgoing.sender.name} judges models without validation images; give it some.")
        values = scores.values
        if values.numel() and not (float(values.min()) >= 0 and float(values.max()) <= method.loss_bound * (1 + 1e-6)):
            raise UsageError(
                f"{type(method).__name__} says that its scores lie in [0, {method.loss_bound:g}], but they do not; no "
                "bound on what one image does to them is known."
            )
        sensitivity = sensitivity_of_scores(scores=values.numel(), images=len(validation), bound=method.loss_bound)
        releases = max(outgoing.sender.clock.rounds, 1)
        noise = noise_multiplier(self.epsilon, self.delta) * math.sqrt(releases) * sensitivity
        if not noise:
            return Protected(artifact=scores, uses=None)
        known = Use(
            mechanism="gaussian", noise=noise, sensitivity={"replace-one": sensitivity, "zero-out": sensitivity}
        )
        released = lattice_gaussian(values.double(), noise, distance=sensitivity, rng=rng)
        return Protected(artifact=Scores(values=released.to(values)), uses=(known,))
