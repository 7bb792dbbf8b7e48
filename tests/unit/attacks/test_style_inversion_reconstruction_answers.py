"""Candidates of pooled rows, which every prior asks about: they are brought to the size of reconstructions once."""

import pytest
import torch

from fdgsec.attacks.style_inversion import reconstruction_answers
from fdgsec.attacks.style_inversion.reconstruction_answers import ShrunkCandidates
from fdgsec.data.domains import DomainDataset, downsample
from tests.support.one_domain import one_domain

SIDE = 4


def pictures(shrunk: ShrunkCandidates, sets: list[DomainDataset]) -> list[torch.Tensor]:
    return [shown() for shown in shrunk.of(sets, SIDE)]


def test_each_image_is_shrunk_once_for_all_priors(monkeypatch: pytest.MonkeyPatch):
    images, asked = one_domain(torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8)), list[int]()

    def counted(part: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        asked.append(len(part))
        return downsample(part, size)

    monkeypatch.setattr(reconstruction_answers, "downsample", counted)
    sets = [images.subset(torch.tensor(rows)) for rows in ([3, 1, 7], [7, 0])]
    shrunk = ShrunkCandidates()
    for _ in range(3):
        for found, one in zip(pictures(shrunk, sets), sets, strict=True):
            assert torch.equal(found, downsample(one.pixels(), (SIDE, SIDE)))

    assert asked == [4]


def test_other_candidates_are_not_those_that_were_kept():
    images = one_domain(torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8))
    first, second = (images.subset(torch.tensor(rows)) for rows in ([3, 1], [2, 9, 4]))
    shrunk = ShrunkCandidates()
    (earlier,), (later,) = shrunk.of([first], SIDE), shrunk.of([second], SIDE)

    assert torch.equal(earlier(), downsample(first.pixels(), (SIDE, SIDE)))
    assert torch.equal(later(), downsample(second.pixels(), (SIDE, SIDE)))
