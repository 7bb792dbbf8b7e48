"""Vectors of one's own: images on disk, their color statistics in a file, and a list of what is known."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.nn.styles.image_styles import statistics

COLUMNS = ("image", "label", "domain", "member")


@dataclass(frozen=True)
class Own:
    """A folder with `pictures` of one domain, of which the first half is behind the rows (n / 2, 6) of a file."""

    folder: Path
    pictures: DomainDataset

    @property
    def rows(self) -> Tensor:
        """Mean beside std of the colors of the first half of the images."""
        half = self.pictures.subset(torch.arange(len(self.pictures) // 2))
        return torch.cat(statistics("pixels", half).style(unbiased=True), dim=1)

    @property
    def listed(self) -> list[tuple[str, str, str, str]]:
        """A line per image, in their order."""
        half = len(self.pictures) // 2
        names = [f"img/{number:03d}.png" for number in range(len(self.pictures))]
        labels = [self.pictures.class_names[int(label)] for label in self.pictures.labels]
        return [
            (name, label, "photo", str(int(n < half)))
            for n, (name, label) in enumerate(zip(names, labels, strict=True))
        ]

    def truth(self, columns: Sequence[str] = COLUMNS, *, name: str = "truth.csv") -> Path:
        """Write what is known, in these columns."""
        with (self.folder / name).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(columns)
            for line in self.listed:
                values: dict[str, str] = dict(zip(COLUMNS, line, strict=True))
                if "member" in columns or values["member"] == "1":
                    table.writerow([values[column] for column in columns])
        return self.folder / name

    def npy(self) -> Path:
        """Write the rows as .npy."""
        np.save(self.folder / "rows.npy", self.rows.numpy())
        return self.folder / "rows.npy"


def own(folder: Path, *, images: int = 40, side: int = 16) -> Own:
    """Write `images` photographs of shapes that the bundled data set does not hold."""
    drawn = shapes(image_size=side, per_domain=max(images, 70), seed=7).of_domain("photo")
    chosen = drawn.subset(torch.randperm(len(drawn), generator=torch.Generator().manual_seed(1))[:images])
    (folder / "img").mkdir(parents=True)
    for number, pixels in enumerate(chosen.pixels()):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / "img" / f"{number:03d}.png")
    return Own(folder, chosen)
