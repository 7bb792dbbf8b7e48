"""Reconstructions that say what pictures could show: measured like others, and no evidence of a leak."""

from dataclasses import asdict, replace

import pytest
import torch

from fdgsec.data.domains import downsample
from fdgsec.experiments.claims.verdicts import Criterion, evidence_of
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.attack import Truth
from tests.support.judged import case, judged
from tests.support.one_domain import one_domain

TRUE = one_domain(torch.randint(0, 256, (12, 3, 24, 24), generator=stream(0, "attack"), dtype=torch.uint8))
NEAR = downsample(TRUE.pixels(), (12, 12))
ANSWER = Reconstructions(case=0, images=NEAR * 0.9, controls={"B0": NEAR * 0.5, "B3": NEAR * 0.5})
TRUTH = Truth(images=TRUE.pixels(), rows=torch.arange(12))


def rows(*, descriptive: bool) -> dict[tuple[str, ...], Measurement]:
    return judged([replace(ANSWER, descriptive=descriptive)], [case(candidates=TRUE)], [TRUTH])


def test_descriptive_reconstructions_have_the_same_numbers_and_no_verdict():
    plain, described = rows(descriptive=False), rows(descriptive=True)

    assert plain["psnr_gain", "B3"].leaks
    assert plain["gallery_top1", "mse"].leaks
    sets = {key for key, row in plain.items() if row.unavailable}  # 12 pixels are too few for mini
    assert {key[0] for key in sets} == {"frechet_mini", "kernel_mini"}
    assert {row.verdict for key, row in described.items() if key not in sets} == {"descriptive"}
    for key, row in described.items():
        if key in sets:
            continue
        assert asdict(row) == {**asdict(plain[key]), "higher_is": "descriptive", "p_value": None}


def test_no_claim_is_decided_by_a_descriptive_row():
    gain = Criterion(measurement="psnr_gain", where={"over": "B3"})

    assert evidence_of(rows(descriptive=False)["psnr_gain", "B3"].document(), gain) is not None
    assert evidence_of(rows(descriptive=True)["psnr_gain", "B3"].document(), gain) is None


def test_one_slice_cannot_be_descriptive_in_part():
    answers = [ANSWER, replace(ANSWER, case=1, descriptive=True)]

    with pytest.raises(ValueError, match="must all be descriptive, or none"):
        judged(answers, [case(candidates=TRUE)] * 2, [TRUTH] * 2)
