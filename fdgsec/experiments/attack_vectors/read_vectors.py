"""Readers for the user's style vectors and truth file, with checks.

Vectors are an artifact (.safetensors), or numbers with one row per image, or per client: all channel means, then all
channel stds (.csv with or without a header, .npy). The truth is a CSV file with a line per image: `image` is its path
relative to the CSV file; `label`, `domain` and `member` are optional. Members are the images of the rows, in the order
of the rows; without the column `member`, all images are members. Non-members are further candidates."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.image_sources import DAMAGE, ImageFile, decode
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleBank, StyleStatistics
from fdgsec.federation.artifacts import decode as decoded
from fdgsec.federation.wire import LARGEST_PAYLOAD
from fdgsec.runtime.errors import ArtifactError, DataError, UsageError, unknown_name
from fdgsec.runtime.tensor_files import read_npy
from fdgsec.runtime.untrusted_text import read_bytes

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
"""Files of a folder that are read as images."""
OWN = "artifacts"
"""The name of target and method in reports on the user's vectors."""
READABLE = (ImageStyles.kind, StyleStatistics.kind, StyleBank.kind, Amplitudes.kind)
Rows = Literal["images", "clients"]
"""What a row of a table is of: one image of a single client, or all images of a client of its own."""
LARGEST_TABLE = 2**30
"""Bytes of a table in text."""
COLUMNS = ("image", "label", "domain", "member")


@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """One client's vectors: `rows` (R,) of the file, one per image, or a style `pooled` over images.

    `title` is the client's name where the user gave one."""

    artifact: Artifact
    rows: Tensor
    pooled: bool = False
    title: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Listed:
    """The images of a truth file; `members` is (n,) bool, None without that column.

    If not `labeled`, all labels of `images` are 0; if not `placed`, all domains are 0."""

    images: DomainDataset
    members: Tensor | None
    labeled: bool
    placed: bool

    @property
    def behind(self) -> Tensor:
        """The positions of the members, in the order of the rows."""
        everyone = torch.ones(len(self.images), dtype=torch.bool)
        return (everyone if self.members is None else self.members).nonzero().flatten()


def read_vectors(path: Path, *, rows: Rows = "images", option: str = "--artifacts") -> dict[str, Sent]:
    """Read a file of vectors, the value of `option`, by client name; a row of a table is of one of `rows`.

    A bank is split by its owners. Raises UsageError, DataError or ArtifactError, naming file and line."""
    check_file(path, option)
    if path.suffix == ".safetensors":
        return sent_of_artifact(_artifact(path), rows=rows, where=str(path))
    return sent_of_table(read_table(path), rows=rows, where=str(path))


def check_file(path: Path, option: str, suffixes: Sequence[str] = (".safetensors", ".csv", ".npy")) -> None:
    """Raise UsageError unless `path`, the value of `option`, is a file with one of `suffixes`."""
    if not path.is_file():
        kinds = "an artifact (.safetensors), or rows" if ".safetensors" in suffixes else "rows"
        raise UsageError(f"{option} {path} is not a file; give {kinds} as .csv or .npy.")
    if path.suffix not in suffixes:
        raise UsageError(f"{option} {path} must end in {', '.join(suffixes)}; got {path.suffix or 'no suffix'}.")


def check_channels(sent: Mapping[str, Sent], *, channels: int, encoder: str, where: str) -> None:
    """Raise UsageError where vectors have not the `channels` of the encoder called `encoder`."""
    for one in sent.values():
        artifact = one.artifact
        if isinstance(artifact, ImageStyles | StyleStatistics) and artifact.mean.shape[-1] != channels:
            raise UsageError(
                f"{where} has {artifact.mean.shape[-1]} channels, encoder {encoder} has {channels}; name the encoder "
                "of the vectors with --encoder."
            )


