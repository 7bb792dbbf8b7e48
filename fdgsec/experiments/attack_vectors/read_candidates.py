"""Readers for candidates' statistics in place of images, and for the list of those that are behind each vector.

Candidates are a table with one row per image in the layout of vectors (.csv, .npy). The truth is a CSV file with one
line per candidate and a single column: `member`, 0 or 1, about one vector; or `client`, the number of the vector that
the image is behind, counted from 1, and 0 for none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.attack_vectors.read_vectors import check_file, csv_lines, read_table, styles_of_table
from fdgsec.nn.styles.channel_statistics import Moments, linear_statistic
from fdgsec.runtime.errors import DataError, UsageError

OF_CANDIDATES = ("member", "client")


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateTable:
    """Candidates without pixels: `moments` by row, `images` as blank placeholders, and whose they are.

    `owner` (G,) is the number of the vector that each image is behind, from 1, and 0 for none; None where unknown."""

    moments: Moments
    images: DomainDataset
    owner: Tensor | None = None

    def statistics(self, dataset: DomainDataset) -> Moments:
        """The moments of each image of `dataset`, a subset of `images`."""
        return self.moments.rows(dataset.rows)

    def members(self, vector: int) -> Tensor:
        """Which candidates are behind a vector, counted from 0: (G,) bool."""
        assert self.owner is not None
        return self.owner == vector + 1


def read_candidates(path: Path, truth: Path | None) -> CandidateTable:
    """Read candidates and, where there is one, their truth. Raises UsageError or DataError, naming the file."""
    check_file(path, "--candidates", (".csv", ".npy"))
    owner = None if truth is None else _read_owner(truth)
    return candidate_table(read_table(path), owner, where=str(path))


def candidate_table(values: Tensor, owner: Tensor | None, *, where: str) -> CandidateTable:
    """Check a table (G, 2C), `where` it is from, with the `owner` (G,) of each row; see CandidateTable.

    Raises DataError for fewer than two rows, equal rows only, or an owner of other length."""
    mean, std = styles_of_table(values, where)
    count = len(values)
    if count < 2 or bool((values == values[0]).all()):
        raise DataError(f"{where} must hold two candidates or more that differ; got {count} rows.")
    if owner is not None and len(owner) != count:
        raise UsageError(f"the truth has {len(owner)} lines for {count} candidates; give one line per row of {where}.")
    t = linear_statistic(mean.double(), std.double())
    first, second = t.chunk(2, dim=1)
    nothing = torch.zeros(count, dtype=torch.int64)
    images = DomainDataset(
        name="candidates", store=torch.zeros(count, 3, 1, 1, dtype=torch.uint8), rows=torch.arange(count),
        labels=nothing, domains=nothing, ids=tuple(f"row {number}" for number in range(1, count + 1)),
        class_names=("any",), domain_names=("any",),
    )  # fmt: skip
    moments = Moments(count=torch.ones(count, dtype=torch.float64), mean=first, m2=second - first.square())
    return CandidateTable(moments=moments, images=images, owner=owner)


def _read_owner(path: Path) -> Tensor:
    """Read the truth about candidates: a column `member` or `client`, (G,) int64."""
    if not path.is_file():
        raise UsageError(f"--truth {path} is not a file; with --candidates, give a CSV file with a line per candidate.")
    lines = [[cell.strip() for cell in line] for line in csv_lines(path) if any(cell.strip() for cell in line)]
    header: Sequence[str] = lines[0] if lines else []
    if len(header) != 1 or header[0] not in OF_CANDIDATES:
        raise UsageError(
            f"{path} must have one column, member or client, with a line per candidate; its header is "
            f"{', '.join(header) or 'missing'}."
        )
    found = []
    for number, line in enumerate(lines[1:], 2):
        is_number = len(line) == 1 and line[0].isdecimal() and len(line[0]) < 10
        if not is_number or (header[0] == "member" and line[0] not in ("0", "1")):
            expected = "0 or 1" if header[0] == "member" else "0 or the number of a vector"
            raise DataError(f"{path}, line {number}: {header[0]} must be {expected}; got {', '.join(line)!r}.")
        found.append(int(line[0]))
    return torch.tensor(found, dtype=torch.int64)
