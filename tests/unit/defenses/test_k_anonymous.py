"""Micro-aggregation: every row that leaves is the mean of at least k, in its own place."""

import pytest
import torch
from torch import Tensor

from fdgsec.data.shapes import shapes
from fdgsec.defenses.k_anonymous import KAnonymous, nearest_groups, random_groups
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, ModelState, StyleStatistics
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Method, StepRequest
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddg import FedDG
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream
from tests.support.outgoings import outgoing


def rng(seed: int = 0) -> SecretStream:
    return simulated_stream(seed, "test")


def rows(count: int) -> ImageStyles:
    return ImageStyles(
        mean=torch.randn(count, 6, generator=rng(7).generator()), std=torch.rand(count, 6, generator=rng(8).generator())
    )


def sent(defense: KAnonymous, artifact: Artifact, **known: object) -> dict[str, Tensor]:
    protected = defense.on_message(outgoing(artifact, **known), rng())  # type: ignore[arg-type]
    assert protected is not None
    assert protected.uses is None
    return protected.artifact.tensors()


@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize("count", [7, 8, 20, 41])
def test_no_group_is_smaller_than_k(count: int, k: int):
    drawn = torch.bincount(random_groups(count, k, rng(count)))
    alike = torch.bincount(nearest_groups(rows(count).mean.double(), k))

    assert int(drawn.min()) >= k
    assert int(drawn.max()) - int(drawn.min()) <= 1
    assert int(alike.min()) >= k
    assert int(alike.max()) < 2 * k
    assert int(drawn.sum()) == int(alike.sum()) == count


@pytest.mark.parametrize("groups", ["random", "nearest"])
def test_every_row_is_replaced_by_the_mean_of_its_group_in_its_own_place(groups: str):
    style = rows(20)

    found = sent(KAnonymous(k=4, groups=groups), style)  # type: ignore[arg-type]

    released = torch.cat([found["mean"], found["std"]], dim=1)
    original = torch.cat([style.mean, style.std], dim=1)
    for row in released:  # the oracle: those who share a row are the group, and it is their mean
        group = (released == row).all(1).nonzero().flatten()
        assert len(group) >= 4
        torch.testing.assert_close(row, original[group].mean(0), atol=1e-6, rtol=1e-5)
    assert len(released.unique(dim=0)) == 5
    torch.testing.assert_close(released.mean(0), original.mean(0), atol=1e-6, rtol=1e-5)


def test_groups_of_nearest_rows_are_mdav():
    points = torch.randn(17, 3, generator=rng(5).generator(), dtype=torch.float64)
    points = (points - points.mean(0)) / points.std(0, correction=0)
    left, expected = list(range(17)), [set[int]()]
    while len(left) >= 2 * 4:  # a slow transcription: the farthest from the center, with its nearest
        center = sum(points[i] for i in left) / len(left)
        far = max(left, key=lambda i: float((points[i] - center).norm()))
        group = sorted(left, key=lambda i: float((points[i] - points[far]).norm()))[:4]
        expected.append(set(group))
        left = [i for i in left if i not in group]
    expected.append(set(left))

    labels = nearest_groups(points, 4)

    found = [set((labels == g).nonzero().flatten().tolist()) for g in labels.unique()]
    assert sorted(map(sorted, found)) == sorted(sorted(group) for group in expected if group)


def test_nearest_rows_keep_more_of_the_variety_than_random_ones():
    style = rows(60)

    kept = {
        groups: float(sent(KAnonymous(k=5, groups=groups), style)["mean"].var(0).sum())  # type: ignore[arg-type]
        for groups in ("random", "nearest")
    }

    assert kept["nearest"] > 1.5 * kept["random"]


def test_a_pooled_style_leaves_as_it_is_where_enough_images_are_behind_it():
    style = StyleStatistics(mean=torch.ones(3), std=torch.ones(3))

    found = sent(KAnonymous(k=8), style, holds=8)

    assert torch.equal(found["mean"], style.mean)


def test_spectra_of_single_images_are_grouped_and_a_mean_spectrum_is_not():
    values = torch.rand(6, 3, 4, 3, generator=rng().generator())
    spectra = Amplitudes(values=values, owner=torch.zeros(6, dtype=torch.int64))
    mean = Amplitudes(values=values[:1], owner=torch.zeros(1, dtype=torch.int64))

    grouped = sent(KAnonymous(k=6), spectra, state={SHARED_ROWS: torch.arange(6)})
    pooled = sent(KAnonymous(k=6), mean, holds=8)

    torch.testing.assert_close(grouped["values"], values.mean(0).expand_as(values))
    assert torch.equal(pooled["values"], values[:1])


@pytest.mark.parametrize(
    ("artifact", "says"),
    [
        (rows(4), "would release 4 rows, fewer than k = 5"),
        (rows(0), "would release 0 rows"),
        (StyleStatistics(mean=torch.ones(3), std=torch.ones(3)), "would release 3 images"),
    ],
)
def test_nothing_leaves_a_client_with_fewer_than_k(artifact: Artifact, says: str):
    with pytest.raises(UsageError, match=says):
        sent(KAnonymous(k=5), artifact, holds=3)


def test_the_judge_still_knows_which_image_is_behind_which_row():
    data = shapes(image_size=32, per_domain=42).of_domain(0)
    method = CCST(style="single", styles_per_client=12, k=1)

    seen = observe(
        method,
        [Client(name="client:0", data=data)],
        seed=0,
        name="run",
        defense_stack=DefenseStack(defenses=[KAnonymous(k=4)]),
    )

    shown = data.subset(seen.states["client:0"][SHARED_ROWS])
    own = torch.cat(statistics("mini", shown).style(unbiased=True), dim=1).float()
    released = next(m.artifact for m in seen.transcript.messages() if m.sender == "client:0").tensors()
    sent_rows = torch.cat([released["mean"], released["std"]], dim=1)
    for row in sent_rows:
        group = (sent_rows == row).all(1)
        assert int(group.sum()) == 4
        torch.testing.assert_close(row, own[group].mean(0), atol=1e-4, rtol=1e-4)


def test_models_are_none_of_its_business():
    assert KAnonymous().on_message(outgoing(ModelState(state={"w": torch.ones(3)})), rng()) is None


def test_a_group_of_one_is_refused():
    with pytest.raises(UsageError, match="k of at least 2"):
        KAnonymous(k=1)


@pytest.mark.parametrize(
    "method", [FedDG(share_of_images=1.0), Stacked(base=FedAvg(), local=FedDG(share_of_images=1.0))]
)
def test_spectra_of_single_images_are_grouped_whichever_method_sends_them(method: Method):
    """On top of another method they passed as the mean of a client's images, and left as they were."""
    client = Client(name="client:0", data=shapes(image_size=16, per_domain=24, seed=3).of_domain(0))
    request = StepRequest(clock=Clock(round=0, rounds=0, participants=("client:0", "client:1")), model=None, inbox={})
    stack = DefenseStack(defenses=(KAnonymous(k=5),))
    raw, _ = run_client_step(method, client, "share", request, {}, 0)
    defended, _ = run_client_step(method, client, "share", request, {}, 0, stack)

    (before,), (after,) = raw.artifacts.values(), defended.artifacts.values()
    assert isinstance(before, Amplitudes)
    assert isinstance(after, Amplitudes)
    assert not (before.values == after.values).flatten(1).all(1).any()
    assert len(torch.unique(after.values.flatten(1), dim=0)) == 4
