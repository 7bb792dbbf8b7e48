"""Reconstruction of images from perturbations: decoders from G(x) to x, for a trained and an untrained generator.

FedDAG (Che et al. 2025, arXiv:2501.13967, section V-A) trains a classifier on perturbations and finds that it performs
poorly. A decoder tests this more directly: it is fitted to auxiliary images and their perturbations, and then
reconstructs an image from its perturbation alone. A convolutional network preserves edges whether it is trained or not.
The decoder of an untrained generator of the same architecture, fitted to the same images in the same steps, is
therefore the control that isolates the effect of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.attacks.generator_leakage.generator_membership import (
    TINY,
    GeneratorUpdate,
    perturbation_generator,
    perturbations,
)
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.answers import Reconstructions

WIDTH, STEPS, BATCH, RATE = 24, 200, 16, 4e-3
WINDOW, LEFT_OUT = 16, 32
CHECKED = 20
"""Steps between evaluations on the validation images."""
PUBLIC = 256
"""Maximum number of auxiliary images that decoders are fitted to."""


class Decoder(nn.Module):
    """Four convolutions that map perturbations (N, 3, H, W) to images in [0, 1] of the same shape.

    Inputs are standardized per channel with the training set's mean and standard deviation, so that the size of the
    output carries no information. Outputs are added to the mean training image. Weights are drawn from `rng` (He et al.
    2015), except the last ones, which start at zero: an untrained decoder returns the mean image. H and W are at least
    2."""

    center: Tensor
    scale: Tensor
    mean: Tensor

    def __init__(self, drawn: Tensor, pictures: Tensor, *, rng: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("center", drawn.mean((0, 2, 3), keepdim=True))
        self.register_buffer("scale", drawn.std((0, 2, 3), keepdim=True).clamp_min(TINY))
        self.register_buffer("mean", pictures.mean(0, keepdim=True))
        with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
            widths = (3, WIDTH, WIDTH, WIDTH, 3)
            self.layers = nn.ModuleList(
                nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect") for inputs, outputs in pairwise(widths)
            )
        self.layers.to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in self.layers.named_parameters():
                if name.endswith("bias") or name.startswith(f"{len(self.layers) - 1}."):
                    parameter.zero_()
                else:
                    parameter.normal_(0, (2 / parameter[0].numel()) ** 0.5, generator=rng)

    def forward(self, drawn: Tensor, corner: tuple[int, int] = (0, 0)) -> Tensor:
        """Reconstruct images, not yet clipped to [0, 1]; for windows whose upper left pixel is at `corner` of the
        image."""
        maps = (drawn - self.center) / self.scale
        for layer in self.layers[:-1]:
            maps = functional.relu(layer(maps))
        (top, left), (height, width) = corner, drawn.shape[2:]
        pictures: Tensor = self.mean[..., top : top + height, left : left + width] + self.layers[-1](maps)
        return pictures

    @torch.no_grad()
    def pictures(self, drawn: Tensor) -> Tensor:
        """Decode perturbations (N, 3, H, W) into images in [0, 1] of the same shape."""
        return torch.cat([self(part).clamp(0, 1) for part in drawn.split(BATCH)])


def fit_decoder(drawn: Tensor, pictures: Tensor, *, rng: torch.Generator) -> Decoder:
    """Fit a decoder to perturbations and their images (N, 3, H, W), N at least 2, by the squared error over STEPS
    batches.

    Larger images are cropped to windows of WINDOW pixels a side. A fifth of the images, LEFT_OUT at most, are used for
    validation, and the weights with the lowest validation error are kept, because a few images are soon overfitted."""
    order = torch.randperm(len(pictures), generator=child(rng, "left out"))
    count = min(max(1, len(order) // 5), LEFT_OUT)
    out, kept = order[:count], order[count:]
    decoder = Decoder(drawn[kept], pictures[kept], rng=child(rng, "start"))
    best, least = _weights(decoder), _error(decoder, drawn[out], pictures[out])
    optimizer = torch.optim.Adam(decoder.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    child_rng, windows = child(rng, "batches"), child(rng, "windows")
    for step in range(1, STEPS + 1):
        rows = kept[torch.randperm(len(kept), generator=child_rng)[:BATCH]]
        top, left = (int(torch.randint(max(side - WINDOW, 0) + 1, (1,), generator=windows)) for side in drawn.shape[2:])
        seen, wanted = (part[rows, :, top : top + WINDOW, left : left + WINDOW] for part in (drawn, pictures))
        loss = functional.mse_loss(decoder(seen, (top, left)), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % CHECKED == 0 and (error := _error(decoder, drawn[out], pictures[out])) < least:
            best, least = _weights(decoder), error
    decoder.load_state_dict(best)
    return decoder.eval().requires_grad_(False)


def _weights(decoder: Decoder) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in decoder.state_dict().items()}


def _error(decoder: Decoder, drawn: Tensor, pictures: Tensor) -> float:
    return float((decoder.pictures(drawn) - pictures).square().mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderCache:
    """Decoders fitted to the same `public` images; that of an untrained generator is fitted once per width."""

    public: DomainDataset
    rng: torch.Generator
    untrained: dict[int, tuple[PerturbationNetwork, Decoder]] = field(default_factory=dict)

    def answers(
        self, trained: Mapping[int, GeneratorUpdate], shown: Mapping[int, DomainDataset]
    ) -> list[Reconstructions]:
        """Reconstruct the images `shown` for each case from the perturbations that the client's generator would send.

        Controls: B0 the mean public image, B2 the public image whose perturbation is nearest, B3 the decoder of an
        untrained generator."""
        found = []
        pictures = as_float(self.public.pixels())
        for number, images in shown.items():
            generator = perturbation_generator(trained[number].returned)
            known = perturbations(generator, self.public)
            decoder = fit_decoder(known, pictures, rng=child(self.rng, "fit"))
            asked = perturbations(generator, images)
            fresh, control = self._untrained(generator.width, pictures)
            nearest = torch.cdist(asked.flatten(1), known.flatten(1)).argmin(1)
            controls = {
                "B0": pictures.mean(0, keepdim=True).expand_as(asked),
                "B2": pictures[nearest],
                "B3": control.pictures(perturbations(fresh, images)),
            }
            found.append(_answer(number, decoder.pictures(asked), controls))
        return found

    def exchanged(
        self, trained: Mapping[int, GeneratorUpdate], shown: Mapping[int, DomainDataset]
    ) -> list[Reconstructions]:
        """The same without controls, from the perturbation of another image of the same case."""
        found = []
        pictures = as_float(self.public.pixels())
        for number, images in shown.items():
            generator = perturbation_generator(trained[number].returned)
            decoder = fit_decoder(perturbations(generator, self.public), pictures, rng=child(self.rng, "fit"))
            order = derangement(len(images), child(self.rng, "exchange", number))
            asked = perturbations(generator, images)[order]
            found.append(_answer(number, decoder.pictures(asked), {}))
        return found

    def _untrained(self, width: int, pictures: Tensor) -> tuple[PerturbationNetwork, Decoder]:
        if width not in self.untrained:
            fresh = PerturbationNetwork(width, rng=child(self.rng, "untrained", width)).eval().requires_grad_(False)
            drawn = perturbations(fresh, self.public)
            self.untrained[width] = fresh, fit_decoder(drawn, pictures, rng=child(self.rng, "fit"))
        return self.untrained[width]


def prepare_decoders(public: DomainDataset, rng: torch.Generator) -> DecoderCache:
    """Prepare decoders that are fitted to up to PUBLIC of the `public` images."""
    some = torch.randperm(len(public), generator=child(rng, "public"))[:PUBLIC]
    return DecoderCache(public=public.subset(some), rng=rng)


def _answer(case: int, images: Tensor, controls: Mapping[str, Tensor]) -> Reconstructions:
    where = {"test": "decoder", "prior": "auxiliary", "rows": "perturbations"}
    return Reconstructions(case=case, images=images, controls=controls, slice=where, descriptive=True)
