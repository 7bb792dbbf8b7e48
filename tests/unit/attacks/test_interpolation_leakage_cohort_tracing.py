"""Tracing clients in a published style: rules, likelihood ratios, influence."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.interpolation_leakage.cohort_tracing import RULES, Candidates, PublicRule, identify_rule, influence
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.finch import finch
from fdgsec.nn.styles.stacked_partitions import stacked_finch
from fdgsec.runtime.random_streams import stream

LAST = PublicRule(partition="last")
MEAN = PublicRule(partition=None)


def styles_of(clients: int, seed: int = 0, *, dimensions: int = 60) -> Tensor:
    """Clients of three domains that lie far apart."""
    rng = stream(seed, "attack", "styles")
    centers = 8 + 3 * torch.randn(3, dimensions, generator=rng, dtype=torch.float64)
    return centers[torch.arange(clients) % 3] + 0.3 * torch.randn(
        clients, dimensions, generator=rng, dtype=torch.float64
    )


def test_each_rule_is_recognized_by_what_it_publishes():
    examples = [styles_of(22, seed) for seed in range(3)]

    found = [identify_rule([(styles, rule(styles).float().double()) for styles in examples]) for rule in RULES]

    for rule, other in zip(RULES, found, strict=True):
        assert other is not None
        assert all(torch.equal(rule(styles), other(styles)) for styles in examples)  # equal here is as good as the same


def test_a_rule_that_is_not_known_is_not_taken_for_one():
    styles = styles_of(22)

    assert identify_rule([(styles, styles.amax(0))]) is None


def test_the_median_of_three_far_clusters_is_made_of_means_of_clients():
    styles = torch.tensor([[1.0, 9.0], [1.2, 9.4], [5.0, 5.2], [5.2, 5.0], [9.0, 1.0], [9.4, 1.2]]).double()

    published = LAST(styles)

    assert torch.allclose(published, torch.tensor([5.1, 5.1]).double())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("clients", [2, 3, 5, 12, 21])
def test_many_sets_at_once_have_the_clusters_that_each_has_alone(last: bool, clients: int):
    sets = torch.stack([styles_of(clients, seed) for seed in range(8)])

    together = stacked_finch(sets, last=last)

    for rows, labels in zip(sets, together, strict=True):
        alone = finch(rows)[-1 if last else 0]
        assert torch.equal(labels.unsqueeze(0) == labels.unsqueeze(1), alone.unsqueeze(0) == alone.unsqueeze(1))


@pytest.mark.parametrize("rule", RULES)
def test_many_federations_publish_at_once_what_each_publishes_alone(rule: PublicRule):
    sets = torch.stack([styles_of(14, seed) for seed in range(6)])

    assert torch.allclose(rule.many(sets), torch.stack([rule(styles) for styles in sets]), atol=1e-9)


def pool_of(styles: Tensor, differences: Tensor | None = None, *, present: int = 0) -> Candidates:
    moved = torch.zeros_like(styles) if differences is None else differences
    return Candidates(styles=styles[present:], differences=moved[present:], present=styles[:present])


@pytest.mark.parametrize("rule", [MEAN, LAST])
def test_clients_known_by_what_they_sent_are_told_from_those_that_sent_nothing(rule: PublicRule):
    areas = []
    for seed in range(4):
        rng = stream(seed, "attack")
        styles = styles_of(20, seed)
        members = torch.randperm(20, generator=rng) < 10
        pool = pool_of(styles, 0.3 * torch.randn(styles.shape, generator=rng, dtype=torch.float64))
        published = rule(styles[members])
        exact, varied = pool.models(published, rule, simulations=800, kept=160, rng=rng)
        likelier = max((exact, varied), key=lambda model: model.log_density(published))
        scores = likelier.log_ratios(published)
        areas.append(auc(scores[members], scores[~members]))

    assert sum(areas) / len(areas) > (0.999 if rule is MEAN else 0.85)


def test_a_mean_of_other_images_is_likelier_under_the_model_that_expects_it():
    for seed in range(4):
        rng = stream(seed, "attack")
        sent = styles_of(20, seed)
        noise = torch.randn(2, *sent.shape, generator=rng, dtype=torch.float64)
        pool = pool_of(sent + 0.3 * noise[0], 0.3 * noise[1])
        published = MEAN(sent[torch.randperm(20, generator=rng)[:10]])

        exact, varied = pool.models(published, MEAN, simulations=300, kept=200, rng=rng)

        assert varied.log_density(published) > exact.log_density(published)


def test_clients_that_are_known_to_be_present_are_no_candidates():
    styles = styles_of(16)
    members = torch.arange(12) % 2 == 0
    published = MEAN(torch.cat([styles[:4], styles[4:][members]]))

    model, _ = pool_of(styles, present=4).models(published, MEAN, simulations=300, kept=100, rng=stream(0, "attack"))

    assert torch.equal(model.log_ratios(published) > 0, members)


def test_log_ratios_are_those_of_gaussian_algebra():
    rng = stream(3, "attack")
    styles, differences = torch.randn(2, 6, 4, generator=rng, dtype=torch.float64)
    published = MEAN(styles[:3])

    _, model = pool_of(styles, differences).models(published, MEAN, simulations=400, kept=400, rng=rng)

    seen = model.left(published @ model.directions) / model.scale
    share = model.usual
    expected = []
    for client in range(6):
        others = torch.arange(6) != client
        spread = model.effects[others].T @ (model.effects[others] * (share * (1 - share))[others].unsqueeze(1))
        covariance = torch.eye(len(seen), dtype=torch.float64) + spread
        took, not_took = (
            torch.distributions.MultivariateNormal((part - share[client]) * model.effects[client], covariance).log_prob(
                seen
            )
            for part in (1.0, 0.0)
        )
        expected.append(float(took - not_took + torch.logit(share[client])))

    assert model.log_ratios(published).tolist() == pytest.approx(expected, rel=1e-6)


def test_too_few_simulations_or_clients_are_refused():
    for pool, kept in ((styles_of(12), 23), (styles_of(3), 100), (styles_of(12), 301)):
        with pytest.raises(ValueError, match="simulations"):
            pool_of(pool).models(pool[0], MEAN, simulations=300, kept=kept, rng=stream(0, "attack"))


def test_one_client_moves_a_mean_by_its_distance_over_the_others():
    styles = styles_of(12)
    middle = styles.mean(0)
    unit = (styles - middle).square().sum(1).mean().sqrt()

    found = influence(styles, MEAN)

    assert found.mean == pytest.approx(float((styles - middle).norm(dim=1).mean() / 11 / unit))
    assert found.largest == pytest.approx(float((styles - middle).norm(dim=1).max() / 11 / unit))
    assert found.in_pairs == 0


def test_an_outlier_moves_a_mean_without_bound_and_a_median_over_clusters_hardly():
    styles = styles_of(30)

    assert influence(styles, MEAN).outlier > 0.3
    assert influence(styles, LAST).outlier < influence(styles, MEAN).outlier


def test_a_client_in_a_cluster_of_two_is_counted_as_such():
    pairs = torch.tensor(
        [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.1], [0.1, 0.0, 1.0], [0.0, 0.0, 1.0]]
    )

    assert influence(pairs.double(), PublicRule(partition="first")).in_pairs == 1.0


def test_where_an_odd_number_of_clusters_leaves_both_medians_equal_the_papers_or_the_codes_pair_is_taken():
    found = {}
    partitions: tuple[Literal["first", "last"], ...] = ("last", "first")
    for partition in partitions:
        lower = PublicRule(partition=partition)
        middle = PublicRule(partition=partition, median="mean of middle")
        odd = [styles for seed in range(40) if torch.equal(lower(styles := styles_of(22, seed)), middle(styles))][:2]
        rule = identify_rule([(styles, lower(styles).float().double()) for styles in odd])
        found[partition] = (len(odd), rule.median if rule is not None else None)

    assert found == {"last": (2, "mean of middle"), "first": (2, "lower")}
