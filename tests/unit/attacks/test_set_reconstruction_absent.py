"""Set reconstruction where members are missing from the gallery: how many they are, and who the others are."""

from collections import OrderedDict
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction import absent_members
from fdgsec.attacks.set_reconstruction import box_least_squares as box
from fdgsec.attacks.set_reconstruction import list_equations as equations
from fdgsec.attacks.set_reconstruction import list_solver as solving
from fdgsec.attacks.set_reconstruction.absent_members import distribution_of
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, list_equations
from fdgsec.attacks.set_reconstruction.list_solver import list_solver, propagated_part
from fdgsec.attacks.set_reconstruction.padded_matrices import padded_side
from fdgsec.attacks.statistics.domain_populations import Population
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream

NUMBERS, AUXILIARY = 80, 100


def draws(count: int, rng: np.random.Generator) -> Tensor:
    """Images whose principal components have spreads from 1 down to .001, as those of styles have."""
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((NUMBERS, NUMBERS)))[0]
    return torch.from_numpy(rng.standard_normal((count, NUMBERS)) * np.logspace(0, -3, NUMBERS) @ turned)


def partial_gallery(
    *, images: int, absent: int, seed: int, noise: float = 1e-6, members: bool = True
) -> tuple[ListEquations, Tensor]:
    """A mean over `images`, of which `absent` are no candidates, among as many others as there are members left.

    `noise` is the deviation of the mean's error; without `members`, none of those behind the mean is a candidate."""
    rng = np.random.default_rng([images, absent, seed])
    reference, behind, others = draws(AUXILIARY, rng), draws(images, rng), draws(images, rng)
    population = Population(
        whiten=fit_whitening(reference), about=reference.mean(0), reference=reference, others=(draws(AUXILIARY, rng),)
    )
    listed = images - absent
    shown = torch.cat([(behind if members else draws(images, rng))[:listed], others[:listed]])
    error = noise * torch.from_numpy(rng.standard_normal(NUMBERS))
    known = list_equations(
        shown, behind.mean(0) + error, population, noise=torch.full((NUMBERS,), noise).double(), images=images
    )
    return known, torch.arange(len(shown)) < listed


@pytest.mark.parametrize("absent", [4, 10, 20, 30])
def test_the_share_of_absent_members_is_not_biased(absent: int):
    """Shrunk toward the identity, the smallest variances are too large by orders, and half as many seemed absent."""
    found = [partial_gallery(images=40, absent=absent, seed=seed)[0].likeliest_absent() for seed in range(12)]
    assert abs(np.mean(found) - absent) < 3  # of 40: .075; the standard error of the mean is 1 or less


def test_a_list_that_errors_hide_is_not_taken_for_absent_members():
    """An error of a tenth of the mean's own spread: with all members among the candidates, few seem absent."""
    found = [partial_gallery(images=40, absent=0, seed=seed, noise=0.01)[0].likeliest_absent() for seed in range(8)]
    assert np.mean(found) < 2


def test_members_of_a_partial_gallery_are_ranked_by_what_they_explain():
    """Absent members are white in coordinates of their own covariance; weights are marginals of 0 and 1 there."""
    areas, listed = [], []
    for seed in range(8):
        known, members = partial_gallery(images=40, absent=4, seed=seed)
        found = propagated_part(known, known.likeliest_absent())
        areas.append(auc(found.scores()[members], found.scores()[~members]))
        listed.append(found.listed)
        assert found.listed + found.absent == 40
    assert np.mean(areas) > 0.93  # .89 with a covariance that is shrunk toward the identity
    assert abs(np.mean(listed) - 36) < 2


def test_a_solver_propagates_where_half_of_the_members_are_absent():
    """There are as many candidates as members, and none of the lists that bounds find is believed."""
    known, members = partial_gallery(images=40, absent=20, seed=0)
    found = list_solver(known, stream(0, "attack")).solved(known)
    assert np.array_equal(found.weights, propagated_part(known, known.likeliest_absent()).weights)
    assert auc(found.scores()[members], found.scores()[~members]) > 0.7
    assert abs(found.listed - 20) < 6


def test_releases_of_others_leave_no_evidence_in_partial_galleries():
    """Nearly all members are found to be absent, and those who are called members are not ranked first."""
    areas, listed = [], []
    for seed in range(10):
        known, asked = partial_gallery(images=40, absent=10, seed=seed, members=False)
        found = propagated_part(known, known.likeliest_absent())
        areas.append(auc(found.scores()[asked], found.scores()[~asked]))
        listed.append(found.listed)
    assert 0.4 < np.mean(areas) < 0.6  # of 30 and 30, ten times: a standard deviation of .024
    assert np.mean(listed) < 8


