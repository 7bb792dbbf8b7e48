"""The noise that private-styles adds is the noise that it accounts for, over all rounds of a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, cast

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.experiments.run_config import attack_settings
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.federation.artifacts import Artifact, StyleDistribution
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense import Outgoing
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, Reply, State, StepRequest
from fdgsec.federation.public_clip_bounds import Reference, client_region, pooled_frame, row_region, rows_of
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import Wire
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.feddg import FedDG
from fdgsec.privacy.clipping import Ball, HalfDiscs
from fdgsec.privacy.ledger import Ledger
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.private_styles_setting import PixelStatistic, cost, network_input, outgoing, plain_pixels, protected
from tests.support.toy_federation import PixelStyles, members, start

OVERALL = CCST(encoder="pixels")
DRAWS = 1500
READ = StyleDistributions(released=True)


def pixel_distributions(images: DomainDataset, model: GlobalModel | None) -> PixelStatistic:
    return PixelStatistic(released_statistic=READ)


@dataclass(frozen=True, kw_only=True)
class PixelDistributions(PixelStyles):
    """Shares center and spread of the images' color styles, as StableFDG does of its maps'."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        styles = pixel_distributions(client.data, None).records(client.data)[:, :6]
        spread = (styles.var(0) + READ.eps).sqrt().float()
        mean, std = styles.mean(0).float().chunk(2)
        sent = StyleDistribution(mean=mean, std=std, mean_spread=spread[:3], std_spread=spread[3:])
        return {"distribution": sent}, state


def distribution_message() -> Outgoing:
    message = outgoing(PixelDistributions(), count=40)
    return replace(message, sender=replace(message.sender, statistic_source=pixel_distributions))


def pooled_coordinates(message: Outgoing) -> Callable[[Artifact], Tensor]:
    """Read a release back in the coordinates in which noise was added."""
    frame = pooled_frame(message.sender, message.name, Reference())
    ball = cast(Ball, frame.region)

    def read(artifact: Artifact) -> Tensor:
        t = frame.released_statistic.release(artifact, images=len(message.sender.client.data))[0]
        return (frame.released_statistic.about(t, frame.about) - ball.center) / ball.scale

    return read


def spread_of(
    message: Outgoing, defense: PrivateStyles, read: Callable[[Artifact], Tensor], *, first: int | None = None
) -> float:
    drawn = torch.stack([read(protected(defense, message, draw=draw).artifact)[:first] for draw in range(DRAWS)])
    return float(drawn.std(0).square().mean().sqrt())


QUIET = 300.0
"""An epsilon whose noise is so small that no variance is clamped."""


@pytest.mark.medium
def test_the_noise_on_a_mean_has_the_standard_deviation_that_is_accounted_for():
    message, defense = outgoing(OVERALL, count=40), PrivateStyles(epsilon=QUIET)
    (use,) = cost(protected(defense, message))

    assert spread_of(message, defense, pooled_coordinates(message)) == pytest.approx(use.noise, rel=0.03)


@pytest.mark.medium
def test_the_noise_on_a_distribution_has_the_standard_deviation_that_is_accounted_for():
    message, defense = distribution_message(), PrivateStyles(epsilon=QUIET)
    (use,) = cost(protected(defense, message))

    # the last three are variances of stds, which are next to 0 and cannot become negative
    assert spread_of(message, defense, pooled_coordinates(message), first=9) == pytest.approx(use.noise, rel=0.03)


@pytest.mark.medium
def test_the_noise_on_a_sum_has_the_standard_deviation_that_is_accounted_for():
    """About center 0 the mean is sum / count; its noise is sd / n, and -mean sd / (lambda n) from the count."""
    message = outgoing(OVERALL, count=40)
    defense = PrivateStyles(epsilon=QUIET, neighbors="add-remove")
    found = protected(defense, message)
    (use,) = cost(found)
    read = pooled_coordinates(message)

    mean = read(message.artifact)
    frame = pooled_frame(message.sender, message.name, Reference())
    weight = frame.region.radius / math.sqrt(2)
    expected = use.noise / 40 * math.sqrt(1 + float(mean.square().mean()) / weight**2)

    assert spread_of(message, defense, read) == pytest.approx(expected, rel=0.03)


