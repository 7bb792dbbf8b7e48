"""What FedAvg makes of its clients' updates, and runs that repeat bit for bit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.train import train
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, State, Update
from fdgsec.federation.round_loop import ClientFailedError, RoundLoop
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import SERVER, Message, Wire
from fdgsec.methods.fedavg import FedAvg, WeightedMean, averaged
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.toy_federation import (
    FULL_BATCH,
    Outcome,
    PeerReviewed,
    PixelStyles,
    images,
    largest_gap,
    members,
    run,
    start,
)


@pytest.mark.parametrize("method", [FedAvg(select="validation"), PixelStyles(when="every"), PeerReviewed()])
def test_encoding_and_decoding_every_message_changes_neither_model_nor_transcript(method: FedAvg):
    plain = run(method, members(6, 7), rounds=2)

    recoded = run(method, members(6, 7), rounds=2, recode=True)

    assert recoded.wire.transcript.sha256 == plain.wire.transcript.sha256
    assert largest_gap(plain.state(), recoded.state()) == 0.0


def test_equal_seeds_give_equal_runs_and_other_seeds_others():
    hashes = [run(FedAvg(), members(6, 7), seed=seed).wire.transcript.sha256 for seed in (1, 1, 2)]

    assert hashes[0] == hashes[1] != hashes[2]


def mean_of(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Mapping[str, Tensor]:
    mean = WeightedMean(model=start(), server={})
    for state, weight in zip(states, weights, strict=True):
        mean.add(Update(artifacts={"model": ModelState(state=state)}, weight=weight))
    return mean.result()[0].state.state


def test_the_weighted_mean_is_the_sum_in_float64_divided_once():
    draws = [torch.randn(50, generator=stream(i, "world", "mean")) for i in range(3)]
    sizes = [20.0, 31.0, 57.5]

    made = mean_of([{"w": draw} for draw in draws], sizes)["w"]

    exact = (20.0 * draws[0].double() + 31.0 * draws[1].double() + 57.5 * draws[2].double()) / 108.5
    assert made.dtype == torch.float32
    assert torch.equal(made, exact.float())


def test_the_weighted_mean_is_the_average_by_shares_to_the_last_bit():
    draws = [{"w": torch.randn(10_000, generator=stream(i, "world", "bits"))} for i in range(7)]
    sizes = [float(size) for size in (31, 7, 120, 64, 9, 77, 1)]

    made = mean_of(draws, sizes)["w"]

    shares = averaged(draws, [size / sum(sizes) for size in sizes])["w"]
    # two float64 sums differ by less than 7 x 2^-52 of their largest term, and rounding to 24 bits rarely shows it
    assert torch.allclose(made, shares, rtol=2e-7, atol=1e-14)
    assert int((made != shares).sum()) <= 1


@pytest.mark.parametrize("weights", [[3.0, 5.0], [0.3, 0.7], [2.0**31, 1.0]])
def test_the_layout_of_a_model_does_not_change_the_mean(weights: list[float]):
    maps = [torch.randn(6, 5, 3, 3, generator=stream(i, "world", "layout")) for i in range(2)]
    last = [draw.contiguous(memory_format=torch.channels_last) for draw in maps]

    rows, columns = mean_of([{"w": draw} for draw in maps], weights), mean_of([{"w": draw} for draw in last], weights)

    assert torch.equal(rows["w"], columns["w"])


def test_the_mean_copies_counters_of_the_first_and_keeps_what_nobody_sent():
    counters = [{"seen": torch.tensor(value), "w": torch.tensor([float(value)])} for value in (4, 7)]

    made = mean_of(counters, [1.0, 1.0])

    assert (int(made["seen"]), made["w"].tolist()) == (4, [5.5])
    kept = start().state.state
    assert all(torch.equal(made[name], value) for name, value in kept.items())


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_makes_no_mean_is_refused(weight: float):
    with pytest.raises(ArtifactError, match="models are averaged by weights of 0 or more"):
        mean_of([{"w": torch.ones(2)}, {"w": torch.ones(2)}], [1.0, weight])


def test_a_weight_of_0_leaves_an_update_out_and_weights_of_0_alone_have_no_mean():
    ones, twos = {"w": torch.ones(2)}, {"w": torch.full((2,), 2.0)}

    assert mean_of([ones, twos], [0.0, 3.0])["w"].tolist() == [2.0, 2.0]
    with pytest.raises(ArtifactError, match="every update has the weight 0"):
        mean_of([ones, twos], [0.0, 0.0])


def test_an_entry_of_another_shape_is_named_also_where_updates_before_left_one_out():
    model = dict(start().state.state)
    first, second, *_ = model
    less = {key: value for key, value in model.items() if key != first}

    with pytest.raises(ArtifactError, match=f"entry {second} holds numbers of shape"):
        mean_of([less, {**model, second: torch.ones(1, 1)}], [1.0, 1.0])


def test_where_updates_before_left_an_entry_out_no_side_is_blamed():
    model = dict(start().state.state)
    name = next(iter(model))
    less = {key: value for key, value in model.items() if key != name}

    with pytest.raises(ArtifactError, match=f"it holds entry {name} of the model, .*; either may be wrong"):
        mean_of([less, model], [1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class OneDeviates(FedAvg):
    """Client 1 sends what `as_sent` makes of its model's entries."""

    deviation: str = "missing"

    def fit(self, client: Client, **given: Any) -> tuple[Update, State]:
        update, state = super().fit(client, **given)
        if client.number != 1:
            return update, state
        entries = dict(update.artifacts["model"].tensors())
        name = next(name for name, value in entries.items() if value.ndim > 1)
        value = entries.pop(name)
        if self.deviation == "broadcast":
            entries[name] = value[:1]
        if self.deviation == "extra":
            entries |= {name: value, "mine": torch.ones(1)}
        return replace(update, artifacts={"model": ModelState(state=entries)}), state


