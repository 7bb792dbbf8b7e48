"""Clients' vectors to attack as they are given: heavy-tailed ones, and pooled styles of bundled images."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.experiments.attack_vectors.given_questions import GivenVectors
from fdgsec.experiments.attack_vectors.read_vectors import sent_of_table
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, Question, Truth

Rows = npt.NDArray[Any]


def client_vectors(clients: int, channels: int, *, seed: int = 0) -> Rows:
    """Draw means and stds (clients, 2 C) whose columns differ by orders of magnitude; of four domains.

    From 8 channels on, three columns are the same for all clients, and one std is 0."""
    rng = np.random.default_rng(seed)
    scale = rng.lognormal(0.5, 1.5, 2 * channels)
    domains = rng.lognormal(0, 0.3, (4, 2 * channels))[rng.integers(0, 4, clients)]
    vectors = scale * domains * rng.lognormal(0, 0.05, (clients, 2 * channels))
    if channels >= 8:
        vectors[:, [1, channels - 1, channels + 2, 2 * channels - 1]] = [0.0, 0.1, 0.0, 3.25]
    return vectors


def mini_styles(per_domain: int = 120) -> tuple[DomainDataset, Moments]:
    """Bundled images with their moments under the bundled encoder."""
    images = shapes(image_size=32, per_domain=per_domain)
    return images, statistics("mini", images)


def mini_clients(clients: int, *, size: int = 20) -> Rows:
    """The pooled styles of `clients` clients of one domain each, (clients, 2 C) in float64 of float32 numbers."""
    images, found = mini_styles(per_domain=clients // 4 * size)
    rows = []
    for domain in range(4):
        for part in (images.domains == domain).nonzero().flatten().split(size)[: clients // 4]:
            mean, std = found.rows(part).pooled().style(unbiased=False)
            rows.append(torch.cat([mean[0], std[0]]).float())
    return torch.stack(rows).double().numpy()


def given(first: Rows, second: Rows | None = None) -> GivenVectors:
    """The vectors as those of a file, and of a second one."""
    sent = sent_of_table(torch.from_numpy(first), rows="clients", where="first")
    again = sent_of_table(torch.from_numpy(first if second is None else second), rows="clients", where="second")
    return GivenVectors(first=sent, second=list(again.values()))


def pairs(first: Rows, second: Rows) -> tuple[list[Case], list[Truth]]:
    """Two releases of each client, as linkage is asked about them."""
    cases = given(first, second).cases(Question(kind="given", scheme="pairs"))
    return [case for case, _ in cases], [truth for _, truth in cases]


def alone() -> Knowledge:
    """What an adversary knows that has nothing but the vectors."""

    def no_statistics(dataset: DomainDataset) -> Moments:
        raise AssertionError(f"nothing is to be encoded; got {len(dataset)} images")

    return Knowledge(
        statistics=no_statistics, encoder="none", class_names=("any",), domain_names=("any",), auxiliary=None,
        unseen=None, own=None, vectors_alone=True,
    )  # fmt: skip