@pytest.mark.medium
def test_the_noise_on_rows_has_the_standard_deviation_that_is_accounted_for():
    message, defense = outgoing(FedAlign(upload_ratio=0.2), count=40), PrivateStyles(epsilon=QUIET)
    (use,) = cost(protected(defense, message))
    assert isinstance(row_region(message.sender, message.name, Reference()), HalfDiscs)

    means = spread_of(message, defense, lambda artifact: rows_of(artifact)[:, :3].flatten())

    assert means == pytest.approx(use.noise, rel=0.03)  # stds are clamped at 0, means are not


@pytest.mark.medium
def test_the_noise_on_a_client_has_the_standard_deviation_that_is_accounted_for():
    message, defense = outgoing(OVERALL, count=40), PrivateStyles(epsilon=QUIET, unit="client")
    (use,) = cost(protected(defense, message))
    ball = client_region(message.sender, message.name, Reference())

    def read(artifact: Artifact) -> Tensor:
        return ((rows_of(artifact)[0] - ball.center) / ball.scale)[:3]

    assert spread_of(message, defense, read) == pytest.approx(use.noise, rel=0.03)


Relation = Literal["replace-one", "zero-out", "add-remove"]


def promised(defense: PrivateStyles, method: Method, rounds: int, *, delta: float = 1e-5) -> tuple[float | None, str]:
    """What the ledger says of one client's messages in all rounds."""
    ledger = Ledger()
    for number in range(rounds if method.shares == "every" else 1):
        message = outgoing(method, round=number, rounds=rounds)
        kinds, uses = {message.name: message.artifact.kind}, {message.name: protected(defense, message).uses}
        ledger.write("client:0", round=number, stage="share", kinds=kinds, uses=uses)
    (run,) = ledger.guarantees(delta=delta)
    return run.epsilon, str(run.relation)


@pytest.mark.parametrize("neighbors", ["replace-one", "zero-out", "add-remove"])
@pytest.mark.parametrize("rounds", [1, 10, 50])
def test_a_whole_run_costs_the_epsilon_that_was_asked_for(rounds: int, neighbors: Relation):
    found = promised(PrivateStyles(epsilon=2.0, neighbors=neighbors), PixelStyles(when="every"), rounds)

    assert found == (pytest.approx(2.0, rel=0.03), neighbors)


@pytest.mark.parametrize(
    ("method", "unit"), [(FedAlign(upload_ratio=0.5), "record"), (PixelStyles(when="every"), "client")]
)
def test_rows_and_clients_compose_over_rounds_too(method: Method, unit: Literal["record", "client"]):
    assert promised(PrivateStyles(epsilon=1.0, unit=unit), method, 10)[0] == pytest.approx(1.0, rel=0.03)


def test_two_slots_of_a_run_cost_the_epsilon_together():
    """A node's owner requires epsilon 4, and the server chooses a method that shares in two slots: 5.99 before."""
    method = Stacked(base=CCST(k=2), local=FedDG(share_of_images=1.0))
    given = {"dataset": "shapes", "image_size": 16, "defenses": ("private-styles:epsilon=4",), "device": "cpu"}
    stack = defense_stack_of(attack_settings("ccst-overall", given), method)
    client = Client(name="client:0", data=shapes(image_size=16, per_domain=21, seed=3).of_domain(0))
    clock = Clock(round=0, rounds=0, participants=("client:0", "client:1"))

    reply, _ = run_client_step(method, client, "share", StepRequest(clock=clock, model=None, inbox={}), {}, 0, stack)

    ledger = Ledger()
    kinds = {slot: artifact.kind for slot, artifact in reply.artifacts.items()}
    ledger.write("client:0", round=0, stage="share", kinds=kinds, uses=reply.uses)
    (run,) = (found for found in ledger.guarantees(delta=1e-5) if found.part == "run")
    assert len(kinds) == 2
    assert run.epsilon is not None
    assert run.epsilon <= 4 * (1 + 1e-6)


