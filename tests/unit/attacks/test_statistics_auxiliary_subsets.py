"""Nested subsets of auxiliary images: of every domain, of all classes, and the larger ones contain the smaller."""

import torch

from fdgsec.attacks.statistics.auxiliary_subsets import lacking, nested_subset
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.positive_control_data import planted_images

DOMAINS = torch.arange(2).repeat_interleave(90)
LABELS = (torch.arange(180) // 30) % 3  # in order, as datasets list their images
IMAGES = planted_images(LABELS, DOMAINS, class_names=("a", "b", "c"), domain_names=("ink", "oil"))


def test_larger_subsets_contain_smaller_ones_and_keep_the_order():
    found = [nested_subset(IMAGES, count, stream(0, "attack")).rows.tolist() for count in (5, 20, 60)]

    assert [len(rows) for rows in found] == [10, 40, 120]
    assert set(found[0]) < set(found[1]) < set(found[2])
    assert all(rows == sorted(rows) for rows in found)
    assert nested_subset(IMAGES, 20, stream(1, "attack")).rows.tolist() != found[1]


def test_a_subset_has_images_of_every_domain_and_no_class_first():
    few = nested_subset(IMAGES, 24, stream(0, "attack"))

    assert few.domains.bincount().tolist() == [24, 24]
    assert all(int(few.of_domain(name).labels.bincount(minlength=3).min()) > 0 for name in ("ink", "oil"))


def test_a_domain_that_has_fewer_keeps_them_all_and_does_not_change_the_others():
    uneven = IMAGES.subset(torch.cat([torch.arange(10), torch.arange(90, 180)]))

    assert nested_subset(uneven, 30, stream(0, "attack")).domains.bincount().tolist() == [10, 30]
    alone, together = (nested_subset(images, 30, stream(0, "attack")) for images in (uneven, IMAGES))
    assert alone.of_domain("oil").ids == together.of_domain("oil").ids
    assert lacking(uneven, "ink", 30) == "the adversary has 10 images of ink, not 30"
    assert lacking(uneven, "oil", 30) == ""


def test_no_images_are_a_subset_too():
    assert len(nested_subset(IMAGES, 0, stream(0, "attack"))) == 0
