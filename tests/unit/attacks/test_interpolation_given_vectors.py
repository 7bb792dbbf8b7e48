"""What FISC would publish from given vectors, beside FINCH written pair by pair and a median in numpy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fdgsec.attacks.interpolation_leakage.attack import InterpolationLeakage
from fdgsec.experiments.report.presentation import Names, presentation_of
from fdgsec.methods.fisc import interpolation_style, verbatim_fraction
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.answers import PublishedMedian
from fdgsec.threats.attack import Case, Question, TargetFacts, Truth
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from tests.support.client_vectors import alone, client_vectors, given, mini_clients
from tests.support.slow_finch import same_partition, slow_finch

Floats = npt.NDArray[Any]


def together(vectors: Floats) -> tuple[list[Case], list[Truth]]:
    cases = given(vectors).cases(Question(kind="given", scheme="together"))
    return [case for case, _ in cases], [truth for _, truth in cases]


def published(vectors: Floats) -> dict[tuple[str, str], PublishedMedian]:
    cases, _ = together(vectors)
    answers = InterpolationLeakage().run(cases, alone(), stream(0, "attack", "interpolation"))
    found = {}
    for answer in answers:
        assert isinstance(answer, PublishedMedian)
        found[str(answer.slice["partition"]), str(answer.slice["median"])] = answer
    return found


def measured(vectors: Floats) -> dict[tuple[str, ...], Measurement]:
    cases, truths = together(vectors)
    answers = InterpolationLeakage().run(cases, alone(), stream(0, "attack", "interpolation"))
    rows = Judge().measure(answers, cases, truths, stream(0, "world", "judge"))
    keys = ("partition", "median", "copied_from", "columns")
    return {(row.name, *(str(row.slice[key]) for key in keys if key in row.slice)): row for row in rows}


def by_numpy(vectors: Floats, labels: list[int], median: str) -> tuple[Floats, Floats]:
    """The cluster means and the published style, in the precision of the vectors."""
    means = np.stack([
        vectors[np.array(labels) == label].astype(np.float64).mean(0) for label in range(max(labels) + 1)
    ])  # fmt: skip
    ordered = np.sort(means, axis=0)
    style = np.median(means, axis=0) if median == "mean of middle" else ordered[(len(ordered) - 1) // 2]
    return means.astype(vectors.dtype), style.astype(vectors.dtype)


@pytest.mark.parametrize(
    ("clients", "channels", "dtype"),
    [(100, 64, np.float32), (100, 16, np.float64), (37, 8, np.float32), (3, 8, np.float32), (2, 8, np.float64)],
)
def test_the_style_and_its_shares_are_those_of_numpy(clients: int, channels: int, dtype: type[np.floating]):
    check(client_vectors(clients, channels, seed=clients).astype(dtype))


@pytest.mark.medium
def test_styles_of_real_features_agree_too():
    check(mini_clients(24).astype(np.float32))


def check(vectors: Floats) -> None:
    partitions = slow_finch(torch.from_numpy(vectors))
    found, rows, compared = published(vectors), measured(vectors), 0
    varies = (vectors != vectors[0]).any(0)
    for partition, labels in {"first": partitions[0], "last": partitions[-1]}.items():
        sizes = np.bincount(labels)
        for median in ("lower", "mean of middle") if len(sizes) % 2 == 0 else ("lower",):
            answer = found.pop((partition, median))
            means, style = by_numpy(vectors, labels, median)
            assert same_partition(answer.labels.tolist(), labels)
            np.testing.assert_array_equal(answer.style.numpy(), style)
            where = (partition, median)
            for name, value in {"clusters": len(sizes), "smallest_cluster": sizes.min(),
                                "largest_cluster": sizes.max(), "singleton_clusters": 0}.items():  # fmt: skip
                assert rows[name, *where].value == value
            for owner, numbers in {"clients": vectors, "cluster means": means}.items():
                copied = numbers == style
                for columns, kept in {"all": np.ones_like(varies), "varying": varies}.items():
                    shares = copied[:, kept].mean(1).max(), copied[:, kept].any(0).mean()
                    assert rows["largest_source_fraction", *where, owner, columns].value == pytest.approx(shares[0])
                    assert rows["verbatim_fraction", *where, owner, columns].value == shares[1]
                    compared += 1
    assert not found
    assert compared >= 8


@pytest.mark.parametrize(("partition", "median"), [("first", "lower"), ("last", "mean of middle")])
def test_the_style_is_the_one_that_fisc_sends(partition: str, median: str):
    vectors = client_vectors(60, 32).astype(np.float32)
    means, stds = torch.from_numpy(vectors).chunk(2, dim=1)

    answer = published(vectors)[partition, median]

    sent = interpolation_style(means, stds, partition="first" if partition == "first" else "last")
    assert torch.equal(answer.style, torch.cat([sent.mean, sent.std]))
    assert float(answer.of_clients.any(0).double().mean()) == verbatim_fraction(sent, means, stds)


def test_the_lower_median_copies_a_cluster_mean_and_no_client():
    rows = measured(client_vectors(100, 32).astype(np.float32))

    for partition in ("first", "last"):
        assert rows["verbatim_fraction", partition, "lower", "cluster means", "varying"].value == 1.0
        assert rows["verbatim_fraction", partition, "lower", "clients", "varying"].value == 0.0
        constant = rows["verbatim_fraction", partition, "lower", "clients", "all"].value
        assert constant == 4 / 64  # the columns that are the same for all clients
        assert rows["clusters", partition, "lower"].verdict == "descriptive"


def test_clients_that_all_send_the_same_have_no_column_that_varies():
    rows = measured(np.full((4, 6), 2.0, dtype=np.float32))

    assert rows["verbatim_fraction", "first", "lower", "clients", "all"].value == 1.0
    assert "the same number" in str(rows["verbatim_fraction", "first", "lower", "clients", "varying"].unavailable)


def test_sizes_of_clusters_are_told():
    blobs = np.random.default_rng(0).uniform(1, 4, (3, 40))
    vectors = np.concatenate([np.repeat(blobs[:1], 5, 0), np.repeat(blobs[1:], 2, 0)]).astype(np.float32)

    row = measured(vectors)["clusters", "first", "lower"]

    assert row.value == 3
    assert row.slice["sizes"] == "1 of 5, 2 of 2"


def test_the_table_of_guesses_names_members_and_owners_of_every_number():
    vectors = np.array([[1, 9, 2, 1], [1, 9, 2, 1], [5, 1, 2, 7], [5, 1, 2, 7], [9, 4, 2, 8], [9, 4, 2, 8]])
    answer = published(vectors.astype(np.float32))["first", "lower"]
    tell = presentation_of(PublishedMedian).tell
    assert tell is not None

    lines = list(tell(answer, Names(candidates=[], classes=[], domains=[], clients=list("abcdef"))))

    clusters = [line for line in lines if str(line[0]).startswith("cluster")]
    assert clusters == [("cluster 1", "", "a b", 2), ("cluster 2", "", "c d", 2), ("cluster 3", "", "e f", 2)]
    assert lines[-4:] == [
        ("mean 1", "", "c d cluster 2", "5"),
        ("mean 2", "", "e f cluster 3", "4"),
        ("std 1", "", "constant", "2"),
        ("std 2", "", "c d cluster 2", "7"),
    ]
    assert ("copied from", "", "cluster 2", "0.666667") in lines
    assert ("copied from", "", "e", "0.333333") in lines


def test_groups_of_equal_clients_are_found_in_the_published_style():
    attack = InterpolationLeakage()
    control = attack.positive_control(alone(), stream(0, "attack", "plant"))

    answers = attack.run(control.cases, control.knowledge, stream(0, "attack", "planted"))

    found = positive_control(control, answers, Judge(), stream(0, "world", "planted"))
    assert len(found) == 8
    assert all(one.passed for one in found)


def test_fewer_than_two_clients_are_refused():
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleStatistics"}), clients=1, images_per_client=1, classes=1, profile="quick",
        knows=frozenset(ADVERSARIES["server"].knows),
    )  # fmt: skip

    with pytest.raises(UsageError, match="two clients or more; there are 1"):
        InterpolationLeakage().plan_of_vectors(facts)