@pytest.mark.parametrize("noise", [1e-6, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("absent", [0, 1, 5])
def test_a_list_is_ruled_out_only_where_all_lists_leave_too_large_a_residual(noise: float, absent: int):
    """All lists of 5 among 14 candidates, 2,002 of them."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        records = rng.standard_normal((14 + absent, 20))
        members = np.concatenate([np.arange(5 - absent), np.arange(14, 14 + absent)])
        error = noise * rng.standard_normal(20)
        known = ListEquations(
            candidates=records[:14], release=records[members].mean(0) + error, noise=np.full(20, noise),
            spread=records.std(0), images=5, population=lambda records=records: distribution_of(records),
        )  # fmt: skip

        ruled_out, sought = known.solved(1.0, absent=0).ruled_out, known.sought(1.0)

        means = records[np.array(list(combinations(range(14), 5)))].mean(1)
        smallest = np.square((means - known.release) / noise).sum(1).min()
        assert not (ruled_out and smallest <= known.largest_residual)
        assert ruled_out or absent == 0 or noise > 1e-6  # and it is ruled out where errors are that small
        assert sought.ruled_out == (ruled_out and sought.complete is None and known.telling())


@pytest.mark.medium
def test_where_every_list_is_ruled_out_none_is_looked_for(monkeypatch: pytest.MonkeyPatch):
    """The answer is the same as if one had been looked for."""
    known, _ = partial_gallery(images=20, absent=4, seed=0)
    looked_for, look = list[int](), solving.propagations
    monkeypatch.setattr(
        solving, "propagations", lambda one, attempts: looked_for.append(one.images) or look(one, attempts)
    )
    assert known.solved(1.0, absent=None).ruled_out

    found = list_solver(known, stream(0, "attack")).solved(known)

    assert not looked_for
    solver = list_solver(known, stream(0, "attack"))
    assert solver.rehearsal.exact is not None
    assert solver._only_list(known) is None
    assert np.array_equal(found.weights, propagated_part(known, known.likeliest_absent()).weights)


def test_weights_within_the_box_are_not_sought_where_they_do_not_decide(monkeypatch: pytest.MonkeyPatch):
    """Members are absent, so that the marginals of propagation are the answer: one solve, which is stopped early."""
    known, _ = partial_gallery(images=20, absent=4, seed=0)
    solver, solved, sought = list_solver(known, stream(0, "attack")), list[float](), equations.box_least_squares
    monkeypatch.setattr(
        equations, "box_least_squares",
        lambda *given, too_large, **more: solved.append(too_large) or sought(*given, too_large=too_large, **more),
    )  # fmt: skip

    found = solver.solved(known)

    assert found.absent > 0
    assert len(solved) == 1
    assert np.isfinite(solved).all()


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.005, 0.05])
def test_a_list_that_is_found_early_is_the_one_that_is_found_in_the_end(noise: float, monkeypatch: pytest.MonkeyPatch):
    """Where one wrong image would show, the search ends with the first list that explains the release."""
    steps, lengths = list[int](), box._lengths
    monkeypatch.setattr(box, "_lengths", lambda *given: steps.append(0) or lengths(*given))
    for seed in range(4):
        known, members = partial_gallery(images=20, absent=0, seed=seed, noise=noise)
        early, begun = known.sought(1.0).complete, len(steps)
        whole, ended = known._weighed(1.0, 0), len(steps)
        steps.clear()

        told_apart = known.telling() and known.told_apart()
        assert told_apart == (noise < 0.005)
        if told_apart:
            assert early is not None
            assert torch.equal(early.believed(), whole.believed())
            assert torch.equal(early.believed(), members)
            assert not early.ruled_out
            assert begun < 0.7 * (ended - begun)


def gallery(
    noise: float, rng: np.random.Generator, *, shift: float = 0.0
) -> tuple[ListEquations, npt.NDArray[np.bool_]]:
    """The mean of the first 20 of 60 images of 60 numbers, and who is behind it."""
    records, members = rng.standard_normal((60, 60)) + shift, np.arange(60) < 20
    known = ListEquations(
        candidates=records, release=np.zeros(60), noise=np.full(60, noise), spread=np.ones(60), images=20,
        population=lambda: distribution_of(records),
    )  # fmt: skip
    return known, members


def released(known: ListEquations, members: npt.NDArray[np.bool_], rng: np.random.Generator) -> ListEquations:
    return replace(known, release=known.candidates[members].mean(0) + known.noise * rng.standard_normal(60))


def certain(known: ListEquations) -> bool:
    return set(np.unique(known._weighed(1.0, 0, to_explain=True).weights)) == {0.0, 1.0}


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("shift", [0.0, 10.0])
@pytest.mark.parametrize("alike", ["", "twins", "nearly", "two and two"])
def test_a_list_is_not_certain_where_others_explain_the_release(noise: float, shift: float, alike: str):
    """The same image twice among the candidates, or nearly so; or two that replace two others."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        known, members = gallery(noise, rng, shift=shift)
        records = known.candidates
        if alike == "twins":
            records[-1] = records[0]
        elif alike == "nearly":  # the mean moves by a tenth of its error
            records[-1] = records[0] + 0.1 * noise * 20 * rng.standard_normal(60)
        elif alike:
            apart = rng.standard_normal(60)
            records[-2:] = records[0] + apart, records[1] - apart

        assert certain(released(known, members, rng)) == (not alike and noise > 1e-9)  # where rounding hides the prior


def test_a_list_is_not_certain_where_one_wrong_image_would_not_show():
    rng = np.random.default_rng(0)
    known, members = gallery(0.012, rng)
    assert not known.told_apart()

    assert not certain(released(known, members, rng))


@pytest.mark.parametrize("numbers", [60, 64])
def test_the_evidence_is_the_density_of_the_release(numbers: int):
    """Also where matrices are padded: 64 numbers make sides of 72."""
    rng = np.random.default_rng(0)
    records = rng.standard_normal((30, numbers)) * np.logspace(0, -2, numbers)
    known = ListEquations(
        candidates=records, release=records[:10].mean(0), noise=np.full(numbers, 1e-3), spread=records.std(0), images=12,
        population=lambda: distribution_of(records),
    )  # fmt: skip
    others, listed, share = distribution_of(records), 9.5, 9.5 / 30
    scatter = (records - records.mean(0)).T @ (records - records.mean(0))
    covariance = (2.5 + 2.5**2 / 30) * others.covariance + share * (1 - share) * 30 / 29 * scatter
    covariance += np.diag((12 * known.noise) ** 2)
    off = 12 * known.release - listed * records.mean(0) - 2.5 * others.mean
    expected = -0.5 * (off @ np.linalg.solve(covariance, off) + np.linalg.slogdet(covariance)[1])

    whole = np.eye(padded_side(numbers))
    found = [known._evidence(2.5, whole=whole, scratch=np.empty((numbers, numbers))) for _ in range(2)]

    assert found == pytest.approx([expected, expected], rel=1e-6)


def test_variances_are_those_of_images_that_components_were_not_found_with():
    """Fewer images than numbers: held-out ones are white on average, which they are not by linear shrinkage."""
    rng = np.random.default_rng(0)
    images, related, fresh = (draws(count, rng).numpy() for count in (60, 60, 400))

    found = distribution_of(images, [related])

    white = np.linalg.solve(np.linalg.cholesky(found.covariance), (fresh - found.mean).T)
    assert abs(np.square(white).mean() - 1) < 0.15
    shrunk = fit_whitening(torch.from_numpy(np.concatenate([images, related])))
    assert float(shrunk(torch.from_numpy(fresh)).square().mean()) < 0.7


def test_a_mean_of_few_images_is_an_error_of_every_absent_member():
    found = distribution_of(np.random.default_rng(0).standard_normal((50, 3)))
    mean, covariance = found.sum_of(100)
    assert np.allclose(mean, 100 * found.mean)
    assert np.allclose(covariance, (100 + 100**2 / 50) * found.covariance)


def test_a_distribution_depends_on_no_order_of_the_images_and_is_learned_once(monkeypatch: pytest.MonkeyPatch):
    rng, learned = np.random.default_rng(0), list[int]()
    images, related = rng.standard_normal((50, 6)), rng.standard_normal((40, 6))
    learn = absent_members._distribution_of
    monkeypatch.setattr(absent_members, "_KEPT", OrderedDict())
    monkeypatch.setattr(
        absent_members,
        "_distribution_of",
        lambda rows, others, alike: learned.append(len(rows)) or learn(rows, others, alike),
    )

    found = distribution_of(images, [related])
    turned = distribution_of(images[rng.permutation(50)], [related])

    assert np.array_equal(turned.mean, found.mean)
    assert np.array_equal(turned.covariance, found.covariance)
    assert learned == [50]
    assert not np.array_equal(distribution_of(images[1:], [related]).covariance, found.covariance)
    assert not np.array_equal(distribution_of(images, [related[1:]]).covariance, found.covariance)
    for count in range(2, absent_members.MOST_KEPT + 10):
        distribution_of(images[:count])
    assert len(absent_members._KEPT) == absent_members.MOST_KEPT


def test_a_distribution_does_not_depend_on_last_bits():
    """Which images are held out together does not, either."""
    images = np.random.default_rng(0).standard_normal((60, 24))
    one, other = (distribution_of(rows).covariance for rows in (images, images * (1 + 1e-15)))
    assert np.allclose(one, other, rtol=1e-9)


def test_copies_of_an_image_are_held_out_together():
    """Else the variances of the smallest components are measured by images that these were found with."""
    images = np.random.default_rng(0).standard_normal((40, 30))
    once, twice = (
        np.linalg.eigvalsh(distribution_of(rows).covariance) for rows in (images, np.repeat(images, 2, axis=0))
    )
    assert twice[:5].sum() == pytest.approx(once[:5].sum(), rel=0.3)
    assert np.linalg.eigvalsh(distribution_of(np.ones((4, 3)) * [[1.0], [1.0], [1.0], [2.0]]).covariance).min() >= 0


@pytest.mark.parametrize("images", [2, 3])
def test_a_distribution_of_few_images_is_positive_definite(images: int):
    found = distribution_of(np.random.default_rng(0).standard_normal((images, 5)))
    assert np.linalg.eigvalsh(found.covariance).min() > 0
