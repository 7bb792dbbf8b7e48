"""What a reconstruction shows: its class, as recognized by a network that no part of the attack has used.

EfficientNet-Lite0's features of public pictures, at the size of the reconstructions, train a logistic regression to
their classes, which then looks at reconstructions. Beside it stand what needs no reconstruction: the class that a
logistic regression infers from the style itself, and the one recognized in the public picture of the nearest style
(control B2); and the class recognized in the reconstruction of another row (B3), which knows nothing of this one."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from threadpoolctl import threadpool_limits
from torch import Tensor

from fdgsec.attacks.style_inversion.reconstruction_answers import ReconstructedRows, parts, placed
from fdgsec.attacks.style_inversion.training_images import Prior
from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.metrics.feature_extraction import extract_features
from fdgsec.metrics.feature_extractors import LITE, Extractor, extractor_named
from fdgsec.nn.networks.weights import locate
from fdgsec.runtime.errors import WeightsUnavailableError
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels, Prediction

FOLDS = 5
LEAST_PER_CLASS = FOLDS
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""scikit-learn's C for standardized features, of which cross-validation takes one."""
MOST_KEPT = 32  # fits that a process keeps: a few MB
PICTURE, NEAREST, EXCHANGED, STYLE = "picture", "nearest public picture", "exchanged picture", "style alone"


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearClasses:
    """Multinomial logistic regression on standardized features, with equal total weight per class."""

    model: LogisticRegression
    center: Tensor
    spread: Tensor
    validated: float
    """Balanced accuracy by cross-validation on the training rows."""

    def predict(self, features: Tensor) -> Tensor:
        """The class of each row, (R,) int64."""
        with threadpool_limits(1):
            found = self.model.predict(((features.double() - self.center) / self.spread).numpy())
        return torch.from_numpy(found).to(torch.int64)


_FITTED: OrderedDict[bytes, LinearClasses] = OrderedDict()  # memo: hash of features and labels -> fit, oldest first


def fit_classes(features: Tensor, labels: Tensor) -> LinearClasses:
    """Fit `features` (N, D) to `labels` (N,), without classes of fewer than LEAST_PER_CLASS rows.

    The same rows, of another prior, population or run, are fitted once in a process."""
    rows = hashlib.sha256(f"{features.dtype} {tuple(features.shape)}".encode())
    for part in (features, labels):
        rows.update(part.contiguous().numpy().data)
    key = rows.digest()
    _FITTED[key] = _FITTED.get(key) or _fit(features, labels)
    _FITTED.move_to_end(key)
    if len(_FITTED) > MOST_KEPT:
        _FITTED.popitem(last=False)
    return _FITTED[key]


def _fit(features: Tensor, labels: Tensor) -> LinearClasses:
    known = frequent(labels)
    rows, labels = features[known].double(), labels[known]
    center, spread = rows.mean(0), rows.std(0)
    spread = spread.clamp_min(1e-3 * float(spread.median().clamp_min(1e-12)))
    scaled, named = ((rows - center) / spread).numpy(), labels.numpy()
    best: tuple[float, LogisticRegression] | None = None
    with threadpool_limits(1):
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, class_weight="balanced", tol=1e-2, max_iter=500)
            guess = torch.from_numpy(cross_val_predict(model, scaled, named, cv=FOLDS))
            right = [float((guess[labels == label] == label).double().mean()) for label in labels.unique()]
            if best is None or sum(right) / len(right) > best[0]:
                best = (sum(right) / len(right), model)
        assert best is not None
        best[1].fit(scaled, named)
    return LinearClasses(model=best[1], center=center, spread=spread, validated=best[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Recognizer:
    """Recognizes classes in pictures of one size."""

    extractor: Extractor
    classes: LinearClasses
    number: int

    def __call__(self, images: Tensor) -> Tensor:
        """The class of each image of (N, 3, S, S) in [0, 1]."""
        return self.classes.predict(extract_features(self.extractor, images.float()).features)

    def answers(
        self, drawn: ReconstructedRows, prior: Prior, loss: str, where: Mapping[str, str | int], *,
        compare: bool, exchanged: bool,
    ) -> list[Answer]:  # fmt: skip
        """The class of each row as recognized in its reconstruction, and in that of another row where `exchanged`.

        With `compare`, those that are told without a reconstruction stand beside them, and the exchanged ones with them
        (without `loss` in their slices); else the exchanged ones have the `loss`."""
        seen, own = self(drawn.images), {**where, "loss": loss}
        answers = self._labels(drawn, {PICTURE: seen}, own)
        if not exchanged:
            return answers
        others = self(drawn.controls["B3"]) if drawn.order is None else seen[drawn.order]
        if compare:
            return [*answers, *self._comparisons(drawn, prior, others, where)]
        return [*answers, *self._labels(drawn, {EXCHANGED: others}, own)]

    def _comparisons(
        self, drawn: ReconstructedRows, prior: Prior, others: Tensor, where: Mapping[str, str | int]
    ) -> list[Answer]:
        """The classes without a reconstruction of the row: from its style, in B2 and in B3 (`others`)."""
        found = {NEAREST: self(drawn.controls["B2"]), EXCHANGED: others}
        labels = prior.labels[prior.training.groups]
        if trainable(labels):
            style = fit_classes(prior.training.features, labels)
            found[STYLE] = style.predict(placed(drawn.rows, prior))
        own = [
            Prediction(case=case, slice=where, name="recognized_public", value=self.classes.validated)
            for case, _ in parts(drawn.rows)
        ]
        return [*self._labels(drawn, found, where), *own]

    def _labels(
        self, drawn: ReconstructedRows, found: Mapping[str, Tensor], where: Mapping[str, str | int]
    ) -> list[Answer]:
        return [
            Labels(
                case=case, slice={**where, "class_from": source}, predicted=predicted[part], of="labels",
                classes=self.number,
            )
            for source, predicted in found.items()
            for case, part in parts(drawn.rows)
        ]  # fmt: skip


def recognizer_of(knowledge: Knowledge, side: int) -> Recognizer | str:
    """Train a recognizer on all labeled images that the adversary has, drawn at `side` px, or say why there is none."""
    known = labeled_images(knowledge)
    if (lacking := no_recognizer(knowledge)) or known is None:
        return lacking
    extractor = extractor_named(LITE)
    features = extract_features(extractor, downsample(known, (side, side))).features
    return Recognizer(
        extractor=extractor, classes=fit_classes(features, known.labels), number=len(knowledge.class_names)
    )


def no_recognizer(knowledge: Knowledge) -> str:
    """Why classes cannot be recognized in pictures; empty where they can."""
    try:
        locate(LITE)
    except WeightsUnavailableError as error:
        return str(error)
    known = labeled_images(knowledge)
    if known is None or not trainable(known.labels):
        return f"the adversary does not know {LEAST_PER_CLASS} images of each of two classes or more"
    return ""


def frequent(labels: Tensor) -> Tensor:
    """Which rows are of a class with enough of them for cross-validation, (N,) bool."""
    _, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    enough: Tensor = counts[place] >= LEAST_PER_CLASS
    return enough


def trainable(labels: Tensor) -> bool:
    """Whether two classes or more have enough rows for cross-validation; others are left out."""
    return len(labels[frequent(labels)].unique()) > 1


def labeled_images(knowledge: Knowledge) -> DomainDataset | None:
    """The labeled images that the adversary has: auxiliary ones, else its own, else those of the unseen domain."""
    sources = (knowledge.auxiliary, knowledge.own, knowledge.unseen)
    return next((images for images in sources if images is not None and len(images)), None)
