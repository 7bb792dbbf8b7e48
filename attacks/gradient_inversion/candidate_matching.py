"""Rankings of candidate images, by the gradient that was seen and by the edges of its reconstruction."""

import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.gradient_matching import batch_gradient
from fdgsec.attacks.gradient_inversion.single_step_updates import ObservedStep

GRAY = (0.299, 0.587, 0.114)


def alignment(step: ObservedStep, images: Tensor, label: int) -> Tensor:
    """The cosine of each image's own gradient under `label` with the observed one, (n,); images are (n, 3, H, W)."""
    device = next(step.model.parameters()).device
    goal = torch.cat([part.flatten() for part in step.gradient.values()])
    told, fits = torch.tensor([label], device=device), list[Tensor]()
    for image in images.to(device).split(1):
        made = batch_gradient(step.model, image, told, statistics=step.statistics)
        fits.append(torch.cosine_similarity(torch.cat([made[name].flatten() for name in step.gradient]), goal, dim=0))
    return torch.stack(fits).cpu()


def outline_distances(pictures: Tensor, candidates: Tensor) -> Tensor:
    """1 - the correlation of the edge maps of each reconstruction (R, 3, H, W) and each candidate, (R, G).

    Colors and signs are ignored, because a fit through a trained network recovers edges before colors."""
    drawn, true = _edges(pictures), _edges(candidates)
    apart: Tensor = 1 - drawn @ true.T
    return apart


def _edges(images: Tensor) -> Tensor:
    """The magnitude of the brightness gradient, smoothed, centered and of unit length: (n, (H - 1)(W - 1))."""
    gray = (images * torch.tensor(GRAY).reshape(3, 1, 1)).sum(1)
    slope = (gray.diff(dim=1)[:, :, 1:].square() + gray.diff(dim=2)[:, 1:].square()).sqrt()
    smooth = torch.nn.functional.avg_pool2d(slope.unsqueeze(1), 3, stride=1, padding=1).flatten(1)
    centered = smooth - smooth.mean(1, keepdim=True)
    unit: Tensor = centered / centered.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit
