"""FedAlign's domain discriminator: whom it teaches, what it remembers, and where its randomness comes from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedalign import Discriminator, FedAlign, OpposedAlignment, discriminator_network
from fdgsec.nn.networks.dropout import Dropout
from fdgsec.runtime.random_streams import stream
from tests.support.three_clients import CLOCK, PLAN, clients, noise, run, start

FEDALIGN = FedAlign(plan=PLAN, upload_ratio=0.3)


def judge(*, reversal: float, width: int = 96) -> Discriminator:
    network = discriminator_network(width, stream(0, "world", "discriminator"))
    return Discriminator(network=network, optimizer=torch.optim.Adam(network.parameters(), lr=1e-3), reversal=reversal)


def encoder_gradient(reversal: float) -> Tensor:
    """The gradient in an encoder's weight of the term that the discriminator gives, as training takes it."""
    weight = noise(5, 96, name="encoder").requires_grad_()
    views = [noise(6, 5, name=name) for name in ("x", "x1", "x2")]
    term = judge(reversal=reversal).oppose([x @ weight for x in views]).mean()
    assert float(term.detach()) == 0.0
    if not term.requires_grad:
        return torch.zeros(5, 96)
    return torch.autograd.grad(term, weight)[0]


def test_a_detached_discriminator_gives_the_encoder_exactly_no_gradient():
    assert torch.equal(encoder_gradient(0.0), torch.zeros(5, 96))


def test_gradient_reversal_gives_the_encoder_the_discriminators_gradient_with_the_other_sign():
    weight = noise(5, 96, name="encoder").requires_grad_()
    features = torch.cat([noise(6, 5, name=name) @ weight for name in ("x", "x1", "x2")])
    domains = torch.tensor([0.0] * 6 + [1.0] * 12)
    loss = functional.binary_cross_entropy_with_logits(judge(reversal=1.0).network(features).flatten(), domains)
    plain_gradient = torch.autograd.grad(loss, weight)[0]

    reversed_gradient = encoder_gradient(0.25)

    assert float(plain_gradient.abs().max()) > 1e-3
    assert torch.allclose(reversed_gradient, -0.25 * plain_gradient, rtol=1e-4, atol=1e-7)


def test_the_discriminator_learns_to_tell_originals_from_views():
    opponent, features = judge(reversal=0.0, width=4), [noise(16, 4, name=name) + 2 * shift for shift, name in
                                                        ((0, "x"), (1, "x1"), (1, "x2"))]  # fmt: skip
    for _ in range(60):
        opponent.oppose(features)

    opponent.network.eval()
    right = [(opponent.network(z).flatten() > 0) == (number > 0) for number, z in enumerate(features)]
    assert float(torch.cat(right).float().mean()) > 0.9


@pytest.mark.medium
def test_a_detached_discriminator_changes_nothing_that_is_sent():
    detached = run(replace(FEDALIGN, discriminator="detached"))

    assert detached.transcript.sha256 == run(FEDALIGN).transcript.sha256


@pytest.mark.medium
def test_a_reversed_discriminator_changes_the_model_and_reversal_of_strength_zero_does_not():
    opposed = run(replace(FEDALIGN, discriminator="reversed"), rounds=1)
    without = run(replace(FEDALIGN, discriminator="reversed", reversal=0.0), rounds=1)
    alone = run(FEDALIGN, rounds=1)

    assert not torch.equal(opposed.model["head.weight"], alone.model["head.weight"])
    assert all(torch.equal(value, alone.model[name]) for name, value in without.model.items())


@pytest.mark.medium
def test_a_discriminator_stays_with_its_client_and_goes_on_where_it_stopped():
    method = replace(FEDALIGN, discriminator="detached")

    once, twice = (run(method, rounds=rounds).states["client:0"] for rounds in (1, 2))

    steps = "discriminator.optimizer.0.step"
    assert (float(once[steps]), float(twice[steps])) == (2.0, 4.0)  # 14 images in batches of 8, twice
    assert int(twice["discriminator.2.num_batches_tracked"]) == 4
    assert not any(name.startswith("discriminator") for name in run(FEDALIGN, rounds=1).states["client:0"])


def test_model_and_discriminator_keep_their_moments_apart():
    state = run(replace(FEDALIGN, discriminator="detached", keep_optimizer=True, plan=replace(PLAN, optimizer="adam")))
    kept = state.states["client:0"]

    assert kept["optimizer.0.exp_avg"].shape == (24, 3, 3, 3)
    assert kept["discriminator.optimizer.0.exp_avg"].shape == (1024, 96)
    assert float(kept["optimizer.0.step"]) == float(kept["discriminator.optimizer.0.step"]) == 4.0


def test_dropout_zeroes_its_share_from_its_own_stream_and_keeps_the_mean():
    before = torch.random.get_rng_state()
    layer = Dropout(0.3, stream(0, "world", "t"))

    made = layer.train()(torch.ones(200, 200))

    assert sorted(set(made.flatten().tolist())) == pytest.approx([0.0, 1 / 0.7])
    assert float((made == 0).float().mean()) == pytest.approx(0.3, abs=4 * (0.21 / 40000) ** 0.5)
    assert torch.equal(layer.eval()(made), made)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_objective_has_the_discriminator_that_the_options_ask_for():
    pool = StyleBank(mean=noise(9, 3), std=noise(9, 3).abs(), owner=torch.ones(9).long())

    made = replace(FEDALIGN, discriminator="reversed", reversal=0.7).objective(
        clients()[0], model=start(), inbox={"pool": pool}, state={}, clock=CLOCK, rng=stream(0, "world", "t")
    )

    assert isinstance(made, OpposedAlignment)
    assert made.discriminator.reversal == 0.7
    assert made.couples_records
