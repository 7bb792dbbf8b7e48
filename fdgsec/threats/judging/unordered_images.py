"""Pictures that come in no order, as those of one batch do: matched to the true ones before they are compared."""

from dataclasses import replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fdgsec.data.domains import shrunk
from fdgsec.threats.attack import Reconstructions
from fdgsec.threats.judging.galleries import squared_distances


def placed(answer: Reconstructions, images: Tensor) -> Reconstructions:
    """Bring pictures, and by itself each control, into the order of the true `images` (R, 3, H, W) uint8 that errs least.

    Squared errors are summed over the rows. Ordered answers stay as they are. Whoever is matched gains by it, even noise:
    hence the controls, too."""
    if answer.ordered:
        return answer
    true = shrunk(images, (int(answer.images.shape[2]), int(answer.images.shape[3])))
    return replace(
        answer,
        images=answer.images[_order(squared_distances(answer.images, true))],
        controls={name: values[_order(squared_distances(values, true))] for name, values in answer.controls.items()},
    )


def matched_psnr(guessed: Tensor, true: Tensor) -> float:
    """The mean PSNR of pictures (R, 3, h, w) in [0, 1] with true ones of this shape, in the best order."""
    error = squared_distances(guessed, true).to(torch.float64) / guessed[0].numel()
    return float(-10 * error[_order(error), torch.arange(len(true))].clamp_min(1e-10).log10().mean())


def per_answer(values: Tensor, sizes: list[int]) -> Tensor:
    """Average each answer's values (rows,): pictures that are matched together are no independent units."""
    return torch.stack([part.mean() for part in values.split(sizes)])


def _order(error: Tensor) -> Tensor:
    """Which row of `error` (R, R) goes to each column."""
    rows, columns = linear_sum_assignment(error.numpy(force=True))
    found = torch.empty(len(columns), dtype=torch.int64)
    found[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return found
