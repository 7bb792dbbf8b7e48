"""Set reconstruction from whole mean spectra: all frequencies are equations, whatever other attacks read of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.control import planted_lists
from fdgsec.attacks.set_reconstruction.whole_spectra import Span, SpectraTable, WholeSpectra, whole_spectra
from fdgsec.attacks.statistics.domain_populations import populations_of
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.federation.released_statistics import MeanSpectra
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.amplitude_spectra import SpectralEncoder
from fdgsec.nn.styles.image_moments import image_moments
from fdgsec.nn.styles.image_styles import register_encoder, resized, statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import MemberList, Membership
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import planted_images, upload

AUXILIARY, SIDE, LOW = 60, 32, 2
ATTACK = SetReconstruction()


def pictures(count: int, *, seed: int = 0) -> DomainDataset:
    """Noise images of different contrast."""
    rng = stream(seed, "attack", "pictures")
    contrast = 20 + 60 * torch.rand(count, 1, 1, 1, generator=rng)
    values = 128 + contrast * torch.randn(count, 3, SIDE, SIDE, generator=rng)
    nothing = torch.zeros(count, dtype=torch.int64)
    blank = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
    return replace(blank, store=values.clamp(0, 255).round().to(torch.uint8))


def known(images: DomainDataset) -> Knowledge:
    """An adversary whose target declares a statistic of 45 low frequencies."""
    name = register_encoder(SpectralEncoder((SIDE, SIDE), frequencies=LOW))
    return Knowledge(
        statistics=lambda dataset: statistics(name, dataset), encoder=name, class_names=("any",),
        domain_names=("planted",), auxiliary=images.subset(torch.arange(AUXILIARY)), unseen=None, own=None,
        released_statistic=MeanSpectra(frequencies=LOW),
    )  # fmt: skip


def spectra_of(images: DomainDataset) -> Tensor:
    """The slow way: numpy's full transform in float64, and half of it."""
    found = np.abs(np.fft.fft2((images.pixels().float() / 255).double().numpy()))
    return torch.from_numpy(found[..., : SIDE // 2 + 1])


def asked(images: DomainDataset, members: int, count: int, *, seed: int = 0) -> tuple[Case, Truth]:
    first = AUXILIARY + torch.arange(members)
    sent = Amplitudes(
        values=spectra_of(images.subset(first)).mean(0, keepdim=True).float(), owner=torch.zeros(1).long()
    )
    order = torch.randperm(count, generator=stream(seed, "attack", "order"))
    case = Case(
        question="resampled_clients", views=(upload(sent),), victim="client:0", records=members, domain="planted",
        slice={"domain": "planted", "n_per_client": members}, candidates=images.subset(AUXILIARY + order),
    )  # fmt: skip
    return case, Truth(members=order < members)


def answered(case: Case, knowledge: Knowledge, attack: SetReconstruction = ATTACK) -> tuple[Tensor, Tensor]:
    scores, listed = attack.run([case], knowledge, stream(0, "attack"))
    assert isinstance(scores, Membership)
    assert isinstance(listed, MemberList)
    return scores.scores, listed.believed


def test_all_frequencies_determine_a_list_that_the_low_ones_do_not():
    """240 candidates: the target's 45 low frequencies leave most lists open, all 1,632 do not."""
    images = pictures(AUXILIARY + 240)
    case, truth = asked(images, 100, 240)

    _, listed = answered(case, known(images))

    assert truth.members is not None
    assert torch.equal(listed, truth.members)


def test_the_low_frequencies_alone_leave_lists_open():
    images = pictures(AUXILIARY + 240)
    case, truth = asked(images, 100, 240)
    values = MeanSpectra(frequencies=LOW).release(case.release()).reshape(1, -1, 1, 1).float()
    low = upload(Amplitudes(values=values, owner=torch.zeros(1).long()))

    scores, listed = answered(replace(case, views=(low,)), known(images))

    assert truth.members is not None
    assert whole_spectra(replace(case, views=(low,)), known(images)) is None  # 45 numbers: all are read already
    assert not torch.equal(listed, truth.members)
    assert auc(scores[truth.members], scores[~truth.members]) < 0.95


def test_spectra_are_those_of_a_slow_transform_whole_and_once():
    images = pictures(7)
    source = WholeSpectra(height=SIDE, columns=SIDE // 2 + 1)

    rows = source.rows(images.subset(torch.tensor([3, 3, 5])))
    moments = source(images)

    slow = spectra_of(images).flatten(1)
    torch.testing.assert_close(rows.double(), slow[[3, 3, 5]], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(moments.mean, slow, rtol=1e-6, atol=1e-5)
    assert sorted(source.known) == list(range(7))


def test_images_of_another_size_are_resized_to_that_of_the_release():
    images = pictures(3)
    source = WholeSpectra(height=16, columns=9)
    encoder = SpectralEncoder((16, 16), frequencies=16)
    found = image_moments(encoder, resized(images.pixels(), 16)).mean
    torch.testing.assert_close(source.rows(images).double(), found, rtol=1e-6, atol=1e-5)


def table(count: int = 90, *, seed: int = 0) -> tuple[SpectraTable, Tensor, Tensor]:
    """The candidates of a domain, a release of the first 15, and the standard deviations of its error."""
    images = pictures(AUXILIARY + count, seed=seed)
    spectra = WholeSpectra(height=SIDE, columns=SIDE // 2 + 1)
    knowledge = replace(known(images), statistics=spectra, released_statistic=spectra.released_statistic)
    asked_about = images.subset(AUXILIARY + torch.arange(count))
    made = SpectraTable(knowledge=knowledge, domain="planted", images=asked_about, spectra=spectra)
    rng = stream(seed, "attack", "error")
    noise = 0.01 + 0.05 * torch.rand(3 * SIDE * (SIDE // 2 + 1), generator=rng, dtype=torch.float64)
    error = noise * torch.randn(len(noise), generator=rng, dtype=torch.float64)
    return made, spectra.rows(asked_about)[:15].double().mean(0) + error, noise


def in_units(made: SpectraTable, noise: Tensor) -> np.ndarray:
    """All images of the table about the mean of the adversary's, in standard deviations of the error: (n, D)."""
    vectors = torch.cat([made.spectra.rows(made.images), made.reference]).double()
    return np.asarray(((vectors - made.reference.double().mean(0)) / noise).numpy())


def test_the_span_of_candidates_has_the_same_least_squares_problem():
    """The second implementation: scipy's bounded least squares on all equations, without a basis."""
    made, release, noise = table()
    found = made.equations(made.images.subset(torch.arange(40)), release, noise=noise, images=15)

    matrix = in_units(made, noise)[:40].T
    target = 15 * ((release - made.reference.double().mean(0)) / noise).numpy()
    all_equations = lsq_linear(matrix, target, (0, 1), method="bvls").x
    in_the_span = lsq_linear(found.candidates.T, 15 * found.release, (0, 1), method="bvls").x

    np.testing.assert_allclose(in_the_span, all_equations, atol=1e-8)
    np.testing.assert_allclose(found.candidates @ found.candidates.T, matrix.T @ matrix, rtol=1e-9)
    assert found.candidates.shape[1] == 40 + AUXILIARY  # of 90 candidates 40 are asked about


def test_the_covariance_in_the_span_is_the_projected_one():
    made, release, noise = table()
    found = made.equations(made.images, release, noise=noise, images=15)

    rows = in_units(made, noise)
    basis = np.linalg.svd(rows, full_matrices=False)[2][: len(rows) - 1].T  # the adversary's are about their mean
    whiten = populations_of(["planted"], made.knowledge)["planted"].whiten
    stretch = (whiten.scale / noise).numpy()
    covariance = basis.T @ (stretch[:, None] * whiten.covariance().numpy() * stretch) @ basis
    assert found.population is not None
    others = found.population()
    np.testing.assert_allclose(np.linalg.eigvalsh(others.covariance), np.linalg.eigvalsh(covariance), rtol=1e-5)
    assert others.images == len(rows)


def test_one_span_serves_errors_that_differ_by_a_factor_and_no_others():
    made, release, noise = table(20)
    once = made.equations(made.images, release, noise=noise, images=15)
    twice = made.equations(made.images, release, noise=2 * noise, images=15)
    assert len(made.spans) == 1
    assert twice.noise == pytest.approx(2 * once.noise)

    made.equations(made.images, release, noise=noise.flip(0).square(), images=15)
    assert len(made.spans) == 2


def test_candidates_that_are_alike_are_no_new_dimension():
    pixels = pictures(20).pixels()
    store = torch.cat([pixels, pixels[:4]])
    nothing = torch.zeros(24, dtype=torch.int64)
    blank = planted_images(nothing, nothing, class_names=("any",), domain_names=("planted",))
    rows = WholeSpectra(height=SIDE, columns=SIDE // 2 + 1).rows(replace(blank, store=store))
    found = Span.of(rows, center=torch.zeros(rows.shape[1]).double(), error=torch.ones(rows.shape[1]).double())
    assert found.coordinates.shape == (24, 20)
    np.testing.assert_allclose(found.coordinates[20:], found.coordinates[:4], atol=1e-6)


def test_an_incomplete_gallery_leaves_evidence_in_whole_spectra():
    images = pictures(AUXILIARY + 80)
    case, truth = asked(images, 40, 80)
    assert truth.members is not None
    assert case.candidates is not None
    shown = (~truth.members).nonzero().flatten().tolist() + truth.members.nonzero().flatten().tolist()[:36]
    kept = torch.tensor(sorted(shown))
    case, members = replace(case, candidates=case.candidates.subset(kept)), truth.members[kept]

    scores, listed = answered(case, known(images))

    assert auc(scores[members], scores[~members]) > 0.9
    assert int(listed.sum()) < 40


def test_releases_of_others_give_no_evidence_in_whole_spectra():
    images = pictures(AUXILIARY + 80)
    cases = [asked(images, 40, 80, seed=seed) for seed in range(6)]
    answers = ATTACK.negative_control([case for case, _ in cases], known(images), stream(1, "attack", "null"))
    areas = []
    for answer in answers:
        members = cases[answer.case][1].members
        assert members is not None
        if isinstance(answer, Membership):
            areas.append(auc(answer.scores[members], answer.scores[~members]))
    assert abs(sum(areas) / len(areas) - 0.5) < 0.15


@pytest.mark.parametrize("frequencies", [16, 2])
def test_the_positive_control_of_spectra_has_pictures_and_passes(frequencies: int):
    statistic = MeanSpectra(frequencies=frequencies)
    knowledge = replace(known(pictures(AUXILIARY + 2)), released_statistic=statistic)
    control = planted_lists(knowledge, stream(0, "attack", "plant"))
    answers = ATTACK.run(control.cases, control.knowledge, stream(0, "attack"))

    assert all(whole_spectra(case, control.knowledge) is not None for case in control.cases)
    passed = positive_control(control, answers, Judge(bootstrap_repeats=50), stream(0, "world"))
    assert [one.passed for one in passed] == [True] * len(passed)
