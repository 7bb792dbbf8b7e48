"""FISC in training: its losses, its options and its presets."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.method import Client
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fisc import (
    FISC,
    BothVersions,
    Contrast,
    negatives,
    triplet_losses,
)
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch, epoch_of_batches
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from tests.support.fisc_cases import CLOCK, STILL, rng, small_shapes, start, three_clients


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients(small_shapes())


def objective(method: FISC, client: Client, name: str = "fit") -> Contrast | BothVersions:
    made = method.objective(client, model=start(method), inbox={}, state={}, clock=CLOCK, rng=rng(name))
    assert isinstance(made, Contrast | BothVersions)
    return made


def network() -> Classifier:
    return build_classifier("tiny", 7, rng=rng("network"))


def batch(labels: list[int]) -> Batch:
    count = len(labels)
    images, partners = (torch.rand(count, 3, 32, 32, generator=rng(name)) for name in ("images", "partners"))
    return Batch(images=images, labels=torch.tensor(labels), records=torch.arange(count), partners=partners)


def test_a_triplet_with_its_positive_at_the_anchor_and_its_negative_beyond_the_margin_costs_nothing():
    anchor = torch.eye(4)[:2].requires_grad_()
    negative = torch.eye(4)[2:]  # unit vectors at a right angle: sqrt(2) away

    losses = triplet_losses(anchor, anchor.clone(), negative, margin=1.4142135, form="hinge")
    losses.sum().backward()

    assert losses.tolist() == [0.0, 0.0]
    assert anchor.grad is not None
    assert torch.equal(anchor.grad, torch.zeros(2, 4))


def test_the_hinge_is_open_for_a_negative_within_the_margin():
    anchor, negative = torch.eye(4)[:1], torch.eye(4)[1:2]

    loss = triplet_losses(anchor, anchor, negative, margin=1.5, form="hinge")

    assert loss.item() == pytest.approx(1.5 - 2**0.5, abs=1e-6)


def test_a_negative_is_a_uniformly_random_record_of_another_class():
    labels, draws = torch.tensor([0, 0, 1, 1, 1, 2]), rng()

    picked = torch.stack([negatives(labels, draws) for _ in range(3000)])

    assert bool((labels[picked] != labels).all())
    shares = torch.bincount(picked[:, 0], minlength=6) / 3000
    assert shares[:2].tolist() == [0.0, 0.0]
    assert float((shares[2:] - 0.25).abs().max()) < 0.04  # five standard deviations of sqrt(.25 * .75 / 3000)


def test_a_batch_of_one_class_has_no_triplets_and_a_finite_gradient():
    assert negatives(torch.zeros(4, dtype=torch.int64), rng()).tolist() == [-1] * 4
    model, given = network().eval(), batch([1, 1, 1])

    losses = Contrast(gamma1=0.75, gamma2=0.0, margin=0.3, triplet="hinge", regularizer="mean", rng=rng())(given, model)
    losses.mean().backward()

    torch.testing.assert_close(losses, functional.cross_entropy(model(given.images), given.labels, reduction="none"))
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_a_negative_is_a_transferred_image_and_never_an_original():
    anchor, positive, labels = torch.eye(4), torch.eye(4).roll(1, 0), torch.tensor([0, 0, 0, 1])
    contrast = Contrast(gamma1=1, gamma2=0, margin=0.3, triplet="hinge", regularizer="mean", rng=rng())

    losses = contrast.triplets(anchor, positive, labels)

    negative = positive[negatives(labels, rng())]
    torch.testing.assert_close(losses, triplet_losses(anchor, positive, negative, margin=0.3, form="hinge"))
    assert len(losses.unique()) == 2  # one anchor stands on its negative, the others at a right angle


def test_identical_features_of_everything_give_a_finite_gradient():
    features = torch.ones(3, 5, requires_grad=True)

    triplet_losses(features, features, features, margin=0.3, form="hinge").sum().backward()

    assert features.grad is not None
    assert bool(features.grad.isfinite().all())


def test_without_contrast_both_versions_are_classified(clients: list[Client]):
    model, given = network().eval(), batch([0, 3, 5])
    made = objective(FISC(contrastive="none"), clients[0])

    losses = made(given, model)

    assert not made.couples_records
    assert given.partners is not None
    expected = [
        functional.cross_entropy(model(x), given.labels, reduction="none") for x in (given.images, given.partners)
    ]
    torch.testing.assert_close(losses, torch.cat(expected))


def test_ordinary_contrast_shares_nothing_and_takes_another_crop_as_positive(clients: list[Client]):
    method = FISC(contrastive="ordinary", plan=TrainingPlan(crop=(0.5, 0.9)))
    data, _ = method.training_set(clients[0], inbox={}, state={}, rng=rng())
    given = next(epoch_of_batches(data, method.plan, rng(), device=torch.device("cpu"), layout=torch.contiguous_format))
    made = objective(method, clients[0])
    assert isinstance(made, Contrast)
    assert made.view is not None

    positive = made.view(given)

    assert method.shares == "never"
    assert given.partners is None
    assert positive.shape == given.images.shape
    assert not torch.equal(positive, given.images)
    still = FISC(contrastive="ordinary", plan=STILL)
    unchanged = objective(still, clients[0])
    assert isinstance(unchanged, Contrast)
    assert unchanged.view is not None
    assert torch.equal(unchanged.view(given), as_float(clients[0].data.pixels(given.records)))


def test_contrast_couples_records_and_draws_from_a_stream_of_its_own(clients: list[Client]):
    coins = rng("fit")
    made = FISC().objective(clients[0], model=start(FISC()), inbox={}, state={}, clock=CLOCK, rng=coins)

    made(batch([0, 1, 2]), network())

    assert made.couples_records
    assert torch.equal(coins.get_state(), rng("fit").get_state())  # batches come in FedAvg's order


def test_the_objective_has_the_methods_coefficients_and_forms(clients: list[Client]):
    options = {"gamma1": 0.5, "gamma2": 0.05, "margin": 1.0, "triplet": "printed", "regularizer": "sum"}

    made = objective(build(FISC, options, where="method"), clients[0])

    assert {name: getattr(made, name) for name in options} == options


def test_training_without_transferred_images_is_an_error():
    given = batch([0, 1])
    bare = Batch(images=given.images, labels=given.labels, records=given.records)

    with pytest.raises(ValueError, match="transferred images as partners; this batch has none"):
        Contrast(gamma1=1, gamma2=1, margin=0.3, triplet="hinge", regularizer="mean", rng=rng())(bare, network())


def test_the_released_codes_extra_layer_is_linear_and_drawn_from_the_given_stream():
    before = torch.get_rng_state()
    plain, deeper = network(), FISC(extra_layer=True).remodel(network(), rng("layer"))
    again = FISC(extra_layer=True).remodel(network(), rng("layer"))

    layer = [module for module in deeper.neck.modules() if isinstance(module, nn.Linear)]
    images = torch.rand(2, 3, 32, 32, generator=rng())
    assert torch.equal(torch.get_rng_state(), before)
    assert [(m.in_features, m.out_features) for m in layer] == [(96, 96)]
    torch.testing.assert_close(deeper.eval().features(images), layer[0](plain.eval().features(images)))
    assert torch.equal(deeper(images), again.eval()(images))
    assert FISC().remodel(plain, rng("layer")) is plain


@pytest.mark.parametrize(
    ("options", "message"),
    [({"alpha": 1.5}, "alpha in"), ({"margin": -0.1}, "at least 0"), ({"eps": 0.0}, "eps above 0")],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str):
    with pytest.raises(UsageError, match=message):
        build(FISC, options, where="method")


def test_a_local_method_on_top_is_refused():
    with pytest.raises(UsageError, match="fisc trains its own objective"):
        FISC(local=FedAvg())


def test_the_presets_say_what_paper_and_released_code_do():
    paper, released = (
        build(FISC, load_preset(f"fisc-{name}")["method"], where="method") for name in ("paper", "released")
    )

    assert (paper.alpha, paper.sigma, paper.server_partition, paper.compared) == (1.0, "mean", "last", "style")
    assert (released.alpha, released.sigma, released.server_partition, released.compared) == (
        0.5,
        "mixture",
        "first",
        "map",
    )
    assert (released.style_input, released.extra_layer, released.median) == ("loader", True, "lower")
    assert (
        (paper.gamma1, paper.gamma2, paper.margin)
        == (released.gamma1, released.gamma2, released.margin)
        == (0.75, 0.2, 0.3)
    )
    for method in (paper, released):
        assert method.weights == "size"
        assert (method.plan.optimizer, method.plan.learning_rate, method.plan.batch_size) == ("adam", 3e-5, 32)
        assert method.plan.freeze_norm
