"""Linkage of clients' vectors as they are given, beside a few lines of numpy that do the same."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.covariance import LedoitWolf

from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.linkage.given_vectors import independent_coordinates
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Ranking
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from tests.support.client_vectors import alone, client_vectors, mini_clients, pairs

Rows = npt.NDArray[np.float64]
SWEEP = Linkage(noise=(0.02, 0.05), noise_in_sds=(1.0, 3.0, 10.0, 30.0, 100.0))


def measured(first: Rows, second: Rows | None = None, *, attack: Linkage | None = None) -> list[Measurement]:
    cases, truths = pairs(first, first if second is None else second)
    linkage = attack or SWEEP
    answers = linkage.run(cases, alone(), stream(0, "attack", "linkage"))
    return Judge().measure(answers, cases, truths, stream(0, "world", "judge"))


def hits(rows: Sequence[Measurement], **where: str) -> Measurement:
    (found,) = [
        row for row in rows
        if row.name == "top1" and "matching" not in row.slice and where.items() <= dict(row.slice).items()
    ]  # fmt: skip
    return found


def linked_by_numpy(vectors: Rows, s: float, *, both: bool, repeats: int = 60) -> float:
    """The share of noisy vectors whose nearest vector is their own, with noise as FISC's code draws it."""
    rng, found, half = np.random.default_rng(7), [], vectors.shape[1] // 2
    for _ in range(repeats):
        noisy = [(0.9 * vectors + rng.normal(0, s, vectors.shape)) / 0.9 for _ in range(2)]
        for release in noisy:
            release[:, half:] = release[:, half:].clip(min=0)
        gallery = noisy[1] if both else vectors
        squares = (noisy[0] ** 2).sum(1)[:, None] + (gallery**2).sum(1) - 2 * noisy[0] @ gallery.T
        found.append(np.mean(squares.argmin(1) == np.arange(len(vectors))))
    return float(np.mean(found))


@pytest.mark.parametrize(("name", "vectors"), [("heavy tails", client_vectors(100, 64)), ("mini", mini_clients(24))])
@pytest.mark.medium
def test_under_noise_as_many_are_linked_as_numpy_links(name: str, vectors: Rows):
    rows = measured(vectors)
    sd = float(np.median(vectors.std(0, ddof=1)))
    partly = 0

    for level, s in {"0.02": 0.02, "0.05": 0.05, **{f"{k} sd": k * sd for k in (1, 3, 10, 30, 100)}}.items():
        for noise_on in ("first", "both"):
            row = hits(rows, noise=level, noise_on=noise_on, distance="plain")
            expected = linked_by_numpy(vectors, s, both=noise_on == "both")
            assert float(str(row.slice["s"])) == pytest.approx(s, rel=1e-6)
            assert row.chance == 1 / len(vectors)
            assert row.n == len(vectors)
            assert row.value is not None
            spread = 4 * (expected * (1 - expected) / len(vectors)) ** 0.5 + 1 / len(vectors)
            assert abs(row.value - expected) <= spread, (name, level, noise_on)
            partly += 0.1 < expected < 0.9
    assert partly  # neither everybody nor nobody


def test_the_unit_of_noise_is_the_median_spread_of_the_columns():
    vectors = client_vectors(30, 16)

    (row,) = [row for row in measured(vectors) if row.name == "between_client_sd"]

    assert row.value == pytest.approx(float(np.median(vectors.std(0, ddof=1))), rel=1e-12)
    assert row.slice["definition"] == "median over columns of the standard deviation between clients (n-1)"


