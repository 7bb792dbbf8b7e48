"""Images that the authors' loaders hand out: in memory, where their own datasets read files."""

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor
from torch.utils.data import Dataset

RecordT = TypeVar("RecordT")


@dataclass(frozen=True)
class ImagesInMemory(Dataset[RecordT]):
    """Normalized float images (N, 3, H, W) and labels (N,); a subclass says what a record is made of."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)
