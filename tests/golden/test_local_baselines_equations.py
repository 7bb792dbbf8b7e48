"""FedProx, MixStyle, DSU, RSC, JiGen and FedSR against slow transcriptions of what they compute."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.global_model import Blueprint
from fdgsec.methods.dsu import perturb_styles
from fdgsec.methods.fedprox import Proximal
from fdgsec.methods.fedsr import FedSR, SimpleRepresentation, StochasticClassifier, divergence
from fdgsec.methods.jigen import JiGen, JigsawClassifier, JigsawLoss, shuffle_tiles, tile_orders
from fdgsec.methods.rsc import MapsChallenge, PooledChallenge
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.styles.feature_styles import StageStyleObjective, mixed_styles
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.runtime.random_streams import stream


def rng(name: str = "t") -> torch.Generator:
    return stream(0, "world", name)


def network(method: FedSR | JiGen | None = None) -> Classifier:
    remodel = None if method is None else method.remodel
    return Blueprint(backbone="tiny", classes=5, remodel=remodel).network(rng("network")).train()


def batch(count: int = 7, size: int = 32) -> Batch:
    images = torch.rand(count, 3, size, size, generator=rng("images"))
    return Batch(images=images, labels=torch.arange(count) % 5, records=torch.arange(count))


def test_fedproxs_gradient_is_the_losss_plus_mu_times_the_distance():
    anchor, model = network(), network()
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            value += 0.01 * torch.randn(value.shape, generator=rng(f"drift {number}"))
    state = {name: value.detach() for name, value in anchor.state_dict().items()}
    names = [name for name, _ in model.named_parameters()]
    plain = torch.autograd.grad(CrossEntropy()(batch(), model).mean(), list(model.parameters()))

    made = torch.autograd.grad(Proximal(CrossEntropy(), state, 0.3)(batch(), model).mean(), list(model.parameters()))

    parameters = dict(model.named_parameters())
    for name, gradient, loss in zip(names, made, plain, strict=True):
        expected = loss + 0.3 * (parameters[name].detach() - state[name])
        assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-6), name


def test_mixstyle_gives_every_image_a_style_between_its_own_and_one_others():
    maps = torch.randn(6, 5, 7, 7, generator=rng("maps"), dtype=torch.float64) * torch.rand(6, 5, 1, 1).add(0.5)
    step = StageStyleObjective(("stage1",), 1.0, partial(mixed_styles, alpha=0.4), rng("mix"))
    draws = rng("mix")
    torch.rand((), generator=draws)  # the coin
    partner = torch.randperm(6, generator=draws).tolist()

    made = step.acted(maps)

    for i in range(6):
        j, ratios = partner[i], []
        for c in range(5):
            own, other, new = maps[i, c], maps[j, c], made[i, c]
            normalized = (own - own.mean()) / math.sqrt(float(own.var()) + 1e-6)
            scale = float((new - new.mean()).norm() / normalized.norm())
            stds = [math.sqrt(float(x.var()) + 1e-6) for x in (own, other)]
            if i != j:
                ratios.append(float((new.mean() - other.mean()) / (own.mean() - other.mean())))
                ratios.append((scale - stds[1]) / (stds[0] - stds[1]))
            assert torch.allclose(new, normalized * scale + new.mean(), atol=1e-9)
        assert all(0 <= ratio <= 1 for ratio in ratios)
        assert max(ratios, default=0.0) - min(ratios, default=0.0) < 1e-6  # one lambda per image, for mean and std


def test_mixstyles_step_draws_lambda_by_its_alpha_and_passes_no_gradient_through_statistics():
    maps = torch.randn(6, 5, 7, 7, generator=rng("maps")).requires_grad_(True)
    draws = rng("mix")
    torch.rand((), generator=draws)  # the coin

    made = StageStyleObjective(("stage1",), 1.0, partial(mixed_styles, alpha=2.5), rng("mix")).acted(maps)
    made[:, :, 0, 0].sum().backward()

    assert torch.equal(made, mixed_styles(maps, draws, alpha=2.5))
    assert maps.grad is not None
    assert float(maps.grad[:, :, 1:, 1:].abs().sum()) == 0.0


def test_dsus_step_scales_its_noise_by_its_factor():
    maps = torch.randn(6, 5, 7, 7, generator=rng("maps"))
    draws = rng("noise")
    torch.rand((), generator=draws)

    made = StageStyleObjective(("stage1",), 1.0, partial(perturb_styles, factor=0.3), rng("noise")).acted(maps)

    assert torch.equal(made, perturb_styles(maps, draws, factor=0.3))


def test_dsu_is_its_definition():
    maps = torch.randn(4, 3, 5, 6, generator=rng("maps"), dtype=torch.float64)
    draws = rng("noise")
    noise = [torch.randn(4, 3, 1, 1, generator=draws) for _ in range(2)]

    made = perturb_styles(maps, rng("noise"))

    means = [[float(maps[i, c].mean()) for c in range(3)] for i in range(4)]
    stds = [[math.sqrt(float(maps[i, c].var()) + 1e-6) for c in range(3)] for i in range(4)]
    for c in range(3):
        spread = [math.sqrt(float(np.var([row[c] for row in rows], ddof=1)) + 1e-6) for rows in (means, stds)]
        for i in range(4):
            beta = means[i][c] + float(noise[0][i, c]) * spread[0]
            gamma = stds[i][c] + float(noise[1][i, c]) * spread[1]
            expected = (maps[i, c] - means[i][c]) / stds[i][c] * gamma + beta
            assert torch.allclose(made[i, c], expected, atol=1e-9)


@pytest.mark.medium
def test_no_statistic_of_dsu_is_detached():
    maps = torch.randn(4, 3, 5, 6, generator=rng("maps"), dtype=torch.float64).requires_grad_(True)

    assert torch.autograd.gradcheck(lambda given: perturb_styles(given, rng("noise")), (maps,))


def test_rsc_is_the_five_equations_of_domainbeds_version():
    model = network()
    features = model.features(batch().images).detach().requires_grad_(True)
    labels = batch().labels
    logits = model.head(features)
    true_class = torch.stack([logits[i, labels[i]] for i in range(7)])
    (gradient,) = torch.autograd.grad(true_class.sum(), features)  # eq. (1)
    kept = torch.zeros_like(features)
    for i in range(7):  # eq. (2)
        kept[i] = (gradient[i] < float(np.percentile(gradient[i].numpy(), 200 / 3))).float()
    before = logits.softmax(1)
    after = model.head(features * kept).softmax(1)  # eqs. (3), (4)
    falls = torch.stack([before[i, labels[i]] - after[i, labels[i]] for i in range(7)]).detach()
    threshold = float(np.percentile(falls.numpy(), 200 / 3))  # section 3.3
    rows = [features[i] if float(falls[i]) < threshold else features[i] * kept[i] for i in range(7)]
    expected = functional.cross_entropy(model.head(torch.stack(rows)), labels, reduction="none")  # eq. (5)

    made = PooledChallenge(1 / 3, 1 / 3)(batch(), network())

    assert torch.allclose(made, expected, atol=1e-5)


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("positions", [True, False])
def test_the_official_rsc_is_its_mask_position_by_position(positions: bool, share: float):
    model = network()
    maps, labels = torch.rand(8, 96, 4, 4, generator=rng("maps")), torch.arange(8) % 5
    mask = torch.ones(8, 96, 4, 4)
    confidence = {False: [0.0] * 8, True: [0.0] * 8}
    for i in range(8):
        given = maps[i : i + 1].clone().requires_grad_(True)
        logits = model.head(model.neck(given))[0]
        (gradient,) = torch.autograd.grad(logits[labels[i]], given)
        weights = gradient[0].mean((1, 2))
        if positions:
            score = torch.stack([(maps[i, :, y, x] * weights).sum() for y in range(4) for x in range(4)])
            dropped = score.argsort(descending=True)[: math.ceil(16 / 3)]
            mask[i].flatten(1)[:, dropped] = 0
        else:
            mask[i, weights.argsort(descending=True)[: math.ceil(96 / 3.2)]] = 0
        confidence[False][i] = float(logits.detach().softmax(0)[labels[i]])
        muted = model.head(model.neck(maps[i : i + 1] * mask[i]))[0].detach()
        confidence[True][i] = float(muted.softmax(0)[labels[i]])
    falls = [max(a - b - 1e-4, 0.0) for a, b in zip(confidence[False], confidence[True], strict=True)]
    bound = [*sorted(falls, reverse=True), 0.0][round(8 * share)]  # of a whole batch everybody whose confidence fell
    for i in range(8):
        if falls[i] <= bound:
            mask[i] = 1

    made = MapsChallenge(share, 1 / 3, rng()).mask(maps, labels, model, positions=positions)

    assert torch.equal(made.expand_as(mask), mask)
    assert 0 < int((mask == 0).flatten(1).any(1).sum()) <= 8 * share


def test_jigen_cuts_and_joins_tiles_as_told():
    images = torch.rand(3, 3, 14, 20, generator=rng("images"))  # cut to 12 x 18: one row above and below, one column
    orders = tile_orders(30)[[0, 7, 30]]

    made = shuffle_tiles(images, orders)

    for i in range(3):
        cut = images[i, :, 1:13, 1:19]
        for place in range(9):
            source = int(orders[i, place])
            to_y, to_x, from_y, from_x = 4 * (place // 3), 6 * (place % 3), 4 * (source // 3), 6 * (source % 3)
            tile = cut[:, from_y : from_y + 4, from_x : from_x + 6]
            assert torch.equal(made[i, :, to_y : to_y + 4, to_x : to_x + 6], tile)


@pytest.mark.parametrize("class_loss", ["ordered", "all"])
def test_jigens_loss_is_the_class_loss_of_ordered_images_plus_alpha_times_the_order_loss(class_loss: str):
    method = JiGen(class_loss="all" if class_loss == "all" else "ordered")
    model = network(method)
    assert isinstance(model, JigsawClassifier)
    orders = tile_orders(30)
    step = JigsawLoss(orders, 0.5, 0.7, method.class_loss, rng("draw"))
    chosen = JigsawLoss(orders, 0.5, 0.7, method.class_loss, rng("draw")).draw_orders(7)
    features = model.features(shuffle_tiles(batch().images, orders[chosen]))
    classed, named = [], []
    for i in range(7):
        named.append(-model.jigsaw(features)[i].log_softmax(0)[chosen[i]])
        if class_loss == "all" or int(chosen[i]) == 0:
            classed.append(-model.head(features)[i].log_softmax(0)[batch().labels[i]])

    made = step(batch(), model).mean()

    assert 0 < int((chosen == 0).sum()) < 7
    expected = torch.stack(classed).mean() + 0.7 * torch.stack(named).mean()
    assert float(made.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize("norm", ["plain", "squared"])
def test_fedsrs_loss_is_cross_entropy_plus_both_regularizers(norm: str):
    method = FedSR(width=6, norm="squared" if norm == "squared" else "plain")
    model = network(method)
    assert isinstance(model, StochasticClassifier)
    with torch.no_grad():
        model.scale.fill_(1.7)
        for parameter in (model.reference_mean, model.reference_spread):
            parameter += torch.randn(parameter.shape, generator=rng("reference"))
    out = model.encoder(model.neck(model.maps(batch().images)))
    noise = torch.randn(7, 6, generator=rng("z"))
    expected: list[Tensor] = []
    for i, label in enumerate(batch().labels.tolist()):
        mean, std = out[i, :6], functional.softplus(out[i, 6:])
        z = mean + std * noise[i]
        length = (z * z).sum() if norm == "squared" else (z * z).sum().sqrt()
        given = torch.distributions.Normal(1.7 * mean, 1.7 * std)
        wanted = torch.distributions.Normal(
            model.reference_mean[label], functional.softplus(model.reference_spread[label])
        )
        divergences = torch.distributions.kl_divergence(given, wanted).sum()
        expected.append(-model.head(z).log_softmax(0)[label] + 0.2 * length + 0.05 * divergences)

    made = SimpleRepresentation(0.2, 0.05, method.norm, rng("z"))(batch(), model)

    assert torch.allclose(made, torch.stack(expected), rtol=1e-4)


def test_fedsrs_divergence_does_not_depend_on_the_sign_of_the_scale():
    mean, std, other = torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0]), torch.zeros(2)

    there = divergence(-2.0 * mean, -2.0 * std, other, torch.ones(2))

    assert torch.isfinite(there)
    assert float(there) == pytest.approx(float(divergence(2.0 * mean, 2.0 * std, other, torch.ones(2))))


def test_fedsr_averages_twenty_softmaxes_at_test_time():
    model = network(FedSR(width=6)).eval()
    assert isinstance(model, StochasticClassifier)
    mean, std = model.distribution(batch().images)
    total = torch.zeros(7, 5)
    for draw in range(20):
        total += model.head(mean + std * model.noise[draw]).softmax(1)

    made = model(batch().images)

    assert torch.allclose(made, (total / 20).log(), atol=1e-5)
