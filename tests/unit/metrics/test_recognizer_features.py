"""EfficientNet-Lite0's features: a picture is computed once in a process, and its neighbors change nothing."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor

from fdgsec.metrics import feature_extractors
from fdgsec.metrics.feature_extractors import IN_CACHE, LITE, LiteExtractor
from fdgsec.runtime.threads import limited_threads
from tests.unit.metrics.test_feature_extractors import pictures, random_state

SHOWN = pictures(n=7, side=32)


class Counted:
    """The network behind an extractor, counting the images that it sees."""

    def __init__(self, extractor: LiteExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[int] = []
        compute = extractor._network.features
        monkeypatch.setattr(extractor._network, "features", lambda images: self._seen(images, compute(images)))

    def _seen(self, images: Tensor, features: Tensor) -> Tensor:
        self.passes.append(len(images))
        return features


@pytest.fixture
def extractor(monkeypatch: pytest.MonkeyPatch) -> LiteExtractor:
    monkeypatch.setattr(feature_extractors, "_KEPT", OrderedDict())
    return LiteExtractor(random_state(LITE), name=LITE)


def test_a_picture_is_computed_once_in_whatever_order_and_set_it_comes_back(
    extractor: LiteExtractor, monkeypatch: pytest.MonkeyPatch
):
    first, counted = extractor.features(SHOWN), Counted(extractor, monkeypatch)
    order = torch.tensor([6, 2, 2, 0])

    assert torch.equal(extractor.features(SHOWN[order]), first[order])
    assert counted.passes == []


@pytest.mark.medium
def test_every_pass_has_the_same_shape_so_that_neighbors_change_no_bit(
    extractor: LiteExtractor, monkeypatch: pytest.MonkeyPatch
):
    alone = torch.cat([extractor.features(SHOWN[place : place + 1]) for place in range(len(SHOWN))])
    feature_extractors._KEPT.clear()
    counted = Counted(extractor, monkeypatch)

    assert torch.equal(extractor.features(SHOWN), alone)
    assert set(counted.passes) == {IN_CACHE}


def test_equal_pictures_of_one_call_are_computed_once(extractor: LiteExtractor, monkeypatch: pytest.MonkeyPatch):
    counted = Counted(extractor, monkeypatch)

    found = extractor.features(SHOWN[:1].expand(9, -1, -1, -1))

    assert counted.passes == [IN_CACHE]
    assert torch.equal(found, found[:1].expand(9, -1))


@pytest.mark.medium
def test_other_weights_sizes_and_threads_are_other_features(extractor: LiteExtractor, monkeypatch: pytest.MonkeyPatch):
    extractor.features(SHOWN[:1])
    state = random_state(LITE)
    other = LiteExtractor({**state, "fc.bias": state["fc.bias"] + 1}, name=LITE)
    for asked, images, threads in ((other, SHOWN[:1], 1), (extractor, SHOWN[:1, :, :16], 1), (extractor, SHOWN[:1], 2)):
        counted = Counted(asked, monkeypatch)
        with limited_threads(threads):
            asked.features(images)
        assert counted.passes == [IN_CACHE]


def test_the_oldest_are_dropped_beyond_the_bound(extractor: LiteExtractor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_extractors, "MOST_KEPT", 3)
    first = extractor.features(SHOWN)
    counted = Counted(extractor, monkeypatch)

    assert len(feature_extractors._KEPT) == 3
    assert torch.equal(extractor.features(SHOWN[4:]), first[4:])
    assert counted.passes == []
    assert torch.equal(extractor.features(SHOWN[:1]), first[:1])
    assert counted.passes == [IN_CACHE]


def test_changing_what_was_returned_changes_nothing_that_is_kept(extractor: LiteExtractor):
    first = extractor.features(SHOWN)
    kept = first.clone()
    first.zero_()

    assert torch.equal(extractor.features(SHOWN), kept)


def test_logits_are_of_the_same_features(extractor: LiteExtractor):
    found = extractor.extract(SHOWN)
    assert found.logits is not None

    torch.testing.assert_close(found.logits, extractor._network.fc(found.features))
