"""A method that sends pooled styles and rows of single images at once: rows are read, and the rest is named."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

import fdgsec
from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.experiments.attack.unread_releases import partly_read
from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, State
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.wire import Message
from fdgsec.methods.ccst import CCST
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import View


@dataclass(frozen=True, kw_only=True)
class Both(CCST):
    """CCST's overall style, and styles of a quarter of the images; `rows_first` says which goes up first."""

    rows_first: bool = False

    @property
    def releases(self) -> Sequence[Release]:
        pooled = next(release for release in super().releases if release.stage == "share")
        return (*super().releases, replace(pooled, slot="styles", kind=ImageStyles))

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        pooled, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        single = replace(self, style="single", styles_per_client=max(1, len(client.data) // 4))
        sent, kept = CCST.share(single, client, model=model, state={}, clock=clock, rng=rng)
        rows = {"styles": sent["styles"]}
        return {**rows, **pooled} if self.rows_first else {**pooled, **rows}, {**state, SHARED_ROWS: kept[SHARED_ROWS]}


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.medium
def test_rows_are_read_and_pooled_styles_are_named(rows_first: bool, own_cache: object):
    report = fdgsec.attack(
        Both(encoder="pixels", rows_first=rows_first),
        attacks=(Membership(row_size=40, clients=8, cropped_clients=0), Reidentification(gallery=60, rows=40)),
        per_domain=80, image_size=32,
    )  # fmt: skip

    members, looked_up = report.attacks
    assert [members.status, looked_up.status] == ["done", "done"], (members.reason, looked_up.reason)
    found = {row.name: row for row in looked_up.measurements if row.judged and row.slice.get("transform") == "known"}
    assert found["top1"].value == 1.0
    released = [row for row in members.measurements if row.name == "auc" and row.slice["question"] == "released image"]
    assert [row.value for row in released] == [1.0, 1.0, 1.0]
    quiet = [row for row in members.measurements if row.judged and not row.leaks]
    assert all("reads 1 of 2 releases that differ" in row.verdict for row in quiet)


def sent(*artifacts: object) -> View:
    return View(messages=tuple(
        Message(round=number, stage="share", sender="client:1", receiver="server", artifact=artifact)  # type: ignore[arg-type]
        for number, artifact in enumerate(artifacts)
    ))  # fmt: skip


def test_a_view_gives_rows_of_single_images_before_other_styles():
    pooled = StyleStatistics(mean=torch.zeros(2), std=torch.ones(2))
    rows = ImageStyles(mean=torch.ones(3, 2), std=torch.ones(3, 2))
    spectra = Amplitudes(values=torch.ones(3, 3, 4, 3), owner=torch.ones(3).long())

    for messages in ((rows, pooled), (pooled, rows), (spectra, rows, pooled)):
        view = sent(*messages)
        assert view.artifact("client:1") is rows
        found = view.styles("client:1")
        assert found is not None
        assert found[0] is rows.mean
    assert sent(spectra, pooled).artifact("client:1") is spectra


def test_a_row_reads_one_of_several_kinds_of_styles():
    reads = partly_read(Membership(), {"StyleStatistics": 1, "ImageStyles": 1, "ModelState": 3})
    other = partly_read(Reidentification(), {"StyleStatistics": 1, "ImageStyles": 1})
    row = Measurement(name="auc", value=0.5, low=0.4, high=0.6, chance=0.5, chance_kind="exact", n=9, p_value=0.5)
    assert reads(row, 1) == "reads 1 of 2 releases that differ"
    assert other(row, 1) == ""


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("jpeg_quality", 1000, "jpeg_quality of 1 to 100; got 1000"),
        ("jpeg_quality", 0, "jpeg_quality of 1 to 100; got 0"),
        ("low_frequency", -0.1, "low_frequency of 0 to 1; got -0.1"),
        ("amplitude_ratio", float("nan"), "amplitude_ratio of 0 to 1; got nan"),
        ("eps", float("inf"), "finite eps of at least 0; got inf"),
    ],
)
def test_ccst_refuses_options_outside_their_range(option: str, value: float, said: str):
    with pytest.raises(UsageError, match=said):
        replace(CCST(), **{option: value}).check(3)


@pytest.mark.medium
def test_an_attack_on_pooled_styles_reads_them(own_cache: object):
    result = fdgsec.attack(
        Both(encoder="pixels"), attacks=(Differencing(clients=4, size=10),), per_domain=80, image_size=16
    ).attacks[0]
    assert result.status == "done", result.reason


@pytest.mark.medium
def test_a_bank_of_pooled_styles_is_no_look_up_of_single_images(own_cache: object):
    report = fdgsec.attack(
        Both(encoder="pixels"), adversary="client", per_domain=80, image_size=16,
        attacks=(Membership(row_size=20, clients=4, cropped_clients=0), Reidentification(gallery=60, rows=40)),
    )  # fmt: skip
    members, looked_up = report.attacks
    assert looked_up.status == "skipped"
    assert "images, and the adversary saw 1 of it" in looked_up.reason
    quiet = [row.verdict for row in members.measurements if row.judged and not row.leaks]
    assert quiet
    assert all(verdict.endswith("no evidence of protection") for verdict in quiet)


def test_a_bank_of_a_method_that_sends_several_kinds_does_not_say_which():
    row = Measurement(name="auc", value=0.5, low=0.4, high=0.6, chance=0.5, chance_kind="exact", n=9, p_value=0.5)
    kinds = frozenset({"StyleStatistics", "ImageStyles", "ModelState"})
    assert partly_read(Membership(), {"StyleBank": 1}, kinds)(row, 1) == (
        "reads a bank of one of ImageStyles, StyleStatistics"
    )
    assert partly_read(Membership(), {"StyleBank": 1}, kinds - {"ImageStyles"})(row, 1) == ""
