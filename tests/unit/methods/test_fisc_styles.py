"""FISC before training: what clients share, what the server makes of it, and the images transferred to it."""

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import InterpolationStyle, StyleBank, StyleStatistics
from fdgsec.federation.method import Client, Inbox
from fdgsec.methods.fisc import (
    FISC,
    Partition,
    Sigma,
    client_style,
    interpolation_style,
)
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.nn.styles.channel_statistics import moments
from fdgsec.nn.styles.finch import finch
from fdgsec.nn.styles.image_styles import encoder_named, resized
from fdgsec.nn.styles.image_styles import statistics as image_statistics
from fdgsec.nn.styles.stacked_partitions import stacked_cluster_styles
from fdgsec.nn.training.batches import epoch_of_batches
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.fisc_cases import CLOCK, STILL, numbers, rng, shared, small_shapes, three_clients
from tests.support.slow_finch import two_blobs


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return small_shapes()


@pytest.fixture(scope="module")
def clients(data: DomainDataset) -> list[Client]:
    return three_clients(data)


def some_style() -> InterpolationStyle:
    return InterpolationStyle(
        mean=40 * torch.rand(256, generator=rng("m")), std=20 * torch.rand(256, generator=rng("s"))
    )


def test_a_client_with_one_cluster_has_the_pooled_style_of_all_its_images(data: DomainDataset):
    maps = encoder_named("mini").encode(as_float(data.pixels(torch.arange(5)))).double()

    mean, std = client_style(moments(maps), torch.zeros(5, dtype=torch.int64))

    pixels = maps.transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, pixels.mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(std, (pixels.var(1, correction=0) + 1e-5).sqrt(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("sigma", ["mean", "mixture"])
def test_doubling_every_image_leaves_a_clients_style(data: DomainDataset, sigma: Sigma):
    images = image_statistics("mini", data.subset(torch.arange(6)))
    labels = torch.tensor([0, 1, 1, 0, 1, 1])
    twice = images.rows(torch.arange(6).repeat(2))

    once, doubled = (client_style(x, y, sigma=sigma) for x, y in ((images, labels), (twice, labels.repeat(2))))

    for first, second in zip(once, doubled, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_the_mixture_sigma_holds_the_spread_between_clusters(data: DomainDataset):
    images = image_statistics("mini", data)
    labels = data.domains  # four clusters of as many pixels each: their mixture is the whole

    mean, std = client_style(images, labels, sigma="mixture")

    whole_mean, whole_std = images.pooled().style(unbiased=False)
    torch.testing.assert_close(mean, whole_mean[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(std, whole_std[0], rtol=1e-12, atol=0)
    assert bool((client_style(images, labels)[1] < std).all())


def test_without_local_clustering_a_client_shares_the_average_of_its_images_styles(clients: list[Client]):
    mean, std = image_statistics("mini", clients[0].data).style(unbiased=False)

    found = shared(FISC(local_clustering=False), clients[0])

    torch.testing.assert_close(found[0], mean.mean(0).float())
    torch.testing.assert_close(found[1], std.mean(0).float())
    assert not torch.allclose(found[1], shared(FISC(), clients[0])[1], rtol=1e-3)


def test_the_first_partition_of_a_clients_images_is_an_option(data: DomainDataset):
    client = Client(name="client:0", data=data)
    images = image_statistics("mini", data)
    partitions = finch(torch.cat(images.style(unbiased=True), 1))
    assert len(partitions) >= 2

    found = shared(FISC(client_partition="first"), client)

    expected = client_style(images, partitions[0])
    torch.testing.assert_close(found[1], expected[1].float())
    assert not torch.allclose(found[1], shared(FISC(), client)[1])


def test_whole_feature_maps_may_be_compared_instead_of_styles(data: DomainDataset):
    client = Client(name="client:0", data=data.subset(torch.arange(24)))
    maps = encoder_named("mini").encode(as_float(client.data.pixels()))
    labels = finch(maps.flatten(1))[-1]

    found = shared(FISC(compared="map"), client)

    expected = client_style(moments(maps), labels)
    torch.testing.assert_close(found[0], expected[0].float(), rtol=1e-5, atol=1e-4)  # batches of 24 and of 16
    torch.testing.assert_close(found[1], expected[1].float(), rtol=1e-5, atol=1e-4)


def test_the_encoder_may_see_what_the_released_codes_loader_gives(clients: list[Client]):
    normalized = Normalization()(as_float(clients[0].data.pixels()))
    found = moments(encoder_named("mini").encode(normalized))
    labels = finch(torch.cat(found.style(unbiased=True), 1))[-1]

    still = shared(FISC(style_input="loader", plan=STILL), clients[0])
    cropped = shared(FISC(style_input="loader", plan=TrainingPlan(crop=(0.7, 0.8))), clients[0])

    expected = client_style(found, labels)
    torch.testing.assert_close(still[0], expected[0].float(), rtol=1e-5, atol=1e-4)
    assert not torch.allclose(still[0], cropped[0], rtol=1e-3)


def test_styles_are_taken_at_the_size_that_was_asked_for(clients: list[Client]):
    enlarged = resized(clients[0].data.pixels(), 64)
    found = moments(encoder_named("mini").encode(as_float(enlarged)))
    labels = finch(torch.cat(found.style(unbiased=True), 1))[-1]

    mean, _ = shared(FISC(style_size=64), clients[0])

    torch.testing.assert_close(mean, client_style(found, labels)[0].float(), rtol=1e-5, atol=1e-4)


def test_a_client_of_one_image_shares_its_style(clients: list[Client]):
    one = Client(name="client:0", data=clients[0].data.subset(torch.tensor([2])))
    mean, std = image_statistics("mini", one.data).style(unbiased=False)

    found = shared(FISC(), one)

    assert torch.equal(found[0], mean[0].float())
    assert torch.equal(found[1], std[0].float())


def test_an_empty_client_is_refused(clients: list[Client]):
    empty = Client(name="client:3", data=clients[0].data.subset(torch.zeros(0, dtype=torch.int64)))

    with pytest.raises(UsageError, match="client:3 has no images"):
        shared(FISC(), empty)


def uploads(means: Tensor, stds: Tensor) -> dict[str, Inbox]:
    styles = [StyleStatistics(mean=mean, std=std) for mean, std in zip(means, stds, strict=True)]
    return {f"client:{i}": {"style": style} for i, style in enumerate(styles)}


@pytest.mark.parametrize("method", [FISC(server_partition="first"), FISC(), FISC(median="mean_of_middle")])
def test_the_server_hands_everybody_the_interpolation_style_of_all(method: FISC):
    means, stds, _ = two_blobs(1)
    sent = uploads(means, stds)

    handed, _ = method.combine(sent, server={}, clock=CLOCK, rng=simulated_stream(0))

    expected = interpolation_style(means, stds, partition=method.server_partition, median=method.median)
    assert list(handed) == list(sent)
    assert all(list(inbox) == ["style"] for inbox in handed.values())
    assert all(torch.equal(numbers_of(inbox), numbers(expected)) for inbox in handed.values())


def numbers_of(inbox: Inbox) -> Tensor:
    style = inbox["style"]
    assert isinstance(style, InterpolationStyle)
    return numbers(style)


def test_without_global_clustering_everybody_gets_the_plain_average():
    means, stds, _ = two_blobs(1)
    sent = uploads(means, stds)

    handed, _ = FISC(global_clustering=False).combine(sent, server={}, clock=CLOCK, rng=simulated_stream(0))

    torch.testing.assert_close(numbers_of(handed["client:0"]), torch.cat([means.mean(0), stds.mean(0)]))


def test_with_alpha_0_an_image_is_its_reconstruction_whatever_the_style(clients: list[Client]):
    pixels = clients[0].data.pixels()[:3]
    encoder = encoder_named("mini")
    expected = (encoder.decode(encoder.encode(as_float(pixels))) * 255).round().to(torch.uint8)
    far = InterpolationStyle(mean=torch.full((256,), 1e3), std=torch.full((256,), 1e3))

    assert torch.equal(FISC(alpha=0.0).transfer(pixels, some_style()), expected)
    assert torch.equal(FISC(alpha=0.0).transfer(pixels, far), expected)


def test_images_are_transferred_at_the_size_that_was_asked_for_and_come_back_at_their_own(clients: list[Client]):
    pixels = clients[0].data.pixels()[:2]

    made = FISC(style_size=64).transfer(pixels, some_style())

    assert torch.equal(made, resized(FISC().transfer(resized(pixels, 64), some_style()), 32))


def test_the_network_sees_what_the_decoder_drew_where_images_come_from_the_loader(clients: list[Client]):
    pixels, encoder = clients[0].data.pixels()[:2], encoder_named("mini")
    normal = Normalization()
    drawn = encoder.decode(encoder.encode(normal(as_float(pixels))))

    made = FISC(style_input="loader", alpha=0.0).transfer(pixels, some_style())

    assert (
        float((normal(as_float(made)) - drawn).abs().max()) <= 0.5 / 255 / 0.224 + 1e-4
    )  # 8 bits, then divided by a std


def test_transferred_images_are_made_once_and_kept_as_bytes(clients: list[Client]):
    client, method = clients[0], FISC()
    first, state = method.training_set(client, inbox={"style": some_style()}, state={}, rng=rng())

    again, same = method.training_set(client, inbox={}, state=state, rng=rng("other"))

    assert same is state
    assert state["transferred"].dtype == torch.uint8
    assert first.partners is not None
    assert torch.equal(first.images, client.data.pixels())
    assert torch.equal(first.partners, method.transfer(client.data.pixels(), some_style()))
    assert again.partners is state["transferred"]


def test_an_image_and_its_transferred_version_are_cropped_alike(clients: list[Client]):
    made, _ = FISC().training_set(clients[0], inbox={"style": some_style()}, state={}, rng=rng())
    twins = type(made)(images=made.images, labels=made.labels, partners=made.images)

    dealt = next(
        epoch_of_batches(twins, TrainingPlan(), rng(), device=torch.device("cpu"), layout=torch.contiguous_format)
    )

    assert dealt.partners is not None
    assert torch.equal(dealt.images, dealt.partners)
    assert not torch.equal(dealt.images, as_float(made.images[dealt.records]))


def test_another_artifact_than_an_interpolation_style_is_refused(clients: list[Client]):
    bank = StyleBank(mean=torch.ones(1, 256), std=torch.ones(1, 256), owner=torch.zeros(1, dtype=torch.int64))

    with pytest.raises(TypeError, match="InterpolationStyle; client:0 received a StyleBank"):
        FISC().training_set(clients[0], inbox={"style": bank}, state={}, rng=rng())
    with pytest.raises(TypeError, match="InterpolationStyle; client:0 received nothing"):
        FISC().training_set(clients[0], inbox={}, state={}, rng=rng())


@pytest.mark.parametrize("sigma", ["mean", "mixture"])
@pytest.mark.parametrize("partition", ["first", "last"])
def test_many_clients_with_parts_of_the_same_images_share_at_once_what_each_shares_alone(
    data: DomainDataset, partition: Partition, sigma: Sigma
):
    method = FISC(client_partition=partition, sigma=sigma)
    sharing = method.sharing(data)
    assert sharing is not None

    for count in (1, 2, 3, len(data) // 2):
        lists = torch.stack(
            [torch.randperm(len(data), generator=rng(f"lists {number}"))[:count] for number in range(5)]
        )
        found = sharing(lists)
        assert found.weights is not None
        for rows, inbox, weights in zip(lists, found.inboxes, found.weights, strict=True):
            mean, std = shared(method, Client(name="client:0", data=data.subset(rows)))
            torch.testing.assert_close(inbox["style"].tensors(), {"mean": mean, "std": std}, rtol=1e-6, atol=1e-7)
            means = image_statistics("mini", data).mean[rows]
            torch.testing.assert_close((weights @ means).float(), mean, rtol=1e-5, atol=1e-6)


def test_clients_whose_styles_depend_on_more_than_their_images_do_not_share_at_once(data: DomainDataset):
    assert FISC(style_input="loader").sharing(data) is None
    assert FISC(compared="map").sharing(data) is None
    assert FISC(local_clustering=False).sharing(data) is None


def test_channels_that_are_large_and_nearly_constant_are_pooled_at_once_to_the_same_digits():
    images = moments(torch.randn(30, 4, 5, 5, generator=rng("maps")).double() + 1e7)
    lists = torch.stack([torch.randperm(30, generator=rng(f"lists {number}"))[:12] for number in range(3)])
    labels = torch.arange(12).div(4, rounding_mode="floor").mul(4).expand(3, 12)

    pooled, there = stacked_cluster_styles(images, lists, labels)

    assert bool(there.all())
    for number, rows in enumerate(lists):
        alone = images.rows(rows).pooled_within(labels[0])
        torch.testing.assert_close(pooled.m2[3 * number : 3 * number + 3], alone.m2, rtol=1e-6, atol=0)
