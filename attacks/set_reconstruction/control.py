"""Positive control of set reconstruction: clients of planted images among as many others."""

from dataclasses import replace

import torch

from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.metrics.measurement import Goal
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, PositiveControl, QuestionKind, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_records, upload

CLIENTS, SIZE, CHANNELS, AUXILIARY = 6, 20, 64, 60


def planted_lists(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Six clients of 20 of 40 candidates, whose mean has at least 64 numbers: every list is determined.

    Of vectors alone, without auxiliary images."""
    count = AUXILIARY + CLIENTS * 2 * SIZE
    moments, images = planted_records(count, CHANNELS, rng)
    question: QuestionKind = "given" if knowledge.vectors_alone else "resampled_clients"
    cases, truths = [], []
    for number in range(CLIENTS):
        first = AUXILIARY + number * 2 * SIZE
        order = torch.randperm(2 * SIZE, generator=rng)
        sent = pooled_release(moments.rows(first + torch.arange(SIZE)), knowledge.released_statistic)
        cases.append(Case(
            question=question, views=(upload(sent),), victim="client:0", records=SIZE, domain="planted",
            slice={"domain": "planted", "n_per_client": SIZE}, candidates=images.subset(first + order),
        ))  # fmt: skip
        truths.append(Truth(members=order < SIZE))
    planted = replace(
        knowledge, statistics=PlantedStatistics(moments=moments), domain_names=("planted",),
        auxiliary=None if knowledge.vectors_alone else images.subset(torch.arange(AUXILIARY)),
    )  # fmt: skip
    return PositiveControl(
        cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.99,
        also=(Goal(measurement="exact_list", at_least=0.99),),
    )  # fmt: skip