def _artifact(path: Path) -> Artifact:
    artifact = decoded(read_bytes(path, largest=LARGEST_PAYLOAD), source=str(path))
    if artifact.kind not in READABLE:
        raise UsageError(
            f"{path} is a {artifact.kind}; --artifacts reads {', '.join(READABLE)}. For other kinds, use --run."
        )
    return artifact


def sent_of_artifact(artifact: Artifact, *, rows: Rows = "images", where: str) -> dict[str, Sent]:
    """Split a bank or spectra by owners; a bank with a single row per owner holds pooled styles.

    Styles of images are those of clients where `rows` says so. Raises UsageError where they cannot be."""
    if rows == "clients" and isinstance(artifact, ImageStyles):
        return _of_clients(artifact.mean, artifact.std)
    if isinstance(artifact, StyleBank | Amplitudes):
        found = _by_owner(artifact)
    else:
        pooled = isinstance(artifact, StyleStatistics)
        count = 1 if pooled else len(next(iter(artifact.tensors().values())))
        found = {"client:1": Sent(artifact=artifact, rows=torch.arange(count), pooled=pooled)}
    if rows == "clients" and not all(one.pooled for one in found.values()):
        raise UsageError(f"{where} does not hold one style per client, as --rows clients says; leave it out.")
    return found


def _by_owner(artifact: StyleBank | Amplitudes) -> dict[str, Sent]:
    owned = {f"client:{owner}": artifact.owner == owner for owner in artifact.owner.unique().tolist()}
    if isinstance(artifact, Amplitudes):
        spectra = {
            name: Amplitudes(values=artifact.values[mine], owner=artifact.owner[mine]) for name, mine in owned.items()
        }
        return {name: Sent(artifact=own, rows=owned[name].nonzero().flatten()) for name, own in spectra.items()}
    pooled = all(int(mine.sum()) == 1 for mine in owned.values())
    parts = {name: (artifact.mean[mine], artifact.std[mine]) for name, mine in owned.items()}
    return {
        name: Sent(
            artifact=StyleStatistics(mean=mean[0], std=std[0]) if pooled else ImageStyles(mean=mean, std=std),
            rows=owned[name].nonzero().flatten(), pooled=pooled,
        )
        for name, (mean, std) in parts.items()
    }  # fmt: skip


def sent_of_table(values: Tensor, *, rows: Rows, where: str) -> dict[str, Sent]:
    """Read rows (R, 2C), means then stds, as those of one client's images, or of R clients.

    Raises DataError, with `where` they are from, for other shapes, numbers that are not finite, and negative stds."""
    mean, std = styles_of_table(values, where)
    if rows == "clients":
        return _of_clients(mean, std)
    styles = ImageStyles(mean=mean.double(), std=std.double())
    return {"client:1": Sent(artifact=styles, rows=torch.arange(len(values)))}


