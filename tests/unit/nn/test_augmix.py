"""AugMix against torchvision's, and the laws that its draws follow."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import AugMix as LibraryAugMix

from fdgsec.nn.training.augmix import OPERATIONS, SIGNED, AugMix, Operation, blend_chains, dirichlet, magnitude
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def pixels(count: int = 3, height: int = 20, width: int = 26) -> Tensor:
    shape = (count, 3, height, width)
    return torch.randint(0, 256, shape, generator=stream(0, "world", "pixels")).to(torch.uint8)


@dataclass
class Record:
    """What torchvision drew: the Dirichlet draws in order, and the operations in order."""

    weights: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class Recorded(LibraryAugMix):
    """torchvision's AugMix that writes down its draws; chains have two operations, so that they can be told apart."""

    def __init__(self, record: Record) -> None:
        super().__init__(chain_depth=2)
        self.record = record

    def _sample_dirichlet(self, params: Tensor) -> Tensor:
        self.record.weights.append(super()._sample_dirichlet(params))
        return self.record.weights[-1].clone()

    def _apply_image_or_video_transform(self, image, transform_id, magnitude, interpolation, fill):  # type: ignore[no-untyped-def]
        self.record.operations.append(Operation(name=transform_id, magnitude=magnitude))
        return super()._apply_image_or_video_transform(image, transform_id, magnitude, interpolation, fill)


def test_torchvisions_own_draws_give_torchvisions_images_bit_by_bit():
    images, seen = pixels(), set()

    for number in range(40):
        record = Record()
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(stream(0, "world", "replay", number).get_state())
            expected = Recorded(record)(images)
        chains = [record.operations[2 * i : 2 * i + 2] for i in range(3)]
        original, weights = record.weights
        shares = (original[:, 1:] * weights).unbind(1)
        assert torch.equal(blend_chains(images, original=original[:, 0], shares=shares, chains=chains), expected)
        seen |= {operation.name for operation in record.operations}

    assert seen == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_magnitude_is_torchvisions(name: str):
    space, signed = LibraryAugMix._AUGMENTATION_SPACE[name]
    table = space(10, 20, 26)
    expected = [0.0] * 10 if table is None else [float(value) for value in table]

    assert [magnitude(name, level, (20, 26)) for level in range(10)] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert (name in SIGNED) == signed


def test_there_are_torchvisions_thirteen_operations():
    assert set(OPERATIONS) == set(LibraryAugMix._AUGMENTATION_SPACE)
    assert len(OPERATIONS) == 13


def test_operations_levels_signs_and_lengths_are_drawn_evenly():
    rng, augmix = stream(0, "world", "chains"), AugMix()
    chains = [augmix.chain((20, 26), rng) for _ in range(6000)]
    operations = [operation for chain in chains for operation in chain]

    lengths = Counter(len(chain) for chain in chains)
    names = Counter(operation.name for operation in operations)
    turns = Counter(round(operation.magnitude, 3) for operation in operations if operation.name == "Rotate")

    # four standard deviations of each count
    assert set(lengths) == {1, 2, 3}
    assert all(abs(count - 2000) < 4 * (6000 * 2 / 9) ** 0.5 for count in lengths.values())
    total = len(operations)
    assert all(abs(names[name] - total / 13) < 4 * (total * 12 / 169) ** 0.5 for name in OPERATIONS)
    assert set(turns) == {0.0, 3.333, -3.333, 6.667, -6.667}  # levels below severity 3, either way
    assert all(abs(turns[turn] - names["Rotate"] / 6) < 4 * (names["Rotate"] * 5 / 36) ** 0.5 for turn in turns if turn)


def test_dirichlet_draws_sum_to_one_with_the_moments_of_their_law():
    even, sharp = (dirichlet(20000, parts, alpha, stream(0, "world", "d")) for parts, alpha in ((3, 1.0), (2, 0.1)))

    assert float((even.sum(1) - 1).abs().max()) < 1e-6
    assert even.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.007)  # 4 sd: 4 sqrt(1/18 / 20000)
    assert even.var(0).tolist() == pytest.approx([1 / 18] * 3, rel=0.05)
    assert sharp.var(0).tolist() == pytest.approx([0.25 / 1.2] * 2, rel=0.05)  # Beta(.1, .1): mostly near 0 or 1
    assert bool(torch.isfinite(sharp).all())


