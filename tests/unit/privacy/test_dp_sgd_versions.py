"""Versions of a record, CCST's among them, count as one record under DP-SGD."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.methods.ccst import CCST
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.privacy.dp_sgd import Versions
from tests.support.private_setting import PLAN, data, network, trained, trainer, weights
from tests.support.single_records import prepared, three_clients


def test_identical_versions_of_a_record_are_one_record():
    plain = data()
    thrice = TrainingSet(
        images=plain.images.repeat_interleave(3, 0), labels=plain.labels.repeat_interleave(3),
        owners=torch.arange(16).repeat_interleave(3),
    )  # fmt: skip

    one, three = (
        trained(trainer(noise=0.5, bound=0.3, most=most), given) for given, most in ((plain, 16), (thrice, 7))
    )

    torch.testing.assert_close(three, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bound", [0.2, math.inf])
def test_a_records_gradient_is_the_mean_over_its_versions(bound: float):
    owners = torch.tensor([4, 4, 1, 1, 1, 9])  # scattered names, uneven counts
    given = TrainingSet(images=data().images[:6], labels=data().labels[:6], owners=owners)
    model = network()
    total = torch.zeros_like(weights(model))
    for record in (1, 4, 9):
        own = owners == record
        losses = functional.cross_entropy(model.train()(as_float(given.images[own])), given.labels[own])
        slope = torch.cat([part.flatten() for part in torch.autograd.grad(losses, list(model.parameters()))])
        total += slope * min(1.0, bound / float(slope.norm()))

    moved = trained(trainer(bound=bound), given, replace(PLAN, steps=1)) - weights(model)

    torch.testing.assert_close(moved, -0.1 * total / 3, rtol=1e-3, atol=1e-7)


def test_versions_are_found_by_their_owner():
    versions = Versions.of(
        TrainingSet(images=data(6).images, labels=data(6).labels, owners=torch.tensor([5, 2, 5, 5, 2, 7]))
    )

    entries, places = versions.entries(torch.tensor([1, 0]))

    assert len(versions) == 3
    assert entries.tolist() == [0, 2, 3, 1, 4]
    assert places.tolist() == [0, 0, 0, 1, 1]
    assert [part.tolist() for part in versions.portions(torch.arange(3), 2)] == [[0], [1], [2]]
    assert [part.tolist() for part in versions.portions(torch.arange(3), 5)] == [[0, 1], [2]]


@pytest.mark.parametrize("leaky", [False, True])
def test_ccst_says_of_which_image_each_stylized_one_is(leaky: bool):
    clients = three_clients()
    made = prepared(CCST(plan=PLAN, k=2, leaky_validation=leaky), clients).data

    assert made.owners is not None
    assert len(made.owners) == len(made) == (26 if leaky else 28)
    assert torch.equal(clients[0].data.labels[made.owners], made.labels)
    own = clients[0].data.pixels()[made.owners]
    other = clients[0].data.pixels()[(made.owners + 7) % 14]  # the other image of the class
    far, farther = ((made.images.float() - each.float()).flatten(1).norm(dim=1) for each in (own, other))
    assert float((far < farther).float().mean()) > 0.8  # stylized images keep their content
