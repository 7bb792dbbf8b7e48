"""What FedAvg makes of its clients' updates, and runs that repeat bit for bit."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.train import train
from fdgsec.federation.method import Client
from fdgsec.methods.fedavg import FedAvg, averaged
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.random_streams import stream
from tests.support.toy_federation import FULL_BATCH, PeerReviewed, PixelStyles, images, largest_gap, members, run, start


@pytest.mark.parametrize("method", [FedAvg(select="validation"), PixelStyles(when="every"), PeerReviewed()])
def test_encoding_and_decoding_every_message_changes_neither_model_nor_transcript(method: FedAvg):
    plain = run(method, members(6, 7), rounds=2)

    recoded = run(method, members(6, 7), rounds=2, recode=True)

    assert recoded.wire.transcript.sha256 == plain.wire.transcript.sha256
    assert largest_gap(plain.state(), recoded.state()) == 0.0


def test_equal_seeds_give_equal_runs_and_other_seeds_others():
    hashes = [run(FedAvg(), members(6, 7), seed=seed).wire.transcript.sha256 for seed in (1, 1, 2)]

    assert hashes[0] == hashes[1] != hashes[2]


def test_averaging_is_the_weighted_sum_in_float64():
    draws = [torch.randn(50, generator=stream(i, "world", "average")) for i in range(3)]
    weights = [0.2, 0.3, 0.5]

    made = averaged([{"w": draw} for draw in draws], weights)["w"]

    exact = sum(weight * draw.double() for weight, draw in zip(weights, draws, strict=True))
    assert made.dtype == torch.float32
    assert torch.equal(made, torch.as_tensor(exact).float())


def test_averaging_copies_integer_counters_from_the_first_state():
    counters = [{"seen": torch.tensor(value), "w": torch.tensor([float(value)])} for value in (4, 7)]

    made = averaged(counters, [0.5, 0.5])
    made["seen"] += 1

    assert made["w"].tolist() == [5.5]
    assert (int(made["seen"]), int(counters[0]["seen"])) == (5, 4)


def test_averaging_does_not_depend_on_the_order_of_clients_beyond_rounding():
    draws = [{"w": 10.0**i * torch.randn(200, generator=stream(i, "world", "order"))} for i in range(6)]
    weights = [0.05, 0.1, 0.15, 0.2, 0.25, 0.25]

    forwards, backwards = averaged(draws, weights)["w"], averaged(draws[::-1], weights[::-1])["w"]

    assert torch.allclose(forwards, backwards, rtol=2e-7, atol=0)  # at most the last bit of float32


def test_identical_clients_train_like_one():
    data = images(12, "same")
    many = [Client(name=f"client:{i}", data=data) for i in range(3)]

    together = run(FedAvg(plan=FULL_BATCH), many, rounds=3)
    alone = run(FedAvg(plan=FULL_BATCH), many[:1], rounds=3)

    # each client shuffles its one full batch, so float32 sums run in another order
    assert largest_gap(together.state(), alone.state()) < 1e-4
    assert largest_gap(together.state(), start().state.state) > 1e-2


def test_one_round_of_one_full_batch_step_is_gradient_descent_on_the_weighted_loss():
    clients = members(4, 8, 12)
    expected: dict[str, Tensor] = {}
    for client in clients:  # McMahan et al., section 2: w - eta sum_k (n_k / n) g_k
        network = start().module().train()
        loss = functional.cross_entropy(network(as_float(client.data.pixels())), client.data.labels)
        names, parameters = zip(*network.named_parameters(), strict=True)
        for name, parameter, gradient in zip(names, parameters, torch.autograd.grad(loss, parameters), strict=True):
            so_far = expected[name] if name in expected else parameter.detach()
            expected[name] = so_far - len(client.data) / 24 * 0.1 * gradient

    made = run(FedAvg(plan=FULL_BATCH), clients).state()

    assert max(float((made[name] - value).abs().max()) for name, value in expected.items()) < 1e-5


def test_uniform_weights_ignore_how_many_images_a_client_has():
    clients = members(4, 12)
    alone = [run(FedAvg(plan=FULL_BATCH), [client]).state() for client in clients]

    made = run(FedAvg(plan=FULL_BATCH, weights="uniform"), clients).state()

    assert largest_gap(made, averaged(alone, [0.5, 0.5])) < 1e-6
    assert largest_gap(made, averaged(alone, [0.25, 0.75])) > 1e-4


def test_two_rounds_of_ccst_share_styles_once_train_on_shapes_and_repeat_bit_for_bit():
    config = RunConfig(method="ccst", options={"k": 2}, image_size=32, per_domain=14, rounds=2)

    report, again = (train(config, data_root=None, out=None, progress=NoProgress()) for _ in range(2))

    assert [(row["round"], row["stage"], row["kind"]) for row in report.artifacts] == [
        *[(0, "share", "StyleStatistics")] * 3,
        *[(0, "combine", "StyleBank")] * 3,
    ]
    assert [(row["stage"], row["messages"]) for row in report.model_traffic] == [
        ("model", 6), ("update", 6), ("update", 6),
    ]  # fmt: skip
    assert report.accuracy is not None
    assert report.accuracy["n"] == 14
    assert (again.transcript_sha256, again.accuracy) == (report.transcript_sha256, report.accuracy)
