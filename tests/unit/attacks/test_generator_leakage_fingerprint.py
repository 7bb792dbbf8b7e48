"""Of which domain a client's images are, by what training moved in its generator."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fdgsec.attacks.attribute_inference.domains import DomainInference
from fdgsec.attacks.generator_leakage.attack import GeneratorLeakage
from fdgsec.attacks.generator_leakage.generator_domain_inference import Fingerprints, split_auxiliary
from fdgsec.attacks.statistics.noise_image_classifiers import noise_images
from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Labels
from fdgsec.threats.attack import Attack, PositiveControl, Truth
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case, judged
from tests.support.perturbation_generators import BLANK


def test_the_fingerprint_is_the_centroid_at_the_smallest_angle_once_what_all_share_is_gone():
    rng = stream(0, "attack")
    changes = functional.normalize(torch.randn(6, 20, generator=rng) + 5, dim=1)
    domains, federations = torch.tensor([0, 3, 0, 3, 0, 3]), torch.tensor([0, 0, 1, 1, 2, 2])
    known = Fingerprints(changes=changes, domains=domains, federations=federations)

    for change in changes:
        centers = {d: changes[domains == d].mean(0) for d in (0, 3)}
        common = (centers[0] + centers[3]) / 2
        cosine = {
            d: float(functional.cosine_similarity(change - common, c - common, dim=0)) for d, c in centers.items()
        }
        assert known.nearest(change) == max(cosine, key=lambda d: cosine[d])


def test_domains_without_a_trace_are_guessed_at_the_rate_of_chance():
    right = 0
    domains, federations = torch.arange(3).repeat(4), torch.arange(4).repeat_interleave(3)
    for seed in range(300):
        rng = stream(seed, "attack")
        changes = functional.normalize(torch.randn(13, 50, generator=rng), dim=1)
        known = Fingerprints(changes=changes[:12], domains=domains, federations=federations)
        right += known.nearest(changes[12]) == seed % 3

    assert 70 <= right <= 130  # binomial(300, 1/3): outside with probability 2e-4


def test_probes_are_images_that_no_reference_trains_on():
    images = noise_images(30, side=4, classes=2, rng=stream(0, "attack"))
    images = replace(images, domains=torch.arange(30) % 3, domain_names=("a", "b", "c"))

    parts = split_auxiliary(images, stream(0, "attack"))

    pools = [name for pool in parts.pools.values() for name in pool.ids]
    assert len(parts.probes) == 9
    assert sorted([*parts.probes.ids, *pools]) == sorted(images.ids)
    assert all(set(pool.domains.tolist()) == {domain} for domain, pool in parts.pools.items())


def test_one_domain_alone_cannot_be_parted():
    images = noise_images(12, side=8, classes=2, rng=stream(0, "attack"))

    with pytest.raises(UsageError, match="the domain fingerprint needs 4 auxiliary images"):
        split_auxiliary(images, stream(0, "attack"))


def renumbered(control: PositiveControl) -> PositiveControl:
    """The plant where domain 0 is one that nobody holds, and all others have one number more."""
    auxiliary, names = control.knowledge.auxiliary, ("unseen", *control.knowledge.domain_names)
    assert auxiliary is not None

    def moved(images: DomainDataset) -> DomainDataset:
        return replace(images, domains=images.domains + 1, domain_names=names)

    truths = [truth if truth.domains is None else replace(truth, domains=truth.domains + 1) for truth in control.truths]
    knowledge = replace(control.knowledge, auxiliary=moved(auxiliary), domain_names=names)
    return replace(control, knowledge=knowledge, truths=truths)


@pytest.mark.parametrize("attack", [GeneratorLeakage(), DomainInference()], ids=lambda attack: attack.name)
@pytest.mark.medium
def test_domains_are_told_right_where_the_unseen_one_is_number_0(attack: Attack):
    control = renumbered(attack.positive_control(BLANK, stream(0, "attack")))
    cases, truths = zip(
        *[pair for pair in zip(control.cases, control.truths, strict=True) if pair[0].candidates is None], strict=True
    )

    answers = attack.run(cases, control.knowledge, stream(0, "attack"))

    labels = [answer for answer in answers if isinstance(answer, Labels)]
    assert {number for answer in labels for number in answer.predicted.tolist()} <= {1, 2, 3}
    assert max(int(answer.predicted.max()) for answer in labels) == 3  # as many as there are classes
    rows = Judge(bootstrap_repeats=50).measure(labels, cases, truths, stream(0, "attack"))
    assert all(float(row.value or 0) >= 0.8 for row in rows if row.name == "balanced_accuracy"), rows


def test_the_judge_counts_the_domains_present_whatever_their_numbers():
    guesses = [Labels(case=n, predicted=torch.tensor([d]), of="domains", classes=2) for n, d in enumerate((1, 3, 3))]

    rows = judged(guesses, [case()] * 3, [Truth(domains=torch.tensor([d])) for d in (1, 3, 1)])

    assert (rows["balanced_accuracy",].value, rows["balanced_accuracy",].chance) == (0.75, 0.5)
