"""Releases are exactly the means of the per-image statistics that their reading names."""

import pytest
import torch

from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.artifacts import ImageStyles, ModelState, StyleDistribution, StyleStatistics
from fdgsec.federation.early_layer_encoder import ModelEncoder
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.released_statistics import MeanStyles, PooledStyles, StyleDistributions
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fisc import FISC, Sigma
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.styles.image_styles import encoder_named, forget_encoders, register_encoder, statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=20)


def first_model(method: StableFDG) -> GlobalModel:
    blueprint = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    network = blueprint.network(stream(0, "world", "model"))
    return GlobalModel(blueprint=blueprint, state=ModelState(state=network.state_dict()))


def test_a_pooled_style_is_the_mean_of_its_images(data: DomainDataset):
    members = [Client(name=f"client:{n}", data=data.of_domain(n)) for n in (0, 1)]
    observed = observe(CCST(k=2), members, seed=0, name="test")
    released_statistic = PooledStyles()

    for client in members:
        artifact = next(m.artifact for m in observed.transcript.messages() if m.sender == client.name)
        expected = released_statistic.records(statistics("mini", client.data)).mean(0)
        torch.testing.assert_close(released_statistic.release(artifact)[0], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sigma", ["mean", "mixture"])
def test_a_style_of_fisc_without_clusters_is_a_mean_over_its_images(data: DomainDataset, sigma: Sigma):
    method = FISC(local_clustering=False, sigma=sigma)
    clients = [Client(name="client:0", data=data.of_domain(0)), Client(name="client:1", data=data.of_domain(1))]
    observed = observe(method, clients, seed=0, name="test")
    (declared,) = [one.statistic for one in method.releases if one.slot == "style" and one.stage == "share"]
    assert declared is not None

    for client in clients:
        artifact = next(m.artifact for m in observed.transcript.messages() if m.sender == client.name)
        expected = declared.records(statistics("mini", client.data)).mean(0)
        found = declared.release(artifact)
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-4)
        again = declared.artifact(found, like=artifact, images=len(client.data))
        torch.testing.assert_close(declared.release(again), found)


def test_rows_of_single_styles_are_means_of_one_image(data: DomainDataset):
    found = statistics("mini", data.of_domain(0))
    statistic, few = MeanStyles(), found.rows(torch.arange(3))
    t = statistic.records(few)
    rows = ImageStyles(mean=few.mean.float(), std=t[:, few.channels :].float())

    torch.testing.assert_close(statistic.release(rows), t, rtol=1e-5, atol=1e-5)
    again = statistic.artifact(t, like=rows, images=1)
    assert isinstance(again, ImageStyles)
    torch.testing.assert_close(again.std, rows.std)
    torch.testing.assert_close(statistic.truth(few), t)
    pooled = pooled_release(found, statistic)
    torch.testing.assert_close(statistic.release(pooled)[0], statistic.records(found).mean(0), rtol=1e-5, atol=1e-5)
    for reading in (statistic.release, lambda one: statistic.artifact(t, like=one, images=1)):
        with pytest.raises(UsageError, match="a mean of styles"):
            reading(first_model(StableFDG()).state)


@pytest.mark.parametrize("unbiased", [True, False])
def test_styles_of_introduced_layers_are_looked_up_and_are_the_same(
    data: DomainDataset, monkeypatch: pytest.MonkeyPatch, unbiased: bool
):
    forget_encoders()
    method = StableFDG(unbiased=unbiased)
    model = first_model(method)
    client = Client(name="client:0", data=data.of_domain(0))
    made = method.image_styles(client, model, stream(0, "attack"))
    statistics(register_encoder(ModelEncoder(model, stage=method.stage)), data)
    monkeypatch.setattr(ModelEncoder, "_features", None)  # nothing is encoded again

    looked_up = method.image_styles(client, model, stream(0, "attack"))

    for one, other in zip(made, looked_up, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("unbiased", "spread"), [(True, "variance"), (False, "variance"), (True, "std")])
def test_a_style_distribution_is_the_mean_of_its_images_under_the_model(
    data: DomainDataset, unbiased: bool, spread: str
):
    forget_encoders()  # an introduced one would be what the method itself reads its styles from
    method = StableFDG(unbiased=unbiased, spread="std" if spread == "std" else "variance")
    model = first_model(method)
    members = [Client(name=f"client:{n}", data=data.of_domain(n)) for n in (0, 1)]
    observed = observe(method, members, seed=0, name="test", model=model)
    released_statistic = StyleDistributions(unbiased=unbiased, eps=method.eps, released=spread == "std")
    encoder = register_encoder(ModelEncoder(model, stage=method.stage))

    for client in members:
        sent = [m.artifact for m in observed.transcript.messages() if m.sender == client.name]
        artifact = next(one for one in sent if isinstance(one, StyleDistribution))
        expected = released_statistic.records(statistics(encoder, client.data)).mean(0)
        found = released_statistic.release(artifact, images=len(client.data))[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_released_spreads_cannot_be_read_without_the_number_of_images():
    four = torch.ones(3)
    artifact = StyleDistribution(mean=four, std=four, mean_spread=four, std_spread=four)

    with pytest.raises(UsageError, match="number of images"):
        StyleDistributions(released=True).release(artifact)


def test_a_reading_refuses_an_artifact_of_another_kind():
    rows = ImageStyles(mean=torch.zeros(2, 3), std=torch.ones(2, 3))
    pooled = StyleStatistics(mean=torch.zeros(3), std=torch.ones(3))

    assert PooledStyles().release(rows).shape == (2, 6)
    with pytest.raises(UsageError, match="got StyleStatistics"):
        StyleDistributions().release(pooled)


def test_another_model_is_another_encoder():
    method = StableFDG()
    model = first_model(method)
    other = model.with_state({name: value + 1 for name, value in model.state.state.items()})

    first, second, later = (
        ModelEncoder(model, stage="stage1"),
        ModelEncoder(other, stage="stage1"),
        ModelEncoder(model, stage="stage2"),
    )

    assert len({encoder.name for encoder in (first, second, later)}) == 3
    assert first.channels == 32
    assert later.channels == 48
    assert encoder_named(register_encoder(first)) is first