def test_what_is_shared_once_pays_once_however_many_rounds_follow():
    few, many = (cost(protected(PrivateStyles(), outgoing(OVERALL, rounds=rounds)))[0] for rounds in (1, 50))

    assert few.noise == many.noise


def test_an_exchange_without_training_is_one_round():
    exchange, one = (
        cost(protected(PrivateStyles(), outgoing(PixelStyles(when="every"), rounds=rounds)))[0] for rounds in (0, 1)
    )

    assert exchange.noise == one.noise


def test_noise_of_ten_rounds_is_the_root_of_ten_times_that_of_one():
    one, ten = (
        cost(protected(PrivateStyles(), outgoing(PixelStyles(when="every"), rounds=rounds)))[0] for rounds in (1, 10)
    )

    assert ten.noise == pytest.approx(math.sqrt(10) * one.noise)


def run_of(method: Method, defense: PrivateStyles, rounds: int) -> Wire:
    defense_stack = DefenseStack(defenses=[defense], statistic_source=plain_pixels)
    engine = LocalEngine(members=members(12, 8), method=method, seed=0, defense_stack=defense_stack, recode=True)
    wire = Wire(secret=lambda message, number: simulated_stream(0))
    RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds).run(start())
    return wire


def test_every_round_draws_fresh_noise_and_the_runs_ledger_composes_it():
    wire = run_of(PixelStyles(when="every"), PrivateStyles(epsilon=4.0), 2)

    first, second = (
        message.artifact
        for message in wire.transcript.messages()
        if message.stage == "share" and message.sender == "client:0"
    )
    run, styles = wire.ledger.guarantees(delta=1e-5)
    assert not torch.equal(first.tensors()["mean"], second.tensors()["mean"])
    assert run.uncovered == ("update/model", "update/numbers")
    assert (styles.part, styles.epsilon) == ("style only", pytest.approx(4.0, rel=0.03))


@pytest.mark.parametrize(
    "released_statistic", [PooledStyles(), StyleDistributions(), StyleDistributions(released=True)]
)
def test_an_artifact_made_of_t_is_read_as_t(released_statistic: ReleasedStatistic):
    message = (
        distribution_message() if isinstance(released_statistic, StyleDistributions) else outgoing(OVERALL, count=40)
    )
    record_statistic = replace(
        pixel_distributions(message.sender.client.data, None), released_statistic=released_statistic
    )
    t = record_statistic.records(message.sender.client.data).mean(0, keepdim=True)

    made = released_statistic.artifact(t, like=message.artifact, images=40)

    torch.testing.assert_close(released_statistic.release(made, images=40), t, rtol=0, atol=2e-6)  # float32


@pytest.mark.parametrize("released_statistic", [PooledStyles(), StyleDistributions(), MeanSpectra()])
def test_squares_come_back_from_any_center(released_statistic: ReleasedStatistic):
    t = torch.randn(5, 8, generator=stream(0, "world", "t"), dtype=torch.float64)
    center = torch.randn(8, generator=stream(0, "world", "c"), dtype=torch.float64)

    torch.testing.assert_close(released_statistic.from_about(released_statistic.about(t, center), center), t)


def test_a_lens_of_low_frequencies_makes_no_spectra():
    with pytest.raises(ValueError, match="whole spectra"):
        MeanSpectra().artifact(torch.zeros(1, 4), like=outgoing(OVERALL).artifact, images=3)


def test_the_lens_of_the_setting_reads_what_ccst_sends():
    message = outgoing(OVERALL)

    t = network_input(message.sender.client.data, None).records(message.sender.client.data).mean(0)

    torch.testing.assert_close(PooledStyles().release(message.artifact)[0], t, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("defense", "weight"),
    [
        (PrivateStyles(), 40.0),
        (PrivateStyles(neighbors="add-remove"), 1.0),
        (PrivateStyles(unit="client"), 1.0),
    ],
)
def test_a_share_whose_guarantee_hides_the_number_of_images_is_not_weighted_by_it(
    defense: PrivateStyles, weight: float
):
    message = outgoing(OVERALL, count=40)
    reply = Reply(artifacts={message.name: message.artifact}, weight=40.0)

    assert DefenseStack(defenses=[defense]).sent("share", reply, message.sender).weight == weight
