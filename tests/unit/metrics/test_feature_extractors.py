import math
import socket
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fdgsec.metrics.feature_extractors import (
    EXTRACTORS,
    BackboneExtractor,
    EncoderExtractor,
    Extractor,
    InceptionExtractor,
    extractor_named,
)
from fdgsec.nn.networks import weights
from fdgsec.nn.networks.classifiers import BACKBONES, build_classifier
from fdgsec.nn.styles.encoders import SqueezeStyle, load_encoder
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import stream


def pictures(*, seed: int = 0, n: int = 3, side: int = 64) -> Tensor:
    return torch.rand(n, 3, side, side, generator=stream(seed, "attack", "pictures"))


@cache
def random_state(name: str) -> dict[str, Tensor]:
    """Draw weights of the published shapes, at the scale that keeps activations near 1."""
    rng, state = stream(0, "world", name), {}
    for key, shape in weights.expected_shapes(name).items():
        if key.endswith("num_batches_tracked"):
            state[key] = torch.zeros(shape, dtype=torch.int64)
        elif len(shape) < 2:  # biases and running means near 0; scales and running variances near 1
            level = 1.0 if key.endswith(("running_var", "weight")) else 0.0
            state[key] = level + 0.1 * torch.rand(shape, generator=rng)
        else:
            state[key] = torch.randn(shape, generator=rng) * math.sqrt(2 / math.prod(shape[1:]))
    return state


@cache
def inception() -> InceptionExtractor:
    return InceptionExtractor(random_state("inception_fid"), name="inception_random")


def store(name: str, folder: Path) -> None:
    file = folder / f"{name}-source.safetensors"
    save_file(random_state(name), file)
    weights.import_file(name, file)


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.medium
def test_inception_equals_pytorch_fids_own_network_on_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_fid import inception as theirs

    images, state = pictures(n=2, side=96), random_state("inception_fid")
    monkeypatch.setattr(theirs, "load_state_dict_from_url", lambda *_, **__: state)
    with torch.random.fork_rng(devices=[]):
        network = theirs.InceptionV3().eval()

    found = inception().extract(images)

    with torch.no_grad():
        features = network(images)[0].flatten(1)
    torch.testing.assert_close(found.features, features, atol=1e-5, rtol=1e-5)
    assert found.features.shape == (2, 2048)
    assert float(features.std()) > 0.05  # the weights are not so small that anything would agree
    assert found.logits is not None
    torch.testing.assert_close(found.logits, features @ state["fc.weight"].T, atol=1e-5, rtol=1e-5)


@pytest.mark.medium
def test_images_of_inceptions_own_size_are_not_resized_in_place() -> None:
    images = pictures(n=1, side=299).contiguous(memory_format=torch.channels_last)
    before = images.clone()

    inception().extract(images)

    assert torch.equal(images, before)


def test_an_encoder_gives_the_average_over_positions_of_features_of_unit_length() -> None:
    encoder, images = load_encoder("mini"), pictures(side=32)

    features = EncoderExtractor(encoder).features(images)

    for row, maps in zip(features, encoder.encode(images), strict=True):
        positions = [maps[:, top, left] for top in range(8) for left in range(8)]
        expected = sum(cell / float(cell.norm()) for cell in positions) * (math.sqrt(256) / 64)
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


def test_an_encoder_without_any_response_gives_zeros() -> None:
    encoder = SqueezeStyle({key: torch.zeros_like(tensor) for key, tensor in random_state("squeezenet1_0").items()})

    assert EncoderExtractor(encoder).features(pictures(n=1)).tolist() == [[0.0] * 256]


def test_a_backbone_gives_what_its_head_sees() -> None:
    classifier = build_classifier("tiny", 5, rng=stream(0, "world", "tiny"))
    images = pictures()

    extractor = BackboneExtractor(classifier, name="tiny_random")

    torch.testing.assert_close(classifier.head(extractor.features(images)), classifier(images), atol=1e-5, rtol=1e-5)
    with pytest.raises(UsageError, match="tiny_random gives features only"):
        extractor.logits(images)


def test_a_fingerprint_follows_the_weights_and_not_the_unused_head() -> None:
    build = partial(build_classifier, "tiny", rng=stream(0, "world", "tiny"))
    first, other = build(5), build(5)  # the second draw from one stream: other weights
    twin = build_classifier("tiny", 9, rng=stream(0, "world", "tiny"))

    names = [BackboneExtractor(network, name="tiny").fingerprint for network in (first, other, twin)]

    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize("name", ["inception", "vgg19", "squeezenet", "resnet18", "mini"])
@pytest.mark.medium
def test_a_stored_extractor_is_built_without_network_or_global_randomness(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    needed = {"inception": ["inception_fid"], "vgg19": ["adain_vgg", "adain_decoder"], "squeezenet": ["squeezenet1_0"]}
    for weight in needed.get(name, [name] if name in weights.CATALOG else []):
        store(weight, tmp_path)
    no_network(monkeypatch)
    before = torch.get_rng_state()

    extractor = extractor_named(name)
    features = extractor.features(pictures(n=2))

    assert features.shape == (2, extractor.dimension)
    assert bool(features.isfinite().all())
    assert not features.requires_grad
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_can_extract_without_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)

    extractor = BackboneExtractor(build_classifier(name, 1, rng=stream(0, "world", name)), name=f"{name}_random")

    assert extractor.features(pictures(n=1)).shape == (1, extractor.dimension)


@pytest.mark.parametrize("name", [name for name in EXTRACTORS if name not in ("mini", "pixels")])
def test_weights_that_are_not_stored_are_an_error_and_never_a_download(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    no_network(monkeypatch)

    with pytest.raises(WeightsUnavailableError, match=r"fdgsec weights (fetch|import-package)"):
        extractor_named(name)


@pytest.mark.medium
def test_only_the_published_inception_is_called_inception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    store("inception_fid", tmp_path)

    name = extractor_named("inception").name

    assert name == f"inception_{weights.record('inception_fid').sha256[:8]}"


def test_an_unknown_extractor_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'inception'"):
        extractor_named("inceptoin")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (torch.full((1, 3, 32, 32), math.nan), "free of NaN"),
        (torch.full((1, 3, 32, 32), math.inf), r"must lie in \[0, 1\]"),
        (torch.full((1, 3, 32, 32), 200.0), r"must lie in \[0, 1\]"),
        (torch.full((1, 3, 32, 32), -0.5), r"must lie in \[0, 1\]"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "divide bytes by 255"),
        (torch.zeros(1, 1, 32, 32), r"must be \(N, 3, H, W\)"),
    ],
)
def test_images_that_no_network_was_made_for_are_refused(broken: Tensor, message: str) -> None:
    extractors: list[Extractor] = [inception(), EncoderExtractor(load_encoder("mini"))]

    for extractor in extractors:
        with pytest.raises(ValueError, match=message):
            extractor.extract(broken)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_images_may_lie_elsewhere_than_the_extractor() -> None:
    images = pictures(n=2)
    moved = InceptionExtractor(random_state("inception_fid"), name="inception_random", device="cuda")

    for given in (images, images.cuda()):
        features = moved.features(given)
        assert features.device.type == "cuda"
        # cuDNN convolves in TF32, with 10 bits of mantissa, unless told otherwise
        torch.testing.assert_close(features.cpu(), inception().features(images), atol=2e-2, rtol=2e-2)
