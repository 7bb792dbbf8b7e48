"""What must not support a claim: an attack that recovers what the claim says cannot be recovered."""

import pytest

from fdgsec.experiments.claims.catalogue import ledger
from fdgsec.experiments.claims.verdicts import Column, finding, verdicts


@pytest.mark.parametrize("name", ["ccst-outsider-reconstruction", "ccst-client-reconstruction"])
def test_pictures_that_pick_their_image_nearly_always_do_not_support_that_none_is_recognized(name: str) -> None:
    """The mean image has the smaller squared error here, as it may for pictures of the right shapes."""
    claim = next(one for one in ledger() if one.id == name)
    rows = []
    for criterion in claim.rows():
        value, half, chance = (0.95, 0.05, 1 / 105) if criterion.measurement == "gallery_top1" else (3.0, 0.5, 0.0)
        if criterion.where.get("over") == "B0":
            value = -1.0
        rows.append({
            "name": criterion.measurement, "slice": {**criterion.where, "domain": "cartoon"}, "value": value,
            "low": value - half, "high": value + half, "chance": chance, "n": 105, "higher_is": "leak", "p_value": 1e-9,
        })  # fmt: skip

    found = finding(rows, claim.rows(), controlled=True)

    assert verdicts({name: [Column(findings=[found] * 5)]})[name] != "supported"
