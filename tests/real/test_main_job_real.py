"""The main job on real PACS, capped so that it takes a minute: findings that must not go away."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdgsec
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.metrics.measurement import Measurement

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = os.environ.get("FDGSEC_DATA", "")
    if not folder or not (list(Path(folder).glob("pacs*.zip")) or (Path(folder) / "PACS").exists()):
        pytest.skip("PACS is not under $FDGSEC_DATA")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Path(folder)


def attacked(target: str, data_root: Path, *attacks: str) -> AttackReport:
    settings: dict[str, Any] = {"per_domain": 200, "image_size": 64}
    options = ["attacks.membership.sizes=[20, 80]", "attacks.membership.clients=20"]
    return fdgsec.attack(target, dataset="pacs", data_root=data_root, attacks=attacks, **settings, assignments=options)


def rows(report: AttackReport, attack: str, name: str) -> list[Measurement]:
    found = next(result for result in report.attacks if result.name == attack)
    assert found.status == "done", found.reason
    assert all(control.passed for control in [*found.positive, *found.negative])
    return [row for row in found.measurements if row.name == name]


@pytest.mark.medium
def test_pooled_styles_of_pacs_leak_the_added_image_and_membership(data_root: Path):
    report = attacked("ccst-overall", data_root, "differencing", "membership")

    errors = rows(report, "differencing", "relative_error")
    areas = {(row.slice["domain"], row.slice["n_per_client"]): row for row in rows(report, "membership", "auc")}

    assert all(row.value is not None and row.value < 1e-3 for row in errors)
    for domain in ("art_painting", "cartoon", "photo"):
        for size in (20, 80):  # fewer candidates than numbers: members lie in the span of what was whitened
            low = areas[domain, size].low
            assert low is not None
            assert low > 0.8


@pytest.mark.medium
def test_single_styles_of_pacs_name_the_image_and_the_domain(data_root: Path):
    report = attacked("ccst-single", data_root, "reidentification", "domain-inference")

    known = [row for row in rows(report, "reidentification", "top1") if row.slice["transform"] == "known"]
    domains = [row for row in rows(report, "domain-inference", "accuracy") if row.slice["rows"] == "as_if_released"]

    assert all(row.value is not None and row.value >= 0.95 for row in known)
    assert all(row.low is not None and row.low > 0.6 for row in domains)
