"""Accuracy, weighted AUC and weighted F1 of a classifier on one domain."""

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.accuracy import classification, weighted_auc, weighted_f1
from fdgsec.runtime.errors import DataError

LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
LOGITS = torch.tensor([[3.0, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1], [2, 1, 0], [0, 1, 3]])


def pairwise_area(scores: Tensor, own: Tensor) -> float:
    wins = [(float(a) > float(b)) + 0.5 * (float(a) == float(b)) for a in scores[own] for b in scores[~own]]
    return sum(wins) / len(wins)


def test_accuracy_is_the_share_of_right_answers():
    assert classification(LOGITS, LABELS)["accuracy"] == pytest.approx(4 / 6, abs=1e-12)


def test_the_weighted_area_is_that_of_counting_pairs():
    probabilities = torch.softmax(LOGITS.double(), 1)
    areas = [pairwise_area(probabilities[:, name], LABELS == name) for name in (0, 1, 2)]

    assert weighted_auc(probabilities, LABELS) == pytest.approx((3 * areas[0] + 2 * areas[1] + areas[2]) / 6, abs=1e-12)


def test_the_weighted_f1_is_that_of_its_definition():
    predicted = LOGITS.argmax(1)  # 0 1 0 1 0 2
    scores = [2 * 2 / (3 + 3), 2 * 1 / (2 + 2), 1.0]

    assert weighted_f1(predicted, LABELS) == pytest.approx((3 * scores[0] + 2 * scores[1] + scores[2]) / 6, abs=1e-12)


def test_a_class_that_the_domain_lacks_takes_no_part():
    wider = torch.cat([LOGITS, torch.full((6, 4), -9.0)], 1)

    assert weighted_auc(torch.softmax(wider, 1), LABELS) == pytest.approx(
        weighted_auc(torch.softmax(LOGITS, 1), LABELS), abs=1e-3
    )
    assert "auc" not in classification(LOGITS[:3], LABELS[:3])


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [(LOGITS[:0], LABELS[:0], "no image"), (LOGITS * float("nan"), LABELS, "not finite")],
    ids=["empty", "diverged"],
)
def test_what_cannot_be_judged_is_refused(logits: Tensor, labels: Tensor, said: str):
    with pytest.raises(DataError, match=said):
        classification(logits, labels)
