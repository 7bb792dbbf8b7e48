"""What questions about one pooled release say: its size and domain, the release itself, and one without members."""

from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import release_of_mean
from fdgsec.attacks.statistics.domain_populations import images_of, pooled_release
from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload


def size_of(case: Case) -> int:
    """The number of images behind the release. Raises UsageError where the adversary does not know it."""
    if case.records is None:
        raise UsageError(
            f"the attack needs the number of images behind the style of {case.victim}; the adversary does not know it."
        )
    return case.records


def domain_of(case: Case) -> str:
    """The domain of the images. Raises UsageError where the adversary does not know it."""
    if case.domain is None:
        raise UsageError(f"the attack needs the domain of the images of {case.victim}; the adversary does not know it.")
    return case.domain


def candidates_of(case: Case) -> DomainDataset:
    """The candidates among which members are looked for. Raises UsageError where there are none."""
    if case.candidates is None:
        raise UsageError(f"the attack looks for members among candidates; {case.victim} came without any.")
    return case.candidates


def release_of(case: Case, knowledge: Knowledge) -> Tensor:
    """Read the one pooled release of a case, t (D,). Raises UsageError for several rows."""
    release = knowledge.released_statistic.release(case.release(), images=case.records)
    if release.shape[0] != 1:
        raise UsageError(f"the attack reads one pooled style a client; {case.victim} sent {len(release)} rows.")
    return release[0]


def independent_release(case: Case, knowledge: Knowledge, rng: torch.Generator, *, skipped: int = 0) -> Case:
    """The same question about a release that is independent of the candidates, of images drawn with replacement.

    The first `skipped` draws are left out."""
    images = images_of(knowledge, domain_of(case))
    drawn = torch.randint(len(images), (skipped + size_of(case),), generator=rng)[skipped:]
    if knowledge.defended is None:
        artifact = pooled_release(knowledge.statistics(images).rows(drawn), knowledge.released_statistic)
    else:
        held, child_rng = images.subset(drawn), child(rng, "defense")
        artifact = knowledge.defended(release_of_mean(knowledge, held, child_rng), held, child_rng)
    return replace(case, views=(upload(artifact, sender=case.victim),))
