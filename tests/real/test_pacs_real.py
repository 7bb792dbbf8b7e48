"""The real PACS, where it is on disk: $FDGSEC_DATA holds a folder or an archive of it."""

import os
from pathlib import Path

import pytest
import torch

from fdgsec.data.catalog import DATASETS, load_dataset, locate
from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import lodo, partition
from fdgsec.data.roles import duplicate_groups, split_roles
from fdgsec.runtime.errors import DatasetNotFoundError
from fdgsec.runtime.random_streams import stream

pytestmark = [pytest.mark.data, pytest.mark.medium]


@pytest.fixture(scope="module")
def pacs() -> DomainDataset:
    if "FDGSEC_DATA" not in os.environ:
        pytest.skip("FDGSEC_DATA is not set: no real PACS to read")
    try:
        locate("pacs")
    except DatasetNotFoundError as missing:
        pytest.skip(str(missing))
    return load_dataset("pacs", image_size=32)


@pytest.mark.medium
def test_the_archive_is_the_known_pacs(pacs: DomainDataset) -> None:
    files = DATASETS["pacs"].files

    assert files is not None
    assert len(pacs) == 9991
    assert pacs.manifest_sha256 == files.manifest_sha256
    for index, domain in enumerate(pacs.domain_names):
        counts = pacs.labels[pacs.domains == index].bincount(minlength=7)
        assert counts.tolist() == files.counts[0][domain]


@pytest.mark.medium
def test_sketches_are_gray_and_light_and_photos_are_not(pacs: DomainDataset) -> None:
    def colorfulness(domain: str) -> float:
        return float(pacs.of_domain(domain).pixels().float().std(dim=1).mean())

    def lightness(domain: str) -> float:
        return float(pacs.of_domain(domain).pixels().float().mean())

    assert 10 * colorfulness("sketch") < colorfulness("photo")
    assert lightness("sketch") > 220
    assert lightness("photo") < 180


def test_a_quick_subset_is_part_of_the_whole(pacs: DomainDataset) -> None:
    quick = load_dataset("pacs", image_size=32, per_domain=100)

    positions = torch.tensor([pacs.ids.index(name) for name in quick.ids])
    assert quick.domains.bincount().tolist() == [100, 100, 100, 100]
    assert torch.equal(quick.pixels(), pacs.pixels(positions))


@pytest.mark.medium
def test_no_near_duplicates_of_pacs_have_two_roles(pacs: DomainDataset) -> None:
    roles = split_roles(pacs, rng=stream(0, "world"))

    groups = dict(zip(pacs.ids, duplicate_groups(pacs).tolist(), strict=True))
    sides = [{groups[name] for name in part.ids} for part in (roles.federation, roles.held_out, roles.auxiliary)]
    assert sides[0].isdisjoint(sides[1] | sides[2])
    assert sides[1].isdisjoint(sides[2])
    assert len(groups) - len(set(groups.values())) > 0  # PACS does hold duplicates: the claim is not empty


@pytest.mark.medium
def test_at_a_wider_threshold_hundreds_of_sketches_hang_together(pacs: DomainDataset) -> None:
    sketches = pacs.of_domain(pacs.domain_index("sketch"))

    assert int(duplicate_groups(sketches, threshold=0.05).bincount().max()) > 400
    assert int(duplicate_groups(sketches).bincount().max()) <= 2


def test_roles_of_pacs_hold_their_fractions_in_every_cell(pacs: DomainDataset) -> None:
    roles = split_roles(pacs, rng=stream(0, "world"))

    cells = (pacs.domains * 7 + pacs.labels).bincount()
    for part, fraction in ((roles.federation, 0.70), (roles.held_out, 0.15), (roles.auxiliary, 0.15)):
        found = (part.domains * 7 + part.labels).bincount(minlength=28)
        assert float((found - fraction * cells).abs().max()) <= 1.0 + 1e-4


def test_the_papers_partitions_of_pacs_leave_no_client_empty(pacs: DomainDataset) -> None:
    seen = pacs.subset(lodo(pacs, "sketch").train)

    stablefdg = partition(seen, "dirichlet", rng=stream(0, "world"), clients=30)
    fisc = partition(seen, "lambda", rng=stream(0, "world"), clients=100, lam=0.1)

    assert min(len(client.data) for client in stablefdg) >= 70
    assert sum(len(client.data) for client in fisc) == 2048 + 2344 + 1670


def test_the_original_file_is_found_by_the_path_of_the_archive_alone() -> None:
    root = os.environ.get("FDGSEC_DATA")
    archives = sorted(Path(root).glob("pacs*.zip")) if root else []
    if not archives:
        pytest.skip("FDGSEC_DATA holds no pacs*.zip")

    assert locate("pacs", archives[0]) == archives[0]
