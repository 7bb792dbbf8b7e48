"""Rows that are rounded alike for all images are looked up exactly, however coarsely they are rounded."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import fdgsec
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.cli.app import main
from fdgsec.metrics.measurement import Measurement


def rows(defense: str, *, name: str, **where: str) -> Sequence[Measurement]:
    report = fdgsec.attack(
        "ccst-single", attacks=(Membership(clients=20, row_size=12), Reidentification()), per_domain=84, image_size=32,
        defenses=[defense],
    )  # fmt: skip
    found = [row for result in report.attacks for row in result.measurements if row.name == name and row.judged]
    return [row for row in found if where.items() <= row.slice.items() and "extraction" not in row.slice]


@pytest.mark.medium
def test_two_bits_hide_neither_the_image_behind_a_row_nor_its_membership(own_cache: object):
    ranked = rows("quantize:bits=2", name="top1", rows="as_if_released", transform="known")
    members = rows("quantize:bits=2", name="auc", question="released image", look="whole image")

    assert ranked
    assert members
    assert all(row.low is not None and row.low > 0.5 for row in ranked)
    assert all(row.value is not None and row.value > 0.95 for row in members)


@pytest.mark.medium
def test_what_is_rounded_at_random_is_no_evidence_for_membership(own_cache: object):
    members = rows("quantize:bits=2,rounding=stochastic", name="auc", question="released image", look="whole image")

    assert members
    assert all(row.leaks or "not adapted to quantize" in row.verdict for row in members)


@pytest.mark.parametrize("k", [8, 13])
@pytest.mark.medium
def test_groups_of_more_rows_than_a_probe_has_are_attacked_and_the_dry_run_says_so(
    k: int, own_cache: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = (
        "attack", "--target", "ccst-single", "--per-domain", "120", "--image-size", "16", "--encoder", "pixels",
        "--defense", f"k-anonymous:k={k}", "--set", "method.styles_per_client=30", "--attack", "reidentification",
    )  # fmt: skip

    planned = main([*asked, "--dry-run"])
    said = capsys.readouterr().out
    done = main([*asked, "--out", str(tmp_path / "report")])

    assert planned == done == 0
    assert "runs" in said
