import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from fdgsec.data.fetch import fetch_dataset
from fdgsec.data.hub import write_hub_copy
from fdgsec.runtime.errors import DataError, DatasetNotFoundError, MissingResourceError
from tests.support.local_site import Site
from tests.support.tiny_dataset import JPEG, PAGE, PNG, files_below


@pytest.fixture
def site(site: Site) -> Site:
    site.files["api/datasets/someone/tiny"] = b"{}"
    return site


Fetch = Callable[..., list[Path]]


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    def run(progress: Callable[[str, int, int], None] | None = None) -> list[Path]:
        return fetch_dataset(
            "tiny",
            title="Tiny",
            page=PAGE,
            root=tmp_path / "data",
            folder="Tiny",
            hub="someone/tiny",
            progress=progress,
        )

    return run


@dataclass
class ClassLabel:
    names: Sequence[str]


@dataclass
class ImageColumn:
    decode: bool = True


@dataclass
class Table:
    """A split in the layout of the hub's flwrlabs copies; images are bytes only once the column is cast."""

    rows: Sequence[Mapping[str, object]]
    features: Mapping[str, object] = field(
        default_factory=lambda: {"image": ImageColumn(), "domain": "string", "label": ClassLabel(["dog", "house"])}
    )

    def cast_column(self, column: str, feature: object) -> "Table":
        assert (column, feature) == ("image", ImageColumn(decode=False))
        return Table(self.rows, {**self.features, column: feature})

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        assert self.features["image"] == ImageColumn(decode=False)
        return iter(self.rows)


def row(content: object, path: str | None, domain: object, label: int) -> dict[str, object]:
    return {"image": {"bytes": content, "path": path}, "domain": domain, "label": label}


@pytest.fixture
def hub(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Table]:
    """Install a `datasets` whose one repository is what the test puts into this mapping, and a hub that can be reached."""
    splits: dict[str, Table] = {}
    library = ModuleType("datasets")

    def load_dataset(path: str) -> Mapping[str, Table]:
        print("Downloading: 100%", file=sys.stderr)
        if path != "someone/tiny" or not splits:
            raise ConnectionError(f"Couldn't reach '{path}' on the Hub\n(LocalEntryNotFoundError)")
        return splits

    vars(library).update(load_dataset=load_dataset, Image=ImageColumn)
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setenv("HF_ENDPOINT", site.address)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return splits


def test_a_hub_copy_becomes_folders_of_the_bytes_it_holds(hub, tmp_path, fetch):
    hub["train"] = Table([
        row(JPEG, "pic_001.jpg", "art_painting", 0),
        row(PNG, None, "sketch", 1),
        row(PNG, None, "sketch", 1),
    ])  # fmt: skip
    hub["test"] = Table([row(JPEG, "elsewhere/PIC_001.JPG", "art_painting", 0), row(PNG, "a.jpg", "Real World", 0)])
    seen: list[tuple[str, int, int]] = []

    assert fetch(lambda *state: seen.append(state)) == [tmp_path / "data" / "Tiny"]

    assert files_below(tmp_path / "data" / "Tiny") == [
        "Real World/dog/a.png",
        "art_painting/dog/00002.jpg",
        "art_painting/dog/pic_001.jpg",
        "sketch/house/00001.png",
        "sketch/house/00002.png",
    ]
    assert (tmp_path / "data/Tiny/art_painting/dog/pic_001.jpg").read_bytes() == JPEG
    assert seen[-1] == ("writing Tiny", 5, 5)


def test_a_copy_may_call_its_columns_otherwise_and_number_its_centers(hub, tmp_path):
    columns = {"image": ImageColumn(), "center": "int64", "character": ClassLabel(["A", "a"])}
    rows = [{"image": {"bytes": PNG, "path": None}, "center": 4, "character": number} for number in (1, 0)]
    hub["train"] = Table(rows, columns)

    write_hub_copy("someone/tiny", tmp_path / "out", columns=("center", "character"))

    assert files_below(tmp_path / "out") == ["4/A/00001.png", "4/a/00001.png"]


def test_a_domain_may_be_the_number_of_a_name(hub, tmp_path, fetch):
    columns = {"image": ImageColumn(), "domain": ClassLabel(["photo", "sketch"]), "label": ClassLabel(["dog"])}
    hub["train"] = Table([row(PNG, None, 1, 0)], columns)

    fetch()

    assert files_below(tmp_path / "data" / "Tiny") == ["sketch/dog/00001.png"]


def test_the_librarys_own_bars_are_shown_on_a_terminal_alone(hub, fetch, capsys):
    hub["train"] = Table([row(PNG, None, "photo", 0)])

    fetch()

    assert capsys.readouterr() == ("", "")


