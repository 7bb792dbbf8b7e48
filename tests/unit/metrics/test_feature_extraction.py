from pathlib import Path

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.feature_extraction import extract_features, feature_statistics
from fdgsec.metrics.feature_extractors import EncoderExtractor, ExtractedFeatures, Extractor
from fdgsec.metrics.frechet_distance import gaussian
from fdgsec.nn.styles.encoders import load_encoder
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.one_domain import one_domain

pytestmark = pytest.mark.usefixtures("own_cache")


class Colors(Extractor):
    """The mean color, doubled and shifted; it remembers how many images it saw at a time."""

    name, dimension, classes = "colors", 3, 2
    device = torch.device("cpu")

    def __init__(self, fingerprint: str = "a" * 64) -> None:
        self.fingerprint = fingerprint
        self.batches: list[int] = []

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        self.batches.append(len(images))
        features = 2 * images.mean((2, 3)) + 1
        return ExtractedFeatures(features=features, logits=features[:, :2])


def pixels(*, n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, 3, 16, 16), generator=stream(seed, "attack", "pixels"), dtype=torch.uint8)


def dataset(*, n: int, seed: int = 0) -> DomainDataset:
    return one_domain(pixels(n=n, seed=seed))


def test_datasets_bytes_and_floats_of_the_same_images_give_the_same_features() -> None:
    data = dataset(n=37)
    floats = pixels(n=37).float() / 255

    found = [extract_features(Colors(), images).features for images in (data, pixels(n=37), floats)]

    torch.testing.assert_close(found[0], 2 * floats.mean((2, 3)) + 1, rtol=1e-6, atol=0)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_logits_come_beside_the_features_where_there_are_any() -> None:
    found = extract_features(Colors(), dataset(n=5))
    again = extract_features(Colors(), dataset(n=5))

    assert found.logits is not None
    assert again.logits is not None
    assert torch.equal(found.logits, found.features[:, :2])
    assert torch.equal(again.logits, found.logits)
    assert extract_features(EncoderExtractor(load_encoder("mini")), pixels(n=2)).logits is None


@pytest.mark.parametrize("batch_size", [1, 7, 16, 500])
def test_features_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    extractor, images = EncoderExtractor(load_encoder("mini")), pixels(n=19)

    found = extract_features(extractor, images, batch_size=batch_size).features

    # kernels differ with the batch in their last bits
    torch.testing.assert_close(found, extractor.features(images.float() / 255), rtol=1e-5, atol=1e-5)


def test_streamed_statistics_are_those_of_all_features_and_hold_one_batch_at_a_time() -> None:
    extractor, images = Colors(), pixels(n=1100)

    found = feature_statistics(extractor, images, batch_size=50)

    expected = gaussian(2 * (images.double() / 255).mean((2, 3)) + 1)
    assert found.count == 1100
    assert max(extractor.batches) == 50
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-4, atol=1e-9)  # float32 features


def test_a_dataset_is_extracted_once_also_by_another_object_of_the_same_content() -> None:
    first, second = Colors(), Colors()

    for compute in (extract_features, feature_statistics):
        compute(first, dataset(n=40))
        before = list(first.batches)
        compute(second, dataset(n=40))
        compute(first, dataset(n=40))

        assert first.batches == before
        assert second.batches == []


def test_statistics_from_the_cache_are_the_same_bytes() -> None:
    made, read = (feature_statistics(Colors(), dataset(n=30)) for _ in range(2))

    assert torch.equal(made.mean, read.mean)
    assert torch.equal(made.scatter, read.scatter)
    assert made.count == read.count


def test_other_weights_other_images_and_no_reuse_miss_the_cache() -> None:
    extractor = Colors()
    extract_features(extractor, dataset(n=40))
    extractor.batches.clear()

    extract_features(extractor, dataset(n=40, seed=1))
    extract_features(extractor, dataset(n=40).subset(torch.arange(39)))
    extract_features(other := Colors("b" * 64), dataset(n=40))
    extract_features(again := Colors(), dataset(n=40), reuse=False)

    assert [sum(one.batches) for one in (extractor, other, again)] == [79, 40, 40]


def test_a_damaged_cache_file_is_computed_again(own_cache: Path) -> None:
    expected = extract_features(Colors(), dataset(n=10)).features
    (file,) = (own_cache / "features").iterdir()
    file.write_bytes(file.read_bytes()[:-9])

    extractor = Colors()

    assert torch.equal(extract_features(extractor, dataset(n=10)).features, expected)
    assert extractor.batches == [10]
    assert torch.equal(extract_features(Colors(), dataset(n=10)).features, expected)


def test_tensors_are_never_stored(own_cache: Path) -> None:
    extract_features(Colors(), pixels(n=4))

    assert not (own_cache / "features").exists()


@pytest.mark.parametrize(
    ("images", "batch_size", "message"),
    [
        (torch.zeros(0, 3, 16, 16), 16, "got 0 and 16"),
        (torch.zeros(2, 3, 16, 16), 0, "got 2 and 0"),
        (torch.full((2, 3, 16, 16), 255.0), 16, r"must lie in \[0, 1\]"),
        (torch.full((2, 3, 16, 16), float("nan")), 16, "free of NaN"),
        (torch.zeros(2, 16, 16), 16, r"must be \(N, 3, H, W\)"),
    ],
)
def test_images_that_cannot_be_extracted_are_refused(images: Tensor, batch_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract_features(Colors(), images, batch_size=batch_size)


def test_no_images_and_no_batch_are_errors_a_user_can_read() -> None:
    with pytest.raises(UsageError):
        feature_statistics(Colors(), torch.zeros(0, 3, 16, 16))
