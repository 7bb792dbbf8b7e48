"""Every dataset of the catalogue, read from a small tree in its true layout, through all that reads datasets."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fdgsec.data.catalog import DATASETS, load_dataset
from fdgsec.data.domain_groups import join_domains
from fdgsec.data.domains import DomainDataset
from fdgsec.data.official_split_masks import PARTS
from fdgsec.data.partition import Scheme, lodo, partition, stablefdg_minimum
from fdgsec.data.roles import split_roles
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.random_streams import stream
from tests.support.layouts import LAYOUTS, Layout, write

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def load(layout: Layout, root: Path, *, allow_partial: bool = True) -> DomainDataset:
    return load_dataset(layout.dataset, data_root=root, image_size=8, allow_partial=allow_partial)


def sources_of(layout: Layout, data: DomainDataset) -> DomainDataset:
    """All but the domain that is unseen by default, or the last one there is in the small tree."""
    data, name = join_domains(data, DATASETS[layout.dataset].target_domain or str(data.domain_names[-1]))
    target = data.domain_index(name)
    return data.subset(lodo(data, target if target in data.domains else int(data.domains[-1])).train)


@every_layout
def test_a_true_layout_gives_its_images_domains_classes_and_splits(tmp_path: Path, layout: Layout) -> None:
    data = load(layout, write(tmp_path, layout.files()))

    assert len(data) == len(set(data.ids)) == layout.images
    assert len(data.domains.unique()) == layout.domains
    assert len(data.labels.unique()) == layout.classes
    assert tuple(data.split_names) == layout.splits
    assert sum(len(data.of_split(split)) for split in layout.splits) in (0, layout.images, 4, 2)


@every_layout
def test_every_split_that_is_read_is_known_to_the_catalogue_and_has_a_part(layout: Layout) -> None:
    assert set(layout.splits) <= set(DATASETS[layout.dataset].official) <= set(PARTS)


@every_layout
def test_roles_leave_the_federation_the_most(tmp_path: Path, layout: Layout) -> None:
    sources = sources_of(layout, load(layout, write(tmp_path, layout.files())))

    assert len(split_roles(sources, rng=stream(0, "world")).federation) >= len(sources) // 2


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A partition as one of the papers uses it: so many clients in all, or to each domain."""

    scheme: Scheme
    clients: int | None = None
    per_domain: int | None = None
    cap: bool = True

    def number(self, domains: int) -> int | None:
        return self.clients if self.per_domain is None else self.per_domain * domains


SPREADS = {
    "CCST's domain each": Spread(scheme="domain"),
    "StableFDG's single-domain, one client each": Spread(scheme="single-domain", per_domain=1),
    "StableFDG's and FedAlign's single-domain": Spread(scheme="single-domain", per_domain=2),
    "StableFDG's multi-domain": Spread(scheme="dirichlet", clients=2),
    "FedAlign's Dirichlet": Spread(scheme="dirichlet", clients=2, cap=False),
    "FISC's lambda": Spread(scheme="lambda", clients=2),
}


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS.keys())
@every_layout
def test_every_partition_hands_each_source_image_to_one_client(tmp_path: Path, layout: Layout, spread: Spread) -> None:
    sources = sources_of(layout, load(layout, write(tmp_path, layout.files())))
    seen = len(sources.domains.unique())
    number = spread.number(seen)

    parts = partition(
        sources, spread.scheme, rng=stream(0, "world"), clients=number, alpha=0.5, cap=spread.cap, lam=0.5
    )

    assert len(parts) == (number or seen)
    assert sorted(name for part in parts for name in part.data.ids) == sorted(sources.ids)
    assert min(len(part.data) for part in parts) >= 1
    if spread.scheme in ("domain", "single-domain"):
        assert all(len(part.data.domains.unique()) == 1 for part in parts)
    if spread.scheme == "dirichlet":
        assert min(len(part.data) for part in parts) >= stablefdg_minimum(len(sources), 2)


@every_layout
def test_an_archive_gives_what_the_folder_gives(tmp_path: Path, layout: Layout) -> None:
    packed = tmp_path / f"{layout.dataset}.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in layout.files().items():
            archive.writestr(path, content)

    first, second = load(layout, write(tmp_path / "tree", layout.files())), load(layout, packed)

    assert first.content_sha256 == second.content_sha256


@pytest.mark.parametrize(
    "layout",
    # a folder of one's own is never incomplete, femnist is as prepared, midog's editions differ in number
    [layout for layout in LAYOUTS if layout.dataset not in ("folder", "femnist", "midog")],
    ids=lambda layout: layout.name,
)
def test_an_incomplete_set_is_refused_unless_that_is_allowed(tmp_path: Path, layout: Layout) -> None:
    root = write(tmp_path, layout.files())

    with pytest.raises(DataError, match=r"is not the known .*--allow-partial") as caught:
        load(layout, root, allow_partial=False)
    assert "\n" not in str(caught.value)
