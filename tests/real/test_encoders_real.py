import io
import os
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.nn.styles.channel_statistics import adain, style_of
from fdgsec.nn.styles.encoders import StyleEncoder, load_encoder
from fdgsec.nn.styles.image_moments import image_moments
from fdgsec.runtime.random_streams import stream

pytestmark = pytest.mark.data
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PER_DOMAIN = 12


@cache
def pacs() -> Tensor:
    """Images of the four domains in turn, PER_DOMAIN each: (48, 3, 128, 128) float."""
    folder = os.environ.get("FDGSEC_DATA")
    if not folder or not (Path(folder) / "pacs128.zip").is_file():
        pytest.skip("needs pacs128.zip in the folder that $FDGSEC_DATA names")
    rng, chosen = stream(1, "world", "real encoder test"), []
    with zipfile.ZipFile(Path(folder) / "pacs128.zip") as archive:
        for domain in DOMAINS:
            names = sorted(name for name in archive.namelist() if f"/{domain}/" in name and name.endswith(".jpg"))
            for row in torch.randperm(len(names), generator=rng)[:PER_DOMAIN].tolist():
                picture = Image.open(io.BytesIO(archive.read(names[row]))).convert("RGB")
                chosen.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    return torch.stack(chosen)


@cache
def mini() -> StyleEncoder:
    return load_encoder("mini")


@cache
def swapped() -> tuple[Tensor, Tensor, Tensor]:
    """Features of contents, of the next domain's styles, and of what AdaIN and the decoder made of both."""
    pixels = as_float(pacs())
    with torch.inference_mode():
        content = mini().encode(pixels)
        style = content.roll(PER_DOMAIN, 0)
        return content, style, mini().encode(mini().decode(adain(content, *style_of(style))))


@pytest.mark.medium
def test_mini_rebuilds_pacs_at_22_decibels_or_more() -> None:
    pixels = as_float(pacs())
    with torch.inference_mode():
        error = (mini().decode(mini().encode(pixels)) - pixels).square().mean((1, 2, 3))

    assert float((-10 * error.log10()).mean()) >= 22


@pytest.mark.medium
def test_a_restyled_pacs_image_has_the_wanted_style_within_a_tenth() -> None:
    _, style, again = swapped()

    wanted, found = torch.cat(style_of(style), 1), torch.cat(style_of(again), 1)
    assert float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).median()) <= 0.10


@pytest.mark.medium
def test_a_restyled_pacs_image_keeps_its_content() -> None:
    content, _, again = swapped()

    def normal(features: Tensor) -> Tensor:
        mean, std = style_of(features)
        return ((features - mean[..., None, None]) / std[..., None, None]).flatten(1)

    correlation = torch.nn.functional.cosine_similarity(normal(content), normal(again), dim=1)
    assert float(correlation.median()) >= 0.8


@pytest.mark.medium
def test_nine_tenths_of_the_channels_vary_over_pacs() -> None:
    means = image_moments(mini(), pacs()).mean

    assert float((means.std(0) > 1e-3 * means.mean(0).abs().median()).double().mean()) >= 0.9
