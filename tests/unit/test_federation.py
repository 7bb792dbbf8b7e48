"""The round loop: what crosses the wire in which order, who takes part, and what FedAvg makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.artifacts import InterpolationStyle, ModelState, Scores, StyleStatistics
from fdgsec.config import RunConfig
from fdgsec.console import Silent
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.driver import ClientFailedError, Driver, RoundReport
from fdgsec.engines.local import LocalEngine
from fdgsec.errors import UsageError
from fdgsec.experiments.train import train
from fdgsec.federation import (
    Blueprint,
    Client,
    Clock,
    GlobalModel,
    Inbox,
    Method,
    Reply,
    Request,
    State,
    Step,
    Update,
)
from fdgsec.methods.fedavg import FedAvg, averaged
from fdgsec.models import build_classifier
from fdgsec.plans import Plan
from fdgsec.rng import stream
from fdgsec.training import predictions
from fdgsec.wire import Wire

FULL_BATCH = Plan(batch_size=64, learning_rate=0.1, crop=None, flip=0.0)


@dataclass(frozen=True, kw_only=True)
class PixelStyles(FedAvg):
    """FedAvg whose clients also share the mean and std of their pixels; everybody gets the centre of those."""

    when: Literal["once", "every"] = "once"

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        return self.when

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        pixels = as_float(client.data.pixels()).transpose(0, 1).flatten(1)
        return {"style": StyleStatistics(mean=pixels.mean(1), std=pixels.std(1))}, state

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Mapping[str, Inbox], State]:
        styles = [inbox["style"].tensors() for inbox in shared.values()]
        centre = {name: torch.stack([style[name] for style in styles]).mean(0) for name in ("mean", "std")}
        return {name: {"centre": InterpolationStyle(**centre)} for name in shared}, server


@dataclass(frozen=True, kw_only=True)
class PeerReviewed(FedAvg):
    """FedAvg where peers count what each other's models get right, and these counts are the weights."""

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        return "before"

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: torch.Generator
    ) -> Mapping[str, Inbox]:
        return {
            reviewer: {peer: update.artifacts["model"] for peer, update in updates.items() if peer != reviewer}
            for reviewer in updates
        }

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        def right(peer: str) -> float:
            network = model.with_state(inbox[peer].tensors()).module()
            return float((predictions(network, client.data.pixels()) == client.data.labels).sum())

        return Scores(values=torch.tensor([right(peer) for peer in sorted(inbox)]))

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        votes = dict.fromkeys(updates, 1.0)  # one for itself
        for reviewer, found in scores.items():
            for peer, count in zip(sorted(set(updates) - {reviewer}), found.values.tolist(), strict=True):
                votes[peer] += count
        weights = [votes[name] / sum(votes.values()) for name in updates]
        states = [update.artifacts["model"].tensors() for update in updates.values()]
        return model.with_state(averaged(states, weights)), {"votes": torch.tensor(list(votes.values()))}


@dataclass(frozen=True, kw_only=True)
class Unreliable:
    """An engine that never hears from one client in one step."""

    engine: LocalEngine
    lost: str
    step: Step

    def clients(self) -> Sequence[str]:
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, Request]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        if step != self.step:
            return self.engine.ask(step, requests)
        reached = {name: request for name, request in requests.items() if name != self.lost}
        replies, failures = self.engine.ask(step, reached)
        return replies, {**failures, self.lost: "no answer within 5 seconds"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A driver's run: the final model, the wire, and what each round reported."""

    model: GlobalModel | None
    wire: Wire
    reports: list[RoundReport] = field(default_factory=list)

    @property
    def messages(self) -> list[tuple[int, str, str, str, str]]:
        return [(r.round, r.stage, r.sender, r.receiver, r.kind) for r in self.wire.transcript.rows]

    def state(self) -> Mapping[str, Tensor]:
        assert self.model is not None
        return self.model.state.state


def images(count: int, name: str) -> DomainDataset:
    """Two classes that differ in brightness; `name` seeds the noise."""
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 100, (count, 3, 32, 32), generator=stream(0, "world", name))
    return DomainDataset(
        name="toy",
        store=(noise + 120 * labels.view(-1, 1, 1, 1)).to(torch.uint8),
        rows=torch.arange(count),
        labels=labels,
        domains=torch.zeros(count, dtype=torch.int64),
        ids=tuple(f"only/{name}/{i}" for i in range(count)),
        class_names=("dark", "bright"),
        domain_names=("only",),
    )


def members(*sizes: int) -> list[Client]:
    return [
        Client(name=f"client:{i}", data=images(size, f"c{i}"), validation=images(4, f"v{i}"))
        for i, size in enumerate(sizes)
    ]


def start() -> GlobalModel:
    state = build_classifier("tiny", 2, rng=stream(0, "world", "start")).state_dict()
    return GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=ModelState(state=dict(state)))


