"""Look-up features: the vectors compared between a released row and a candidate image."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import read_style_rows, style_rows_of
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Amplitudes, Artifact
from fdgsec.nn.styles.amplitude_spectra import amplitudes, low_frequencies
from fdgsec.nn.styles.image_styles import resized
from fdgsec.runtime.errors import UnseenError
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case

SPECTRA_AT_ONCE = 64


class RowFeatures(Protocol):
    """Features of one kind of rows: what is compared of a release and of an image, both (n, D)."""

    def rows(self, case: Case) -> Tensor:
        """The released rows, before they are rounded."""
        ...

    def images(self, dataset: DomainDataset) -> Tensor:
        """The same features of images."""
        ...

    def made(self, dataset: DomainDataset) -> Artifact:
        """The artifact of a client that releases all of its images."""
        ...

    def read(self, artifact: Artifact) -> Tensor:
        """The rows of such an artifact."""
        ...

    def compared(self, rows: Tensor) -> Tensor:
        """Map rows to the space in which distances are computed."""
        ...


@dataclass(frozen=True, kw_only=True)
class StyleRows:
    """Styles as single-image releases have them: (n, 2C), variance unbiased."""

    knowledge: Knowledge

    def rows(self, case: Case) -> Tensor:
        """Mean and std of each row, concatenated."""
        return torch.cat(case.released(), dim=1)

    def images(self, dataset: DomainDataset) -> Tensor:
        """The style of each image."""
        return torch.cat(self.knowledge.statistics(dataset).style(unbiased=True), dim=1)

    def made(self, dataset: DomainDataset) -> Artifact:
        """Mean and std of each image."""
        return style_rows_of(self.knowledge)(dataset)

    def read(self, artifact: Artifact) -> Tensor:
        """Mean and std of each row, concatenated."""
        return read_style_rows(artifact)

    def compared(self, rows: Tensor) -> Tensor:
        """Rows unchanged."""
        return rows


@dataclass(frozen=True, kw_only=True)
class SpectrumRows:
    """Low frequencies of amplitude spectra of `size` = (H, W) pixels, (n, 3 k), compared by logarithm.

    Natural amplitudes fall with the frequency by orders of magnitude, and differ between images by factors."""

    size: tuple[int, int]

    def rows(self, case: Case) -> Tensor:
        """The spectra that the victim sent."""
        return low_frequencies(spectra_of(case))

    def images(self, dataset: DomainDataset) -> Tensor:
        """The spectrum of each image, at the size of the release."""
        return torch.cat([low_frequencies(spectra) for spectra in self._whole(dataset)])

    def made(self, dataset: DomainDataset) -> Artifact:
        """The whole spectrum of each image."""
        return Amplitudes(values=torch.cat(list(self._whole(dataset))), owner=torch.ones(len(dataset)).long())

    def read(self, artifact: Artifact) -> Tensor:
        """Low frequencies of each row."""
        return low_frequencies(artifact.tensors()["values"])

    def _whole(self, dataset: DomainDataset) -> Iterator[Tensor]:
        side = None if dataset.image_size == self.size else self.size[0]
        for rows in torch.arange(len(dataset)).split(SPECTRA_AT_ONCE):
            yield amplitudes(as_float(resized(dataset.pixels(rows), side)))

    def compared(self, rows: Tensor) -> Tensor:
        """log(1 + A). Pixels lie in [0, 1], so that 1 is far below an image's amplitudes, and absent ones have little
        weight."""
        return rows.log1p()


def spectra_of(case: Case) -> Tensor:
    """The victim's spectra (R, channels, H, W // 2 + 1). Raises UnseenError where none were seen."""
    seen = case.views[0].artifact(case.victim)
    if not isinstance(seen, Amplitudes):
        raise UnseenError(f"the adversary saw no spectrum of {case.victim}.")
    return seen.values