def test_a_hub_copy_that_is_there_is_left_alone(hub, site, tmp_path, fetch):
    (tmp_path / "data" / "Tiny" / "photo").mkdir(parents=True)

    assert fetch() == [tmp_path / "data" / "Tiny"]
    assert site.asked == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(PNG, None, "../evil", 0), r"domain '\.\./evil' cannot name a folder"),
        (row(PNG, None, "/evil", 0), r"domain '/evil' cannot name a folder"),
        (row(PNG, None, "a/b", 0), "domain 'a/b' cannot name a folder"),
        (row(PNG, None, "a\nb", 0), "domain 'a.nb' cannot name a folder"),
        (row(PNG, None, "", 0), "domain '' cannot name a folder"),
        (row(PNG, None, None, 0), "domain None cannot name a folder"),
        (row(PNG, None, "photo", 2), "label 2 cannot name a folder"),
        (row(PNG, None, "photo", -1), "label -1 cannot name a folder"),
        (row(None, "/etc/hostname", "photo", 0), "image 1 is not stored in the table"),
        (row(b"<html>", None, "photo", 0), "image 1 is neither PNG nor JPEG; it begins with 3c68746d"),
    ],
)
def test_a_row_that_is_no_image_of_a_dataset_ends_the_writing_and_leaves_nothing(hub, tmp_path, fetch, bad, message):
    hub["train"] = Table([row(PNG, "good.png", "photo", 0), bad])

    with pytest.raises(DataError, match=message):
        fetch()

    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_name_on_the_hub_never_leads_outside_its_folder(hub, tmp_path, fetch):
    paths = ["../../evil.png", "..", "/etc/passwd", "..\\evil2.png", ".hidden.png", "a\nb.png"]
    hub["train"] = Table([row(PNG, path, "photo", 0) for path in paths])

    fetch()

    assert files_below(tmp_path) == [
        f"data/Tiny/photo/dog/{name}.png" for name in ("00002", "00005", "00006", "evil", "evil2", "passwd")
    ]


@pytest.mark.parametrize("where", ["cast", "read"])
def test_a_table_that_its_library_cannot_read_is_an_error_in_one_line(hub, tmp_path, fetch, where):
    @dataclass
    class Broken(Table):
        def cast_column(self, column: str, feature: object) -> "Broken":
            if where == "cast":
                raise TypeError("Couldn't cast array of type int64 to\nstruct<bytes: binary, path: string>")
            return Broken(self.rows, self.features)

        def __iter__(self) -> Iterator[Mapping[str, object]]:
            raise ValueError("Corrupt snappy\ncompressed data.")

    hub["train"] = Broken([row(PNG, None, "photo", 0)])

    with pytest.raises(DataError, match=r"^someone/tiny cannot be read: .* (struct|compressed data)") as caught:
        fetch()

    assert "\n" not in str(caught.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_other_columns_are_named(hub, fetch):
    hub["train"] = Table([], {"image": ImageColumn(), "style": "string"})

    with pytest.raises(DataError, match="must have the columns image, domain, label; it has image, style"):
        fetch()


def test_without_the_extra_the_error_names_it(fetch, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # what importing finds where nothing is installed

    with pytest.raises(MissingResourceError) as caught:
        fetch()

    assert str(caught.value) == 'the hub is read with the package `datasets`: run `pip install "fdgsec[hub]"`.'
    assert caught.value.exit_code == 3


def test_without_a_network_the_hubs_own_retries_are_not_waited_for(hub, tmp_path, fetch, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    hub["train"] = Table([row(PNG, None, "photo", 0)])  # the library would find it, so only the probe can fail
    monkeypatch.setattr(socket, "create_connection", refuse)

    with pytest.raises(
        DatasetNotFoundError, match=r"api/datasets/someone/tiny cannot be reached: .* unreachable\."
    ) as e:
        fetch()

    assert "\n" not in str(e.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_offline_the_network_is_not_touched_and_only_the_hubs_cache_is_used(hub, site, tmp_path, fetch, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(DatasetNotFoundError) as caught:
        fetch()
    assert str(caught.value) == (
        "Tiny was not fetched: someone/tiny cannot be loaded from the hub: Couldn't reach 'someone/tiny' on the Hub "
        f"(LocalEntryNotFoundError). Get it from {PAGE}, put it into {tmp_path / 'data'}, and run "
        "`fdgsec data check tiny`."
    )

    hub["train"] = Table([row(PNG, None, "photo", 0)])
    fetch()
    assert files_below(tmp_path / "data" / "Tiny") == ["photo/dog/00001.png"]
    assert site.asked == []