def run(
    method: Method,
    clients: Sequence[Client],
    *,
    rounds: int = 1,
    participation: float = 1.0,
    seed: int = 0,
    recode: bool = False,
    lost: tuple[str, Step] | None = None,
) -> Outcome:
    engine = LocalEngine(members=clients, method=method, seed=seed, recode=recode)
    wire = Wire(secret=lambda message, number: stream(seed, "secret", message.sender, number))
    reports: list[RoundReport] = []
    driver = Driver(
        method=method,
        engine=engine if lost is None else Unreliable(engine=engine, lost=lost[0], step=lost[1]),
        wire=wire,
        seed=seed,
        rounds=rounds,
        participation=participation,
        on_round=lambda report, model: reports.append(report),
    )
    return Outcome(model=driver.run(start() if rounds else None), wire=wire, reports=reports)


def largest_gap(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


ROUND_OF_TWO = [
    ("model", "server", "client:0", "ModelState"),
    ("model", "server", "client:1", "ModelState"),
    ("update", "client:0", "server", "ModelState"),
    ("update", "client:0", "server", "Scores"),
    ("update", "client:1", "server", "ModelState"),
    ("update", "client:1", "server", "Scores"),
]
EXCHANGE_OF_TWO = [
    ("share", "client:0", "server", "StyleStatistics"),
    ("share", "client:1", "server", "StyleStatistics"),
    ("combine", "server", "client:0", "InterpolationStyle"),
    ("combine", "server", "client:1", "InterpolationStyle"),
]


def in_round(number: int, rows: list[tuple[str, str, str, str]]) -> list[tuple[int, str, str, str, str]]:
    return [(number, *row) for row in rows]


def test_fedavg_sends_the_model_down_and_up_and_nothing_else():
    outcome = run(FedAvg(), members(6, 6), rounds=2)

    assert outcome.messages == in_round(0, ROUND_OF_TWO) + in_round(1, ROUND_OF_TWO)


def test_a_clients_size_and_loss_reach_the_server_over_the_wire():
    outcome = run(FedAvg(), members(6, 9))

    told = [message.artifact for message in outcome.wire.transcript.messages() if message.stage == "update"]
    sizes = [artifact.tensors()["values"][0].item() for artifact in told]
    losses = [outcome.reports[0].metrics[name]["loss"] for name in ("client:0", "client:1")]
    assert sizes == [6.0, 9.0]
    assert [artifact.tensors()["values"][1].item() for artifact in told] == losses


def test_a_method_that_shares_once_exchanges_before_the_first_round_only():
    outcome = run(PixelStyles(when="once"), members(6, 6), rounds=2)

    assert outcome.messages == in_round(0, EXCHANGE_OF_TWO + ROUND_OF_TWO) + in_round(1, ROUND_OF_TWO)


def test_a_method_that_shares_every_round_exchanges_every_round():
    outcome = run(PixelStyles(when="every"), members(6, 6), rounds=2)

    both = ROUND_OF_TWO[:2] + EXCHANGE_OF_TWO + ROUND_OF_TWO[2:]  # styles of the model that just came
    assert outcome.messages == in_round(0, both) + in_round(1, both)


def test_everybody_shares_once_but_only_participants_share_every_round():
    once = run(PixelStyles(when="once"), members(6, 6, 6, 6), participation=0.5)
    every = run(PixelStyles(when="every"), members(6, 6, 6, 6), participation=0.5)

    def senders(outcome: Outcome) -> int:
        return sum(stage == "share" for _, stage, *_ in outcome.messages)

    assert (senders(once), senders(every)) == (4, 2)


def test_zero_rounds_exchange_artifacts_and_train_nothing():
    assert run(PixelStyles(), members(6, 6), rounds=0).messages == in_round(0, EXCHANGE_OF_TWO)
    assert run(FedAvg(), members(6, 6), rounds=0).messages == []


def test_peers_review_each_others_models_before_aggregation():
    outcome = run(PeerReviewed(), members(6, 6, 6))

    reviewing = [(stage, sender, receiver) for _, stage, sender, receiver, _ in outcome.messages[9:]]
    assert [stage for _, stage, *_ in outcome.messages[:9]] == ["model"] * 3 + ["update"] * 6
    assert reviewing[:6] == [("exhibit", "server", f"client:{i}") for i in (0, 0, 1, 1, 2, 2)]  # n (n - 1) exhibits
    assert reviewing[6:] == [("review", f"client:{i}", "server") for i in (0, 1, 2)]


def test_reviews_before_aggregation_decide_the_weights():
    outcome = run(PeerReviewed(plan=FULL_BATCH), members(6, 10, 8))

    rows = [r for r in outcome.wire.transcript.rows if r.stage == "review"]
    scores = [outcome.wire.transcript.payloads[row.sha256].tensors()["values"] for row in rows]
    votes = [1 + scores[1][0] + scores[2][0], 1 + scores[0][0] + scores[2][1], 1 + scores[0][1] + scores[1][1]]
    assert outcome.reports[0].server["votes"].tolist() == [float(vote) for vote in votes]


def test_reviews_after_aggregation_judge_the_new_model_which_reaches_reviewers_over_the_wire():
    outcome = run(FedAvg(select="validation"), members(6, 6))

    assert outcome.messages == in_round(
        0,
        [
            *ROUND_OF_TWO,
            ("exhibit", "server", "client:0", "ModelState"),
            ("exhibit", "server", "client:1", "ModelState"),
            ("review", "client:0", "server", "Scores"),
            ("review", "client:1", "server", "Scores"),
        ],
    )
    assert outcome.model is not None
    exhibited = [row.sha256 for row in outcome.wire.transcript.rows if row.stage == "exhibit"]
    assert exhibited == [outcome.model.state.sha256] * 2


@dataclass(frozen=True, kw_only=True)
class Movement(FedAvg):
    """FedAvg whose clients report how far the exhibited model moved from the one that the step comes with."""

    select: Literal["last", "validation"] = "validation"

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        return Scores(values=torch.tensor([largest_gap(model.state.state, inbox["model"].tensors()), 1.0]))


def test_a_reviewer_is_not_handed_the_new_model_past_the_wire():
    outcome = run(Movement(plan=FULL_BATCH), members(6, 6))

    moved = largest_gap(start().state.state, outcome.state())
    assert moved > 1e-2
    assert float(outcome.reports[0].server["validation_accuracy"]) == pytest.approx(moved, rel=1e-6)


def test_the_mean_validation_accuracy_is_that_of_the_aggregated_model():
    clients = members(6, 6)

    outcome = run(FedAvg(select="validation"), clients)

    assert outcome.model is not None
    network = outcome.model.module()
    right = [
        float((predictions(network, c.validation.pixels()) == c.validation.labels).float().mean())
        for c in clients
        if c.validation is not None
    ]
    assert float(outcome.reports[0].server["validation_accuracy"]) == pytest.approx(sum(right) / 2)


def participants(outcome: Outcome, number: int) -> list[str]:
    return [receiver for round_, stage, _, receiver, _ in outcome.messages if (round_, stage) == (number, "model")]


def test_participants_are_drawn_anew_each_round_from_the_secret_stream_of_the_seed():
    clients = members(*[2] * 10)

    outcome = run(FedAvg(), clients, rounds=3, participation=0.3, seed=5)

    for number in range(3):
        order = torch.randperm(10, generator=stream(5, "secret", "participants", number))[:3]
        assert participants(outcome, number) == [f"client:{i}" for i in sorted(order.tolist())]
    assert len({tuple(participants(outcome, number)) for number in range(3)}) > 1


def test_the_same_seed_draws_the_same_participants_whatever_the_method():
    clients = members(*[2] * 6)

    first = run(FedAvg(), clients, rounds=2, participation=0.5)
    again = run(PixelStyles(when="every"), clients, rounds=2, participation=0.5)

    assert [participants(first, n) for n in (0, 1)] == [participants(again, n) for n in (0, 1)]


@pytest.mark.parametrize(("share", "expected"), [(0.01, 1), (0.29, 29), (0.999, 99), (1.0, 100)])
def test_a_share_of_a_hundred_clients_is_rounded_down_but_never_to_nobody(share: float, expected: int):
    clients = [Client(name=f"client:{i}", data=images(2, "c0")) for i in range(100)]
    engine = LocalEngine(members=clients, method=FedAvg(), seed=0)
    wire = Wire(secret=lambda message, number: stream(0, "secret"))
    driver = Driver(method=FedAvg(), engine=engine, wire=wire, seed=0, rounds=1, participation=share)

    assert len(driver._participants(list(engine.clients()), 0)) == expected


@pytest.mark.parametrize(("rounds", "share"), [(-1, 1.0), (1, 0.0), (1, 1.5), (1, -0.5)])
def test_rounds_and_participation_out_of_range_are_refused(rounds: int, share: float):
    with pytest.raises(UsageError, match="rounds must be at least 0 and participation in"):
        run(FedAvg(), members(2), rounds=rounds, participation=share)


def test_a_federation_without_clients_or_without_a_model_is_refused():
    wire = Wire(secret=lambda message, number: stream(0, "secret"))
    engine = LocalEngine(members=members(2), method=FedAvg(), seed=0)

    with pytest.raises(UsageError, match="at least one client"):
        run(FedAvg(), [])
    with pytest.raises(UsageError, match="needs a model"):
        Driver(method=FedAvg(), engine=engine, wire=wire, seed=0, rounds=1).run(None)


@pytest.mark.parametrize(
    ("method", "step"), [(PixelStyles(), "share"), (FedAvg(), "fit"), (FedAvg(select="validation"), "review")]
)
def test_a_client_that_fails_ends_the_run_and_is_named_with_its_step_and_reason(method: FedAvg, step: Step):
    with pytest.raises(ClientFailedError, match=f"client:1 failed in {step}: no answer within 5 seconds"):
        run(method, members(4, 4, 4), lost=("client:1", step))


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

    report, again = (train(config, data_root=None, out=None, progress=Silent()) for _ in range(2))

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