def z_scored(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = (values - values.mean(0)) / values.std(0, ddof=1)
    return found


@pytest.mark.parametrize("drift", ["shift", "gain"])
@pytest.mark.medium
def test_a_drift_that_all_clients_share_hides_none(drift: str):
    draws, vectors = np.random.default_rng(4), client_vectors(60, 32)
    width = vectors.shape[1]
    moved = vectors + draws.normal(0, 4, width) if drift == "shift" else vectors * draws.lognormal(0, 0.7, width)
    again = np.abs(moved * draws.lognormal(0, 0.01, vectors.shape))

    row = hits(measured(vectors, again), distance="standardized apart", noise="none")

    assert row.value == 1.0 if drift == "gain" else row.value is not None
    assert row.verdict.startswith("leaks")


def in_own_units(values: np.ndarray) -> np.ndarray:
    means, stds = np.split(values, 2, axis=1)
    about = np.concatenate([means - means.mean(1, keepdims=True), stds - stds.mean(1, keepdims=True)], 1)
    return z_scored(about / np.linalg.norm(about, axis=1, keepdims=True))


@pytest.mark.parametrize("written", ["sums", "8 bits"])
@pytest.mark.medium
def test_a_scale_of_each_client_hides_none(written: str):
    draws, vectors = np.random.default_rng(5), client_vectors(60, 32)
    again = vectors * draws.lognormal(0, 0.01, vectors.shape)
    if written == "sums":
        again *= 10 ** draws.uniform(0, 4, (60, 1))
    else:
        low, high = again.min(1, keepdims=True), again.max(1, keepdims=True)
        again = np.round((again - low) / (high - low) * 255)

    found = hits(measured(vectors, again), distance="vectors in own units", noise="none").value
    assert found is not None
    assert found >= 0.95


def whitened(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By scikit-learn's estimate of the covariance of all rows, each release in its own units."""
    rows = np.concatenate([z_scored(one), z_scored(other)])
    values, directions = np.linalg.eigh(LedoitWolf(assume_centered=True).fit(rows).covariance_)
    white = rows @ directions / np.sqrt(values)
    return white[: len(one)], white[len(one) :]


@pytest.mark.parametrize("clients", [30, 100])
def test_what_every_session_draws_anew_hides_none(clients: int):
    """Six directions, in which sessions of one client differ eight times as much as clients do elsewhere."""
    draws = np.random.default_rng(7)
    client, shared = draws.normal(0, 1, (clients, 256)), draws.normal(0, 1, (6, 256))
    one, other = (
        300 + client + 8 * draws.normal(0, 1, (clients, 6)) @ shared + draws.normal(0, 0.3, (clients, 256))
        for _ in range(2)
    )

    rows = measured(one, other)

    apart = hits(rows, distance="standardized apart", noise="none").value
    assert apart is not None
    assert apart < 0.2
    row = hits(rows, distance="whitened", noise="none")
    white, again = whitened(one, other)
    nearest = ((white[:, None, :] - again[None]) ** 2).sum(2).argmin(1)
    assert row.value == float(np.mean(nearest == np.arange(clients)))
    assert row.value is not None
    assert row.value > apart + 0.4
    assert row.verdict.startswith("leaks")


@pytest.mark.parametrize("rounded", [False, True])
def test_one_number_that_comes_again_links_everybody(rounded: bool):
    """Noise of 20 standard deviations on all others, one of which is 0 for everybody."""
    draws = np.random.default_rng(1)
    client = draws.lognormal(0, 0.3, (200, 64))
    client[:, 9] = 0.0
    one, other = (client + np.where(np.arange(64) == 5, 0, draws.normal(0, 6, client.shape)) for _ in range(2))
    one[:, 9] = other[:, 9] = 0.0
    one[:, 32:], other[:, 32:] = one[:, 32:].clip(0), other[:, 32:].clip(0)

    rows = measured(one, other.astype(np.float32).astype(float) if rounded else other)

    plain = hits(rows, distance="plain", noise="none").value
    assert plain is not None
    assert plain < 0.1
    row = hits(rows, distance="equal numbers", noise="none")
    assert row.value == 1.0
    assert row.verdict.startswith("leaks")


@pytest.mark.medium
def test_two_releases_are_linked_as_numpy_links_them():
    vectors = client_vectors(60, 32)
    again = vectors * np.random.default_rng(3).lognormal(0, 0.08, vectors.shape)

    rows = measured(vectors, again)

    spread = again.std(0, ddof=1)
    varies = spread > 0
    both = (np.ptp(vectors, axis=0) > 0) & (np.ptp(again, axis=0) > 0)
    for distance, (one, other) in {
        "plain": (vectors, again),
        "standardized": (vectors[:, varies] / spread[varies], again[:, varies] / spread[varies]),
        "standardized apart": (z_scored(vectors[:, both]), z_scored(again[:, both])),
        "vectors in own units": (in_own_units(vectors), in_own_units(again)),
    }.items():
        nearest = ((one[:, None, :] - other[None]) ** 2).sum(2).argmin(1)
        row = hits(rows, distance=distance, noise="none")
        assert row.value == float(np.mean(nearest == np.arange(60)))
        assert row.slice["data"] == "another release"
        assert row.verdict.startswith("leaks")


@pytest.mark.parametrize("scale", [1e-160, 1e-170, 1e-300])
@pytest.mark.parametrize("columns", [1, 16])
def test_numbers_whose_squares_vanish_link_clients_too(scale: float, columns: int):
    """In the first `columns` means and stds; others are the same for all clients."""
    draws = np.random.default_rng(6)
    vectors, telling = np.ones((12, 32)), [*range(columns), *range(16, 16 + columns)]
    vectors[:, telling] = scale * draws.random((12, 2 * columns))
    again = vectors.copy()
    again[:, telling] *= 1 + 1e-3 * draws.random((12, 2 * columns))

    rows = measured(vectors, again, attack=Linkage(noise=(), noise_in_sds=()))

    assert hits(rows, distance="standardized apart").value == 1.0
    assert hits(rows, distance="whitened").value == 1.0
    if columns == 16:
        assert hits(rows, distance="plain").value == 1.0


def test_one_release_is_found_again_and_that_shows_nothing():
    row = hits(measured(client_vectors(20, 16)), noise="none")

    assert (row.value, row.verdict, row.slice["data"]) == (1.0, "descriptive", "the same")


def test_clients_with_the_same_vector_share_the_credit():
    vectors = np.repeat(client_vectors(10, 16), 2, axis=0)

    assert hits(measured(vectors), noise="none").value == 0.5


def test_the_likelihood_ratio_is_the_one_of_two_gaussians():
    rng = np.random.default_rng(5)
    first, second = (client_vectors(40, 8) + rng.normal(0, 2.0, (40, 16)) for _ in range(2))
    variance = 4.0

    pairs_of = independent_coordinates(torch.from_numpy(second), variance)

    assert pairs_of is not None
    center, between = second.mean(0), (second.var(0, ddof=1) - variance).clip(min=0)
    expected = np.zeros((40, 40))
    for column in np.flatnonzero(between):
        signal, total = between[column], between[column] + variance
        a, b = first[:, column] - center[column], second[:, column] - center[column]
        inverse = np.linalg.inv([[total, signal], [signal, total]])
        quadratic = inverse[0, 0] * a[:, None] ** 2 + inverse[1, 1] * b**2 + 2 * inverse[0, 1] * np.outer(a, b)
        expected += (quadratic - a[:, None] ** 2 / total - b**2 / total) / 2
    found = pairs_of.distances(torch.from_numpy(first), torch.from_numpy(second)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.medium
def test_the_likelihood_ratio_links_more_than_the_plain_distance_where_few_columns_tell_clients_apart():
    vectors = np.random.default_rng(2).normal(100, 0.1, (100, 400))
    vectors[:, :20] += np.random.default_rng(3).normal(0, 20, (100, 20))
    linkage = Linkage(noise=(10.0,), noise_in_sds=())

    rows = measured(vectors, attack=linkage)

    plain, ratio = (hits(rows, noise_on="both", distance=name).value for name in ("plain", "likelihood ratio"))
    assert plain is not None
    assert ratio is not None
    assert ratio > plain + 0.2


@pytest.mark.parametrize("clients", [2, 3])
def test_few_clients_are_linked_too(clients: int):
    rows = measured(client_vectors(clients, 8))

    row = hits(rows, noise="0.02", noise_on="first")
    assert (row.value, row.chance, row.n) == (1.0, 1 / clients, clients)


def test_columns_that_are_the_same_for_all_clients_leave_no_unit_of_noise():
    vectors = client_vectors(12, 8)
    vectors[:, :6] = 1.0
    vectors[:, 8:14] = 0.0
    cases, _ = pairs(vectors, vectors)

    rows = measured(vectors)
    (missing,) = SWEEP.missing(cases, alone())

    assert hits(rows, noise="0.02", noise_on="first").value == 1.0
    assert not [row for row in rows if "sd" in str(row.slice.get("noise"))]
    assert "between_client_sd is 0" in str(missing.unavailable)


def test_exchanged_vectors_are_not_linked_to_their_owners():
    cases, truths = pairs(client_vectors(40, 16), client_vectors(40, 16))

    answers = Linkage().negative_control(cases, alone(), stream(0, "attack", "null"))

    for answer in answers:
        assert isinstance(answer, Ranking)
        assert int(answer.distances.argmin()) != truths[answer.case].partner
    (null,) = Judge().null(answers, cases, truths, stream(0, "world", "null"))
    assert null.p_value > 0.01


@pytest.mark.parametrize("linkage", [SWEEP, Linkage(noise=(1e6,), noise_in_sds=(1e4,))], ids=["usual", "extreme"])
def test_planted_clients_are_linked_under_any_noise(linkage: Linkage):
    control = linkage.positive_control(alone(), stream(0, "attack", "plant"))

    answers = linkage.run(control.cases, control.knowledge, stream(0, "attack", "planted"))

    found = positive_control(control, answers, Judge(), stream(0, "world", "planted"))
    assert len(found) > 4
    assert all(one.passed for one in found)
    assert {case.question for case in control.cases} == {"given"}


def test_answers_depend_on_no_slice_but_the_half():
    def answered(cases: Sequence[Case], knowledge: Knowledge) -> list[torch.Tensor]:
        answers = Linkage().run(cases, knowledge, stream(0, "attack", "run"))
        return [answer.distances for answer in answers if isinstance(answer, Ranking)]

    cases, _ = pairs(client_vectors(10, 8), client_vectors(10, 8))
    renamed = [replace(case, slice={"half": case.slice["half"], "clients": "others"}) for case in cases]

    for one, other in zip(answered(cases, alone()), answered(renamed, alone()), strict=True):
        assert torch.equal(one, other)


def test_truths_of_second_releases_are_nobodys():
    _, truths = pairs(client_vectors(3, 4), client_vectors(3, 4))

    assert truths[3:] == [Truth()] * 3


def test_of_many_clients_some_are_asked_about_each_among_all_of_them():
    vectors = client_vectors(60, 16)
    rows = measured(vectors, attack=replace(SWEEP, asked=20))
    loud, quiet = (hits(rows, noise=level, noise_on="first", distance="plain") for level in ("100 sd", "1 sd"))
    everybody = hits(measured(vectors), noise="1 sd", noise_on="first", distance="plain")

    assert {row.slice["asked"] for row in (loud, quiet)} == {"20 of 60"}
    assert (quiet.n, quiet.chance) == (20, 1 / 60)
    assert quiet.value is not None
    assert everybody.value is not None
    assert abs(quiet.value - everybody.value) < 0.35  # the standard error of 20 hits is .1 or less
    assert loud.value is not None
    assert loud.value < 0.3
    assert "asked" not in everybody.slice


def test_one_other_release_of_many_is_another_release_whoever_is_asked_about():
    vectors = client_vectors(60, 16)
    asked = []
    for changed in range(60):
        other = vectors.copy()
        other[changed] += 1
        rows = measured(vectors, other, attack=replace(SWEEP, asked=20, noise=(), noise_in_sds=()))
        asked += [row.slice["data"] for row in rows if row.name == "top1"]

    assert set(asked) == {"another release"}