@pytest.mark.parametrize("method", ["streamed", "at once"])
@pytest.mark.parametrize("recode", [False, True])
@pytest.mark.parametrize(
    ("deviation", "said"),
    [("missing", "is missing"), ("broadcast", "holds numbers of shape"), ("extra", "not expected")],
)
def test_an_update_of_another_form_is_the_failure_of_its_client(method: str, recode: bool, deviation: str, said: str):
    chosen = OneDeviates(deviation=deviation) if method == "streamed" else OneDeviatesAtOnce(deviation=deviation)

    with pytest.raises(ClientFailedError, match=rf"^client:1 failed in fit: entry .* {said}"):
        run(chosen, members(6, 7, 5), recode=recode)


def test_a_mean_of_models_of_other_forms_is_refused_and_names_the_entry():
    for other in ({"v": torch.ones(2)}, {"w": torch.ones(1)}, {"w": torch.ones(2), "v": torch.ones(2)}):
        with pytest.raises(ArtifactError, match="model 1 of those to be averaged: entry"):
            averaged([{"w": torch.ones(2)}, other], [0.5, 0.5])


@dataclass(frozen=True, kw_only=True)
class AtOnce(FedAvg):
    """FedAvg that is given all updates at once, because it says nothing of one after the other."""

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        assert all("model" in update.artifacts for update in updates.values())
        return super().aggregate(updates, scores=scores, model=model, server=server)


@dataclass(frozen=True, kw_only=True)
class OneDeviatesAtOnce(OneDeviates):
    """The same, given to the server all at once."""

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        return super().aggregate(updates, scores=scores, model=model, server=server)


@pytest.mark.parametrize("local", [None, MixStyle()])
def test_updates_taken_in_one_by_one_give_the_run_of_all_at_once(local: FedAvg | None):
    def ran(base: FedAvg) -> Outcome:
        return run(base if local is None else Stacked(base=base, local=local), members(6, 9, 4), rounds=3)

    plan = TrainingPlan(batch_size=4, learning_rate=0.05)
    streamed, at_once = ran(FedAvg(plan=plan)), ran(AtOnce(plan=plan))

    assert streamed.wire.transcript.sha256 == at_once.wire.transcript.sha256
    assert largest_gap(streamed.state(), at_once.state()) == 0.0
    assert [report.metrics for report in streamed.reports] == [report.metrics for report in at_once.reports]


class _Watch:
    """Counts how many of the models that clients sent exist at the same time."""

    def __init__(self) -> None:
        self.models: WeakSet[ModelState] = WeakSet()
        self.most = 0

    def __call__(self, message: Message) -> None:
        if message.sender != SERVER and isinstance(message.artifact, ModelState):
            self.models.add(message.artifact)
            self.most = max(self.most, len(self.models))


@pytest.mark.parametrize(("method", "most"), [(FedAvg(plan=FULL_BATCH), 2), (AtOnce(plan=FULL_BATCH), 12)])
def test_updates_are_not_held_unless_the_method_needs_all_of_them(method: FedAvg, most: int):
    clients, watch = members(*[4] * 12), _Watch()
    wire = Wire(secret=lambda upload, number: simulated_stream(0, upload.sender, number), guards=(watch,))
    engine = LocalEngine(members=clients, method=method, seed=0)

    RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=1).run(start())

    assert watch.most == most  # the one that is added, and the one before it, which a loop still names


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


@pytest.mark.medium
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
