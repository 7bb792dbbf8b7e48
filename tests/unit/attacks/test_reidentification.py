from dataclasses import replace

import pytest
import torch

from fdgsec.attacks.reidentification.attack import TRANSFORMS, Reidentification, _compress, _copies, _crop
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleStatistics
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import resized
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Ranking
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = Reidentification()
VARIANTS = ["known", "float16", "2 decimals", "random crop", "jpeg 75"]


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def facts(*kinds: str) -> TargetFacts:
    return TargetFacts(artifact_kinds=frozenset(kinds), clients=3, images_per_client=700, classes=7, profile="quick")


def test_the_run_itself_and_rows_in_number_are_asked_for():
    plan = ATTACK.plan(facts("ImageStyles", "StyleBank"))

    assert [(r.kind, r.gallery, r.per_class) for r in plan] == [
        ("released", 1000, 0),
        ("as_if_released", 0, 285),
    ]  # of 7 classes, 1,995 in all


def test_spectra_are_large_and_asked_for_in_smaller_numbers():
    plan = ATTACK.plan(replace(facts("Amplitudes"), pooled=False))

    assert [(r.kind, r.gallery, r.per_class) for r in plan] == [("released", 1000, 0), ("as_if_released", 0, 10)]


def test_spectra_that_are_pooled_are_said_to_be():
    with pytest.raises(UsageError, match="means over a client's images"):
        ATTACK.plan(facts("Amplitudes"))


@pytest.mark.parametrize("seed", range(3))
def test_planted_colors_are_found_through_every_copy(seed: int):
    planted_control = planted(seed)
    guess = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))

    controls = positive_control(planted_control, guess, Judge(bootstrap_repeats=50), stream(seed, "attack"))

    assert [control.measurement.slice["transform"] for control in controls] == [*VARIANTS, *TRANSFORMS]  # and spectra
    assert all(control.passed for control in controls), [control.measurement.value for control in controls]
    assert controls[0].measurement.value == 1


def test_exchanged_rows_are_not_significant():
    failures = rows = 0
    for seed in range(10):
        planted_control = planted(seed)
        guess = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        nulls = Judge().null(
            guess, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        failures += sum(not control.passed for control in negative_controls(nulls, comparisons=len(nulls)))
        rows += len(nulls)

    assert rows == 60
    assert failures <= 3  # each fails with probability .0083


def test_copies_are_made_for_the_runs_own_rows_only():
    planted_control = planted()
    case = replace(planted_control.cases[0], question="as_if_released")

    guess = ATTACK.run([case], planted_control.knowledge, stream(0, "attack"))

    assert [dict(a.slice) for a in guess] == [{"rows": "as_if_released", "transform": v} for v in TRANSFORMS]


def test_equal_candidates_share_the_credit():
    planted_control = planted()
    gallery = planted_control.cases[0].candidates
    assert gallery is not None
    twice = gallery.subset(torch.arange(60).repeat(2))
    doubled = replace(twice, ids=tuple(f"planted/{i}" for i in range(120)))

    guess = ATTACK.run(
        [replace(planted_control.cases[0], candidates=doubled)], planted_control.knowledge, stream(0, "attack")
    )
    rows = Judge(bootstrap_repeats=50).measure(
        guess[:1], planted_control.cases, planted_control.truths, stream(0, "attack")
    )

    assert (rows[0].name, rows[0].value) == ("top1", 0.5)


def test_distances_are_those_of_whitened_styles():
    planted_control = planted()

    answer = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))[0]

    assert isinstance(answer, Ranking)
    assert answer.distances.shape == (20, 60)
    nearest = answer.distances.argmin(1)
    assert nearest.tolist() == list(range(20))
    assert float(answer.distances.gather(1, nearest.unsqueeze(1)).max()) < 1e-2 * float(answer.distances.median())


def spectral(seed: int = 0, **changes: object) -> Case:
    """The plant's released spectra, or what `changes` make of the question."""
    return replace(planted(seed).cases[1], **changes)  # type: ignore[arg-type]


def test_released_spectra_are_the_candidates_own_and_found_exactly():
    case = spectral()
    gallery = case.candidates
    assert gallery is not None

    answer = ATTACK.run([case], planted().knowledge, stream(0, "attack"))[0]

    assert isinstance(answer, Ranking)
    assert answer.distances.shape == (20, 60)
    nearest = answer.distances.min(1)
    assert nearest.indices.tolist() == list(range(20))
    assert float(nearest.values.max()) < 1e-3 * float(answer.distances.median())


