"""What each artifact gives inversion to draw of: single styles, parted ones, pooled ones, and everybody's."""

from dataclasses import replace

import pytest
import torch

from fdgsec.attacks.style_inversion.inverter import style_features
from fdgsec.attacks.style_inversion.style_rows import populations
from fdgsec.data.domains import DomainDataset, join
from fdgsec.federation.artifacts import ImageStyles, InterpolationStyle, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import StyleDistributions
from fdgsec.federation.wire import SERVER as SERVER_PARTY
from fdgsec.federation.wire import Message
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload
from tests.support.quadrants import AUXILIARY, SERVER, image_rows, pooled_pair, quadrant_statistics, victims

DISTRIBUTIONS = replace(SERVER, released_statistic=StyleDistributions(unbiased=True, eps=1e-6))


def distribution(images: DomainDataset) -> StyleDistribution:
    mean, std = quadrant_statistics(images).style(unbiased=True, eps=1e-6)
    return StyleDistribution(
        mean=mean.mean(0).float(),
        std=std.mean(0).float(),
        mean_spread=mean.var(0, correction=0).float(),
        std_spread=std.var(0, correction=0).float(),
    )


def redrawn(*views: View, domain: str | None = "green") -> Case:
    return Case(
        question="resampled_clients",
        views=views,
        victim="client:0",
        domain=domain,
        slice={"domain": "green"},
        records=9,
    )


def test_the_difference_of_two_distributions_is_the_added_records_style():
    holds, added = AUXILIARY.of_domain("green"), victims(1, 1)
    releases = [distribution(images) for images in (holds, join([holds, added]))]
    case = replace(pooled_pair(holds, added, "green"), views=tuple(upload(sent) for sent in releases))

    (rows,) = populations([case], DISTRIBUTIONS)

    expected = style_features(*quadrant_statistics(added).style(unbiased=False))
    assert (rows.kind, rows.pooled) == ("difference", False)
    # released as float32: 17 times 6e-8 of a sigma of about 0.05 is 2e-5 of its logarithm
    assert torch.allclose(rows.features, expected, atol=1e-4)


def test_a_clients_pooled_style_is_read_as_it_was_sent():
    mean, std = quadrant_statistics(victims(1)).pooled().style(unbiased=False)
    cases = [redrawn(upload(StyleStatistics(mean=mean[0].float(), std=std[0].float()))) for _ in range(3)]

    (rows,) = populations(cases, SERVER)

    assert (rows.kind, rows.cases, rows.sizes, rows.averaged) == ("pooled", (0, 1, 2), (1, 1, 1), False)
    assert torch.allclose(rows.features, style_features(mean, std).expand(3, -1), atol=1e-5)


def test_the_center_of_a_distribution_is_a_pooled_style_in_our_units():
    images = victims(1, 1)  # of one image, whose own style the center is

    (rows,) = populations([redrawn(upload(distribution(images)))], DISTRIBUTIONS)

    assert (rows.kind, rows.averaged) == ("pooled", True)
    assert torch.allclose(rows.features, style_features(*quadrant_statistics(images).style(unbiased=False)), atol=1e-5)


def test_of_fiscs_release_a_server_reads_the_clients_style_and_everybodys_and_a_client_everybodys_alone():
    style = StyleStatistics(mean=torch.zeros(12), std=torch.ones(12))
    shared = InterpolationStyle(mean=torch.ones(12), std=torch.full((12,), 2.0))
    received = Message(round=0, stage="combine", sender=SERVER_PARTY, receiver="client:1", artifact=shared)
    server = View(messages=(*upload(style).messages, received))

    seen = populations([redrawn(server)], SERVER)
    told = populations([redrawn(View(messages=(received,)), domain=None)], SERVER)

    assert [rows.kind for rows in seen] == ["pooled", "interpolation"]
    assert [rows.kind for rows in told] == ["interpolation"]
    expected = style_features(shared.mean.double()[None], shared.std.double()[None])
    assert torch.equal(seen[1].features, expected)


def test_rows_of_single_images_stay_with_their_case_and_pooled_ones_with_their_domain():
    mean, std = quadrant_statistics(victims(1)).pooled().style(unbiased=False)
    pooled = redrawn(upload(StyleStatistics(mean=mean[0].float(), std=std[0].float())))
    cases = [image_rows(victims(0), "red"), pooled, image_rows(victims(1), "green"), replace(pooled, domain="red")]

    found = {(rows.kind, rows.domain): rows.cases for rows in populations([*cases, pooled], SERVER)}

    assert found == {
        ("as_if_released", "red"): (0,), ("pooled", "green"): (1, 4), ("as_if_released", "green"): (2,),
        ("pooled", "red"): (3,),
    }  # fmt: skip


def test_who_saw_nothing_has_nothing_to_draw():
    assert populations([redrawn(View(messages=()))], SERVER) == []


def test_foreign_channels_are_refused():
    views = {
        "released": upload(ImageStyles(mean=torch.zeros(2, 5), std=torch.ones(2, 5))),
        "resampled_clients": upload(
            StyleDistribution(
                mean=torch.zeros(5), std=torch.ones(5), mean_spread=torch.ones(5), std_spread=torch.ones(5)
            )
        ),
    }

    for question, view in views.items():
        case = replace(redrawn(view), question=question)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="released 5 channels; encoder quadrants has 12"):
            populations([case], SERVER)
