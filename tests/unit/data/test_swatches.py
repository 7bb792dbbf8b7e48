import pytest
import torch

from fdgsec.data.catalog import load_dataset
from fdgsec.data.roles import duplicate_groups
from fdgsec.data.swatches import CLASSES, DOMAINS, swatches
from fdgsec.runtime.errors import UsageError


def test_an_image_depends_on_its_place_alone():
    few, many = swatches(per_domain=8), swatches(per_domain=20)
    first = [many.ids.index(name) for name in few.ids]
    assert torch.equal(few.pixels(), many.pixels(torch.tensor(first)))
    assert len(set(few.ids)) == 8 * len(DOMAINS)


def test_classes_and_domains_show_in_the_mean_color_and_every_image_is_its_own():
    images = swatches(per_domain=80)
    colors = images.pixels().float().mean((2, 3))
    for domain in range(len(DOMAINS)):
        own = images.domains == domain
        centers = torch.stack([colors[own & (images.labels == label)].mean(0) for label in range(len(CLASSES))])
        nearest = torch.cdist(colors[own], centers).argmin(1)
        assert (nearest == images.labels[own]).float().mean() > 0.8  # chance: a quarter
    assert len(duplicate_groups(images).unique()) == len(images)


@pytest.mark.medium
def test_random_labels_say_nothing_about_the_image():
    plain, random = swatches(per_domain=200), load_dataset("swatches-random", per_domain=200)
    assert torch.equal(plain.pixels(), random.pixels())
    assert (plain.labels == random.labels).float().mean() == pytest.approx(1 / len(CLASSES), abs=0.06)
    assert random.name == "swatches-random"


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(UsageError, match="image_size"):
        swatches(image_size=8)
    with pytest.raises(UsageError, match="per_domain"):
        swatches(per_domain=0)