def styles_of_table(values: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Split rows (R, 2C) into means and stds (R, C). Raises DataError, with `where` they are from."""
    if values.ndim != 2 or not len(values) or values.shape[1] % 2 or not values.shape[1]:
        raise DataError(f"{where} must have rows of 2 C numbers, means then stds; got {tuple(values.shape)}.")
    mean, std = (part.contiguous() for part in values.chunk(2, dim=1))
    try:
        ImageStyles(mean=mean, std=std)
    except ArtifactError as error:
        raise DataError(f"{where}: {error}") from error
    return mean, std


def _of_clients(mean: Tensor, std: Tensor) -> dict[str, Sent]:
    """One client per row of (R, C), in the precision in which they are given."""
    return {
        f"client:{number + 1}": Sent(
            artifact=StyleStatistics(mean=mean[number].clone(), std=std[number].clone()), rows=torch.tensor([number]),
            pooled=True,
        )
        for number in range(len(mean))
    }  # fmt: skip


def read_table(path: Path) -> Tensor:
    """Read the numbers (R, 2C) of a .csv or .npy file, as precisely as they are written.

    Raises DataError, naming file and line."""
    return _from_npy(path) if path.suffix == ".npy" else _from_csv(path)


def _from_npy(path: Path) -> Tensor:
    expected = f"{path} must hold numbers (rows, 2 C): means, then stds; it"
    values = read_npy(read_bytes(path, largest=LARGEST_PAYLOAD), source=expected)
    if values.ndim != 2:
        raise DataError(
            f"{path} must hold numbers (rows, 2 C): means, then stds; got {values.shape} of {values.dtype}."
        )
    return tensor_of(values)


def tensor_of(values: "npt.NDArray[Any]") -> Tensor:
    """The numbers of an array in float32 where that holds them exactly by type (float16, float32), else in float64."""
    exact = np.float32 if values.dtype.kind == "f" and values.dtype.itemsize <= 4 else np.float64
    return torch.from_numpy(np.ascontiguousarray(values, dtype=exact).copy())


def _from_csv(path: Path) -> Tensor:
    lines = [line for line in csv_lines(path) if any(cell.strip() for cell in line)]
    if lines and not _number(lines[0][0]):
        _check_header([cell.strip() for cell in lines[0]], path)
        lines = lines[1:]
    widths = {len(line) for line in lines}
    if len(widths) > 1:
        raise DataError(
            f"{path} has rows of {min(widths)} and of {max(widths)} numbers; all rows must have the same length."
        )
    for count, line in enumerate(lines, 1):
        wrong = next((cell for cell in line if not _number(cell)), None)
        if wrong is not None:
            raise DataError(f"{path}, row {count}: {wrong!r} is not a number.")
    return torch.tensor([[float(cell) for cell in line] for line in lines], dtype=torch.float64)


def _check_header(names: Sequence[str], path: Path) -> None:
    half = len(names) // 2
    fits = [name.startswith("mean") for name in names[:half]] + [name.startswith("std") for name in names[half:]]
    if len(names) % 2 or not all(fits):
        raise DataError(
            f"{path} must have columns mean..., then as many columns std...; its header begins {', '.join(names[:3])}."
        )


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def csv_lines(path: Path) -> list[list[str]]:
    """The cells of a CSV file in UTF-8, by line. Raises DataError."""
    try:
        text = read_bytes(path, largest=LARGEST_TABLE).decode("utf-8-sig")
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV in UTF-8: {error}.") from error


def read_truth(
    path: Path, *, image_size: int | None, classes: Sequence[str] = (), domains: Sequence[str] = ()
) -> Listed:
    """Read a truth file and its images, at `image_size` (None: their own size, which must be square and equal).

    `classes` and `domains` are the names of the public images; if empty, those of the file are used. Raises UsageError
    or DataError, naming the line, for missing files and invalid values."""
    rows = _truth_rows(path)
    files = [path.parent / row["image"] for row in rows]
    for line, file in enumerate(files, 2):
        if not _is_file(file):
            raise DataError(f"{path}, line {line}: there is no image {file}.")
    names = {key: tuple(known) or tuple(dict.fromkeys(row[key] for row in rows if key in row)) or ("any",)
             for key, known in (("label", classes), ("domain", domains))}  # fmt: skip
    numbers = {key: _numbers(rows, key, names[key], path) for key in ("label", "domain")}
    size = image_size or _common_size(files, path)
    listed = [
        ImageFile(path=row["image"], id=row["image"], domain=0, label=0, size=file.stat().st_size)
        for row, file in zip(rows, files, strict=True)
    ]
    named = {row["image"]: file for row, file in zip(rows, files, strict=True)}
    images = DomainDataset(
        name=path.name, store=decode(_Named(path, named), listed, image_size=size),
        rows=torch.arange(len(rows)), labels=numbers["label"], domains=numbers["domain"],
        ids=tuple(row["image"] for row in rows), class_names=names["label"], domain_names=names["domain"],
    )  # fmt: skip
    return Listed(images=images, members=_members(rows, path), labeled="label" in rows[0], placed="domain" in rows[0])


def images_of_folder(folder: Path, *, image_size: int | None) -> DomainDataset:
    """Every image in a folder and those in it, in the order of their names, without labels or domains.

    Raises DataError where there are none, UsageError where they are not of one size and none is given."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())
    if not files:
        raise DataError(f"{folder} holds no images ({', '.join(PICTURES)}).")
    names = [path.relative_to(folder).as_posix() for path in files]
    listed = [
        ImageFile(path=name, id=name, domain=0, label=0, size=file.stat().st_size)
        for name, file in zip(names, files, strict=True)
    ]
    size = image_size or _common_size(files, folder)
    nothing = torch.zeros(len(files), dtype=torch.int64)
    return DomainDataset(
        name=folder.name, store=decode(_Named(folder, dict(zip(names, files, strict=True))), listed, image_size=size),
        rows=torch.arange(len(files)), labels=nothing, domains=nothing, ids=tuple(names), class_names=("any",),
        domain_names=("any",),
    )  # fmt: skip


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long for the system
        return False


def _truth_rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise UsageError(
            f"--truth {path} is not a file; give a CSV file with the column image, and label, domain, member if known."
        )
    header, *lines = [[cell.strip() for cell in line] for line in csv_lines(path) if line] or [[]]
    for name in header:
        if name not in COLUMNS:
            raise unknown_name(f"column of {path}", name, COLUMNS)
    if "image" not in header or not lines:
        raise DataError(f"{path} must have a header with a column image, and a line per image; got {len(lines)} lines.")
    for number, line in enumerate(lines, 2):
        if len(line) != len(header) or not all(line):
            raise DataError(f"{path}, line {number}: {len(header)} cells are needed, none of them empty; got {line}.")
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    images = [row["image"] for row in rows]
    if len(set(images)) < len(images):
        twice = next(name for name in images if images.count(name) > 1)
        raise DataError(f"{path} names {twice} twice; list every image once.")
    return rows


def _members(rows: Sequence[Mapping[str, str]], path: Path) -> Tensor | None:
    if "member" not in rows[0]:
        return None
    said = {"0": False, "1": True}
    for number, row in enumerate(rows, 2):
        if row["member"] not in said:
            raise DataError(f"{path}, line {number}: member must be 0 or 1; got {row['member']!r}.")
    return torch.tensor([said[row["member"]] for row in rows])


def _numbers(rows: Sequence[Mapping[str, str]], key: str, names: Sequence[str], path: Path) -> Tensor:
    if key not in rows[0]:
        return torch.zeros(len(rows), dtype=torch.int64)
    places = {name: number for number, name in enumerate(names)}
    for line, row in enumerate(rows, 2):
        if row[key] not in places:
            raise unknown_name(
                f"{key} in {path}, line {line}:",
                row[key],
                names,
                note=f" in --dataset; else leave the column {key} out",
            )
    return torch.tensor([places[row[key]] for row in rows])


def _common_size(files: Sequence[Path], path: Path) -> int:
    sizes = set()
    for file in files:
        try:
            with Image.open(file) as image:
                sizes.add(image.size)
        except DAMAGE as error:
            raise DataError(f"{file} cannot be decoded ({error}); replace it.") from error
    width, height = next(iter(sizes))
    if len(sizes) > 1 or width != height:
        raise UsageError(f"images of {path} are not of one square size (one is {width} x {height}); give --image-size.")
    return int(width)


class _Named:
    """A source of images whose files have the names of the truth file."""

    def __init__(self, path: Path, named: Mapping[str, Path]) -> None:
        self.path = path
        self._named = named
        self.files: Mapping[str, int] = {name: file.stat().st_size for name, file in named.items()}

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        return self._named[name].read_bytes()

    def stamp(self, name: str) -> str:
        """The modification time of one file."""
        return str(self._named[name].stat().st_mtime_ns)
