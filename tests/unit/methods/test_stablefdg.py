"""StableFDG on the wire: who sends which styles to whom, how they are made, and which options are refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import StyleDistribution
from fdgsec.federation.method import Client
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.stablefdg import NEGATIVE_STDS, StableFDG
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.stablefdg_setting import (
    CHANNELS,
    CLOCK,
    PLAN,
    Outcome,
    drawn,
    phi,
    run,
    small_shapes,
    start,
    three_clients,
)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


def shared(method: StableFDG, client: Client) -> StyleDistribution:
    found, _ = method.share(client, model=start(method), state={}, clock=CLOCK, rng=drawn("share"))
    artifact = found["distribution"]
    assert isinstance(artifact, StyleDistribution)
    return artifact


def combined(method: StableFDG, sent: Sequence[StyleDistribution]) -> list[list[float]]:
    """For each participant, the first value of everything that it received."""
    uploads = {f"client:{i}": {"distribution": artifact} for i, artifact in enumerate(sent)}
    inboxes, server = method.combine(uploads, server={}, clock=CLOCK, rng=simulated_stream(0, "combine"))
    assert server == {}
    return [[float(a.tensors()["mean"][0]) for a in inboxes.get(f"client:{i}", {}).values()] for i in range(len(sent))]


@pytest.fixture(scope="module", params=["stablefdg-paper", "stablefdg-released"])
def preset_run(request: pytest.FixtureRequest, clients: list[Client]) -> tuple[StableFDG, Outcome]:
    """Two rounds by a preset, on a smaller plan."""
    method = replace(build(StableFDG, load_preset(request.param)["method"], where="method"), plan=PLAN)
    return method, run(method, clients)


def test_every_round_each_client_sends_four_vectors_and_receives_another_clients(
    preset_run: tuple[StableFDG, Outcome],
):
    method, outcome = preset_run
    names = ["client:0", "client:1", "client:2"]
    size = start(method).state.bytes

    for number in range(2):
        rows = [row[1:] for row in outcome.rows if row[0] == number]
        hashes = [row.sha256 for row in outcome.wire.transcript.rows if row.round == number]
        assert rows[:3] == [("model", "server", name, "ModelState", size) for name in names]
        assert rows[3:6] == [("share", name, "server", "StyleDistribution", 4 * CHANNELS * 4) for name in names]
        assert rows[6:9] == [("combine", "server", name, "StyleDistribution", 4 * CHANNELS * 4) for name in names]
        assert rows[9:] == [
            row
            for name in names
            for row in (
                ("update", name, "server", "ModelState", size),
                ("update", name, "server", "Scores", 3 * 8),  # weight, loss, steps in float64
            )
        ]
        assert sorted(hashes[6:9]) == sorted(hashes[3:6])
        assert all(received != sent for received, sent in zip(hashes[6:9], hashes[3:6], strict=True))


def test_encoding_and_decoding_every_message_changes_nothing(
    preset_run: tuple[StableFDG, Outcome], clients: list[Client]
):
    method, plain = preset_run

    recoded = run(method, clients, recode=True)

    assert plain.model.state.sha256 == recoded.model.state.sha256
    assert plain.wire.transcript.sha256 == recoded.wire.transcript.sha256


@pytest.mark.parametrize("options", [{"received": 0}, {"style": False}, {"style": False, "attention": False}])
def test_where_nobody_would_receive_styles_only_models_cross_the_wire(clients: list[Client], options: dict[str, int]):
    outcome = run(build(StableFDG, {**options, "plan": {"crop": "none"}}, where="method"), clients, rounds=1)

    assert {kind for *_, kind, _ in outcome.rows} == {"ModelState", "Scores"}


def test_without_both_halves_it_is_fedavg_with_uniform_weights(clients: list[Client]):
    unequal = [replace(client, data=client.data.subset(torch.arange(14 - 4 * i))) for i, client in enumerate(clients)]

    bare = run(StableFDG(style=False, attention=False, plan=PLAN), unequal, rounds=1)
    fedavg = run(FedAvg(weights="uniform", plan=PLAN), unequal, rounds=1)

    assert bare.model.state.sha256 == fedavg.model.state.sha256


def test_a_single_client_sends_its_styles_and_trains_without_anybody_elses():
    everything = Client(name="client:0", data=small_shapes())

    outcome = run(StableFDG(plan=PLAN), [everything], rounds=1)

    assert [row[1] for row in outcome.rows] == ["model", "share", "update", "update"]
    assert int(outcome.states["client:0"][NEGATIVE_STDS][1]) > 0  # exploration took place


def test_zero_rounds_exchange_styles_under_the_given_model(clients: list[Client]):
    outcome = run(StableFDG(plan=PLAN), clients, rounds=0)

    assert [row[1] for row in outcome.rows] == ["model"] * 3 + ["share"] * 3 + ["combine"] * 3


@pytest.mark.parametrize("participants", range(2, 9))
def test_every_participants_styles_go_to_exactly_one_other(participants: int):
    received = combined(StableFDG(), [phi(float(i)) for i in range(participants)])

    givers = [int(one) for [one] in received]
    assert sorted(givers) == list(range(participants))
    assert all(giver != receiver for receiver, giver in enumerate(givers))


def test_three_received_styles_come_from_three_others_and_every_style_goes_to_three():
    received = combined(StableFDG(received=3), [phi(float(i)) for i in range(6)])

    assert all(len(set(givers)) == 3 and float(i) not in givers for i, givers in enumerate(received))
    assert [sum(float(i) in givers for givers in received) for i in range(6)] == [3] * 6


def test_more_styles_than_there_are_others_means_all_others():
    received = combined(StableFDG(received=3), [phi(0.0), phi(1.0), phi(2.0)])

    assert [sorted(givers) for givers in received] == [[1.0, 2.0], [0.0, 2.0], [0.0, 1.0]]


def test_a_lone_participant_receives_nothing():
    assert combined(StableFDG(), [phi(0.0)]) == [[]]


def test_the_farthest_style_is_that_of_the_largest_distance():
    received = combined(StableFDG(sharing="farthest"), [phi(0.0), phi(1.0), phi(5.0)])

    assert received == [[5.0], [5.0], [0.0]]


def test_nothing_behind_the_first_stage_runs_while_styles_are_collected(clients: list[Client]):
    class Forbidden(nn.Module):
        def forward(self, maps: Tensor) -> Tensor:
            raise AssertionError("this part of the network is not needed for style statistics.")

    def guarded(network: Classifier, rng: torch.Generator) -> Classifier:
        for name in ("stage2", "stage3", "stage4"):
            network.body.get_submodule(name).append(Forbidden())  # type: ignore[operator]
        return network

    method, model = StableFDG(attention=False), start(StableFDG(attention=False))
    blueprint = replace(model.blueprint, remodel=guarded)

    found, _ = method.share(
        clients[0], model=replace(model, blueprint=blueprint), state={}, clock=CLOCK, rng=drawn("share")
    )

    assert torch.equal(found["distribution"].tensors()["mean"], shared(method, clients[0]).mean)


def test_styles_do_not_depend_on_batch_size_or_draws_unless_augmented(clients: list[Client]):
    small, large = (shared(StableFDG(plan=replace(PLAN, batch_size=size)), clients[0]) for size in (3, 64))
    augmented = shared(StableFDG(plan=PLAN, statistics_augmented=True), clients[0])

    assert torch.allclose(small.mean, large.mean, atol=1e-6)
    assert torch.allclose(small.mean_spread, large.mean_spread, atol=1e-6)
    assert not torch.allclose(augmented.mean, large.mean, atol=1e-4)


def test_training_mode_takes_the_norm_of_the_batch(clients: list[Client]):
    calm, busy = (shared(StableFDG(plan=PLAN, statistics_training_mode=on), clients[0]) for on in (False, True))

    assert not torch.allclose(calm.mean, busy.mean, atol=1e-2)


def test_a_spread_is_a_variance_or_as_released_its_root(clients: list[Client]):
    method = StableFDG()
    mean, std = torch.rand(2, 9, CHANNELS, generator=drawn("styles")).double()

    variance, root = method.distribution(mean, std), replace(method, spread="std").distribution(mean, std)

    assert torch.allclose(variance.mean_spread.double(), mean.var(0, correction=0), rtol=1e-6)
    assert torch.allclose(root.std_spread.double(), (std.var(0) + 1e-6).sqrt(), rtol=1e-6)


def test_a_client_with_one_image_shares_a_spread_of_zero(clients: list[Client]):
    one = Client(name="client:0", data=clients[0].data.subset(torch.tensor([3])))

    assert float(shared(StableFDG(), one).mean_spread.max()) == 0.0
    assert torch.allclose(shared(StableFDG(spread="std"), one).mean_spread, torch.full((CHANNELS,), 1e-3))


def test_styles_without_a_model_or_without_images_are_refused(clients: list[Client]):
    method = StableFDG()
    empty = Client(name="client:5", data=clients[0].data.subset(torch.zeros(0, dtype=torch.int64)))

    with pytest.raises(UsageError, match="shares styles of the current model"):
        method.share(clients[0], model=None, state={}, clock=CLOCK, rng=drawn("share"))
    with pytest.raises(UsageError, match="client:5 has no images"):
        method.share(empty, model=start(method), state={}, clock=CLOCK, rng=drawn("share"))


@pytest.mark.medium
def test_either_half_works_alone_and_plugs_into_other_methods(clients: list[Client]):
    for method in (
        StableFDG(attention=False, plan=PLAN),
        StableFDG(style=False, plan=PLAN),
        CCST(k=2, local=StableFDG(received=0, plan=PLAN), plan=PLAN),
    ):
        assert run(method, clients, rounds=1).model.state.sha256 != start(method).state.sha256


def test_an_exchange_without_a_model_asks_for_one_or_for_receiving_nothing(clients: list[Client]):
    with pytest.raises(UsageError, match="set received to 0"):
        StableFDG().share(clients[0], model=None, state={}, clock=CLOCK, rng=stream(0, "world", "share"))


def test_a_local_method_on_top_is_refused(clients: list[Client]):
    with pytest.raises(UsageError, match="leave the local method out"):
        run(StableFDG(local=FedAvg()), clients)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "stage5"}, "acts at stem, stage1, stage2, stage3, stage4"),
        ({"explore_at": ["conv"]}, "acts at stem"),
        ({"probability": 1.5}, "probability in"),
        ({"received": -1}, "at least 0"),
        ({"oversampling": -0.5}, "at least 0"),
        ({"mix_alpha": 0.0}, "mix_alpha > 0"),
        ({"embedding": 0}, "embedding >= 1"),
        ({"eps": 0.0}, "eps > 0"),
        ({"selection": "kmeans"}, "selection"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        build(StableFDG, options, where="method")


@pytest.mark.parametrize("name", ["stablefdg-paper", "stablefdg-released"])
def test_presets_build_and_say_what_they_differ_in(name: str):
    preset = load_preset(name)
    method = build(StableFDG, preset["method"], where="method")

    assert (method.plan.epochs, method.plan.batch_size, method.plan.crop) == (5, 32, None)
    assert method.cosine == (name == "stablefdg-released")
    assert (method.plan.schedule == "cosine") == (name == "stablefdg-paper")