def test_spectra_in_a_bank_are_found_by_their_owner():
    case = spectral()
    (message,) = case.views[0].messages
    assert isinstance(message.artifact, Amplitudes)
    others = torch.rand(5, 3, 32, 17, generator=stream(0, "attack"))
    bank = Amplitudes(values=torch.cat([others, message.artifact.values]), owner=torch.tensor([7] * 5 + [0] * 20))
    shared = upload(bank, sender="server")

    own, read = (ATTACK.run([replace(case, views=(view,))], planted().knowledge, stream(0, "attack")) for view in (case.views[0], shared))  # fmt: skip

    for one, other in zip(own, read, strict=True):
        assert isinstance(one, Ranking)
        assert isinstance(other, Ranking)
        assert torch.equal(one.distances, other.distances)


def test_spectra_of_resized_images_are_found_among_candidates_of_any_size():
    case = spectral()
    gallery = case.candidates
    assert gallery is not None
    seen = amplitudes(as_float(resized(gallery.pixels(torch.arange(20)), 24)))
    released = Amplitudes(values=seen, owner=torch.zeros(20, dtype=torch.int64))

    answer = ATTACK.run([replace(case, views=(upload(released),))], planted().knowledge, stream(0, "attack"))[0]

    assert isinstance(answer, Ranking)
    assert answer.distances.argmin(1).tolist() == list(range(20))


def test_a_sum_of_more_pixels_than_half_precision_counts_is_still_a_number():
    bright = Amplitudes(values=torch.full((2, 3, 32, 17), 1e5), owner=torch.zeros(2, dtype=torch.int64))

    answers = ATTACK.run([spectral(views=(upload(bright),))], planted().knowledge, stream(0, "attack"))

    assert [answer.slice["transform"] for answer in answers] == list(TRANSFORMS)
    assert all(isinstance(a, Ranking) and bool(a.distances.isfinite().all()) for a in answers)


def test_a_victim_that_sent_no_spectrum_is_named():
    other = upload(Amplitudes(values=torch.ones(1, 3, 32, 17), owner=torch.tensor([4])), sender="client:4")

    with pytest.raises(UsageError, match="no spectrum of client:0"):
        ATTACK.run([spectral(views=(other,))], planted().knowledge, stream(0, "attack"))


def test_a_crop_keeps_size_and_range_and_stays_inside_the_image():
    ramp = torch.arange(40, dtype=torch.uint8).expand(3, 30, 40) * 5  # left 0 .. right 195

    crops = [_crop(ramp, stream(seed, "attack")) for seed in range(50)]

    widths = [(float(c[0, 0, -1]) - float(c[0, 0, 0])) / 195 for c in crops]
    assert {tuple(c.shape) for c in crops} == {(3, 30, 40)}
    assert {c.dtype for c in crops} == {torch.uint8}
    assert 0.83 < min(widths) < 0.93  # sqrt(.8) = .89 of the width, less half a pixel a side
    assert max(widths) > 0.95


def test_compression_changes_pixels_a_little():
    picture = torch.randint(0, 256, (3, 4, 4), generator=stream(0, "attack")).repeat_interleave(8, 1).repeat_interleave(8, 2).to(torch.uint8)  # fmt: skip

    copy = _compress(picture)

    gap = (copy.float() - picture.float()).abs().mean()
    assert copy.shape == picture.shape
    assert 0 < float(gap) < 30


def test_a_copied_gallery_keeps_order_ids_and_labels():
    gallery = planted().cases[0].candidates
    assert gallery is not None

    copied = _copies(gallery, "jpeg 75", stream(0, "attack"))

    assert list(copied.ids) == list(gallery.ids)
    assert isinstance(copied.store, torch.Tensor)
    assert isinstance(gallery.store, torch.Tensor)
    assert copied.store.data_ptr() != gallery.store.data_ptr()
    apart = (copied.pixels().float() - gallery.pixels().float()).abs().mean((1, 2, 3))
    shifted = (copied.pixels().float() - gallery.pixels().roll(1, 0).float()).abs().mean((1, 2, 3))
    assert float(apart.max()) < float(shifted.median())


def test_rows_without_a_gallery_are_refused():
    planted_control = planted()

    with pytest.raises(UsageError, match="without any"):
        ATTACK.run([replace(planted_control.cases[0], candidates=None)], planted_control.knowledge, stream(0, "attack"))


def test_pooled_releases_are_outside_its_reach():
    view = upload(StyleStatistics(mean=torch.zeros(4), std=torch.ones(4)))

    assert not {message.artifact.kind for message in view.messages} & ATTACK.reads
    assert upload(ImageStyles(mean=torch.zeros(1, 4), std=torch.ones(1, 4))).messages[0].artifact.kind in ATTACK.reads