def test_the_same_stream_gives_the_same_images_and_torchs_own_stream_is_left_alone():
    images, before = pixels(), torch.random.get_rng_state()

    first, again, other = (AugMix()(images, stream(0, "world", name)) for name in ("a", "a", "b"))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_training_in_half_precision_around_it_changes_no_image():
    images, augmix = pixels(), AugMix(severity=10)

    for number in range(12):  # among their operations are all that sample a grid
        plain = augmix(images, stream(0, "world", "a", number))
        with torch.autocast("cpu", torch.bfloat16):
            inside = augmix(images, stream(0, "world", "a", number))
        assert torch.equal(inside, plain)


def test_images_of_one_batch_share_their_chains_and_differ_in_their_weights():
    twins = pixels(1).expand(6, -1, -1, -1)

    made = AugMix(width=1)(twins, stream(0, "world", "a")).double() - twins.double()

    # with one chain every result lies on the line from the image to its chained version, up to the cut to 8 bits
    flat = made.flatten(1)
    longest = flat[flat.norm(dim=1).argmax()]
    along = (flat @ longest) / longest.square().sum()
    assert float((flat - along[:, None] * longest).abs().max()) <= 2.0
    assert len({round(float(share), 3) for share in along}) == 6


def test_chains_per_image_are_those_of_one_image_after_the_other():
    images, rng = pixels(4), stream(0, "world", "a")

    made = AugMix(per_image=True)(images, stream(0, "world", "a"), scale=torch.tensor([1.0, 0.5, 0.0, 1.0]))

    scales = [torch.tensor([value]) for value in (1.0, 0.5, 0.0, 1.0)]
    single = [AugMix()(images[i : i + 1], rng, scale=scales[i]) for i in range(4)]
    assert torch.equal(made, torch.cat(single))
    whole = [AugMix(per_image=True)(images, stream(0, "world", "a"), scale=scale) for scale in (None, torch.ones(4))]
    assert torch.equal(*whole)


def test_a_scale_multiplies_each_images_share_of_the_original():
    images, scale = pixels(3), torch.tensor([1.0, 0.4, 0.0])

    made = AugMix(width=2, depth=1)(images, stream(0, "world", "a"), scale=scale)

    rng = stream(0, "world", "a")  # the same draws in the same order
    share, weights = dirichlet(3, 2, 1.0, rng)[:, 0], dirichlet(3, 2, 1.0, rng)
    chains = [AugMix(depth=1).chain((20, 26), rng) for _ in range(2)]
    shares = ((1 - share * scale)[:, None] * weights).unbind(1)
    assert torch.equal(made, blend_chains(images, original=share * scale, shares=shares, chains=chains))


def test_an_image_that_is_all_original_comes_back():
    images = pixels()

    made = blend_chains(images, original=torch.ones(3), shares=[torch.zeros(3)], chains=[[Operation(name="Equalize")]])

    assert torch.equal(made, images)


def test_a_drawn_width_is_one_two_or_three():
    rng = stream(0, "world", "w")

    assert {AugMix(width=-1)._drawn(-1, rng) for _ in range(60)} == {1, 2, 3}
    assert AugMix(width=-1)(pixels(), stream(0, "world", "a")).shape == (3, 3, 20, 26)


def test_memory_layout_changes_nothing():
    images = pixels()

    plain, last = (
        AugMix()(given, stream(0, "world", "a"))
        for given in (images, images.contiguous(memory_format=torch.channels_last))
    )

    assert torch.equal(plain, last)


@pytest.mark.parametrize("wrong", [{"severity": 0}, {"severity": 11}, {"width": 0}, {"depth": -2}, {"alpha": 0.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]):
    with pytest.raises(UsageError, match="augmix needs severity"):
        AugMix(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("images", [torch.zeros(2, 3, 8, 8), torch.zeros(3, 8, 8, dtype=torch.uint8)])
def test_anything_but_a_batch_of_bytes_is_refused(images: Tensor):
    with pytest.raises(ValueError, match="augmix takes uint8 images"):
        AugMix()(images, stream(0, "world", "a"))
