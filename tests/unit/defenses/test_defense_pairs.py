"""Every ordered pair of defenses on every kind of message: refused, or the stated cost is the cost of what leaves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from fdgsec.defenses.k_anonymous import KAnonymous
from fdgsec.experiments.run_config import RunConfig, defense_of
from fdgsec.experiments.setup.defenses import statistic_source_of
from fdgsec.federation.artifacts import Artifact, ImageStyles
from fdgsec.federation.defense import Defense, Outgoing, Protected, Sender, mechanism_on
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock, Method, Reply
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddg import FedDG
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import DEFENSES, name_of
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream
from fdgsec.testing.small_federation import four_clients, start_of

TEXTS = (
    "private-styles:epsilon=4", "private-styles:epsilon=inf,clip=1e9", "private-styles:unit=client", "style-noise",
    "k-anonymous:k=2", "quantize", "shuffle", "secure-aggregation", "guards", "dp-sgd:noise_multiplier=1", "dp-fedavg",
    "private-scores",
)  # fmt: skip
PAIRS = [(one, other) for one, other in product(TEXTS, TEXTS)]
PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)
SENDING: Mapping[str, Method] = {
    "pooled styles": CCST(plan=PLAN), "rows": CCST(style="single", styles_per_client=6, plan=PLAN),
    "color rows": FedAlign(plan=PLAN), "spectra": FedDG(plan=PLAN), "a distribution": StableFDG(plan=PLAN),
}  # fmt: skip


def test_every_bundled_defense_is_paired():
    assert {text.partition(":")[0] for text in TEXTS} == set(DEFENSES)


def stack(method: Method, *defenses: Defense) -> DefenseStack:
    source = statistic_source_of(RunConfig(method=name_of("methods", method)), method)
    return DefenseStack(defenses=defenses, statistic_source=source)


def sent(method: Method, *defenses: Defense) -> tuple[dict[str, Artifact], Reply]:
    """What a client shares, raw and as it leaves under these defenses. Raises UsageError where they are refused."""
    defended = stack(method, *defenses)
    defended.check(method)
    client, clock = four_clients()[0], Clock(round=0, rounds=1, participants=("client:0", "client:1"))
    model = start_of(method) if method.shares == "every" else None
    raw, state = method.share(client, model=model, state={}, clock=clock, rng=stream(0, "world", "share"))
    sender = Sender(
        client=client, method=method, clock=clock, model=model, state=state, statistic_source=defended.statistic_source
    )
    return dict(raw), defended.sent("share", Reply(artifacts=raw), sender)


def changed(one: Artifact, other: Artifact) -> bool:
    """Whether hardly a number of an artifact is what it was."""
    pairs = [(value.flatten(), other.tensors()[name].flatten()) for name, value in one.tensors().items()]
    floats = [(a, b) for a, b in pairs if a.is_floating_point()]
    assert all(a.shape == b.shape for a, b in floats)
    same = sum(int((a == b).sum()) for a, b in floats)
    return same < 0.05 * sum(len(a) for a, _ in floats)


def noisy(uses: Mapping[str, tuple[Use, ...] | None]) -> dict[str, list[tuple[float, float]]]:
    return {slot: [(use.noise, max(use.sensitivity.values())) for use in paid] for slot, paid in uses.items() if paid}


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.medium
def test_what_leaves_under_a_pair_is_refused_or_costs_what_its_mechanism_costs(kind: str):
    method, accepted = SENDING[kind], 0
    alone: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for text in TEXTS:
        try:
            alone[text] = noisy(sent(method, defense_of(text))[1].uses)
        except FdgsecError:
            continue
    for one, other in PAIRS:
        mechanisms = [text for text in (one, other) if "share" in mechanism_on(defense_of(text))]
        if one not in alone or other not in alone:
            continue
        try:
            raw, reply = sent(method, defense_of(one), defense_of(other))
        except FdgsecError:
            continue
        accepted += 1
        assert len(mechanisms) < 2, f"{one} and {other} both replace what is shared"
        assert noisy(reply.uses) == (alone[mechanisms[0]] if mechanisms else {}), f"{one}, {other}"
        if mechanisms and alone[mechanisms[0]]:
            assert all(changed(artifact, reply.artifacts[slot]) for slot, artifact in raw.items()), f"{one}, {other}"
    assert accepted >= 20


@pytest.mark.parametrize(
    "later", [text for text in TEXTS if text.startswith("private-styles") and "client" not in text]
)
@pytest.mark.parametrize("first", ["style-noise", "quantize"])
def test_what_is_computed_from_records_is_refused_behind_what_it_would_discard(first: str, later: str):
    with pytest.raises(UsageError, match="computes its release anew from the client's records"):
        sent(SENDING["pooled styles"], defense_of(first), defense_of(later))


@dataclass(frozen=True, kw_only=True)
class Exemplar:
    """Honest post-processing that spreads one record over all rows: every row becomes the one with the largest mean."""

    assumptions: Sequence[str] = ("none",)

    def check(self, method: Method) -> None:
        """Works with all."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        rows = outgoing.artifact
        if not isinstance(rows, ImageStyles):
            return None
        best = int(rows.mean.sum(1).argmax())
        return Protected(artifact=ImageStyles(mean=rows.mean[best].expand_as(rows.mean).clone(), std=rows.std))


def test_a_mechanism_counts_no_records_that_another_defense_spread():
    rows = SENDING["rows"]

    with pytest.raises(
        UsageError, match="bounds what one record changes in 'styles', and another defense changed that"
    ):
        sent(rows, Exemplar(), defense_of("private-styles:epsilon=1"))
    assert sent(rows, defense_of("private-styles:epsilon=1"), Exemplar())[1].uses["styles"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_command_that_released_raw_styles_under_an_epsilon_is_refused(order: int):
    both: Sequence[str] = ("private-styles:epsilon=0.5", "private-styles:epsilon=inf,clip=1e9")[::order]

    with pytest.raises(UsageError, match="both mechanisms on what clients send"):
        sent(SENDING["pooled styles"], *map(defense_of, both))


def test_post_processing_sees_black_images_of_a_sender_and_no_state():
    method = FedAvg(plan=PLAN)
    client, clock = four_clients()[0], Clock(round=0, rounds=1, participants=("client:0",))
    state = {"memory": torch.ones(2), "shared_rows": torch.arange(3)}
    sender = Sender(client=client, method=method, clock=clock, model=None, state=state, statistic_source=None)

    seen = sender.without_data

    assert len(seen.client.data) == len(client.data)
    assert not seen.client.data.pixels().any()
    assert not seen.client.data.labels.any()
    assert set(seen.client.data.ids).isdisjoint(client.data.ids)
    assert seen.client.validation is not None
    assert not seen.client.validation.pixels().any()
    assert set(seen.state) == {"shared_rows"}
    assert math.isfinite(len(seen.client.data))
    with pytest.raises(UsageError, match="computes its release anew"):
        _ = seen.records


@pytest.mark.parametrize("hides", ["neighbors=add-remove", "unit=client"])
@pytest.mark.parametrize("k", [2, 10_000])
def test_no_count_of_images_decides_what_leaves_where_a_guarantee_hides_it(hides: str, k: int):
    first, later = defense_of(f"private-styles:epsilon=1,{hides}"), KAnonymous(k=k)

    with pytest.raises(UsageError, match="the defense before it hides: how many a client has"):
        sent(SENDING["pooled styles"], first, later)


def test_rows_are_grouped_behind_a_guarantee_that_hides_the_number_of_images_and_not_that_of_rows():
    client_level = defense_of("private-styles:epsilon=1,unit=client")

    assert sent(SENDING["rows"], client_level, KAnonymous(k=2))[1].uses["styles"]


@pytest.mark.parametrize(("options", "seen"), [("", 1), (",neighbors=add-remove", 0), (",unit=client", 0)])
def test_post_processing_of_others_sees_no_count_that_a_guarantee_hides(options: str, seen: int):
    counts: list[tuple[int, int]] = []

    class Counting(Exemplar):
        """Looks at how many images its sender has."""

        def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
            client = outgoing.sender.client
            counts.append((len(client.data), 0 if client.validation is None else len(client.validation)))
            return Protected(artifact=outgoing.artifact)

    sent(SENDING["pooled styles"], defense_of(f"private-styles:epsilon=1{options}"), Counting())

    own = four_clients()[0]
    assert own.validation is not None
    assert counts == [(seen * len(own.data), seen * len(own.validation))]


def test_rows_behind_a_guarantee_that_hides_their_number_tell_no_places():
    """The places of rows reach up to how many images a client has, and so do the steps of a private trainer."""
    seen: list[Sender] = []

    class Looking(Exemplar):
        """Looks at its sender."""

        def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
            seen.append(outgoing.sender)
            return Protected(artifact=outgoing.artifact)

    sent(SENDING["rows"], defense_of("private-styles:epsilon=1,unit=client"), Looking())

    (sender,) = seen
    assert {name: rows.tolist() for name, rows in sender.state.items()} == {"shared_rows": list(range(6))}
    assert (
        replace(sender, trained=(Use(mechanism="gaussian", noise=1.0, sensitivity={}),)).without_count.trained is None
    )


def test_post_processing_has_no_trainer_that_knows_the_noise():
    method, client = FedAvg(plan=PLAN), four_clients()[0]
    clock = Clock(round=0, rounds=1, participants=("client:0",))
    trainer = PrivateTrainer(noise_multiplier=1.0, max_grad_norm=1.0, secret=simulated_stream(0, "noise"))
    sender = Sender(
        client=client.training_by(trainer), method=method, clock=clock, model=None, state={}, statistic_source=None
    )

    assert sender.without_data.client.trainer is client.trainer


def test_an_outgoing_artifact_reaches_post_processing_without_its_sender():
    """A defense that claims to be post-processing gets nothing to compute a raw release from."""
    seen: list[Sender] = []

    class Curious:
        """Looks at its sender."""

        assumptions: Sequence[str] = ("none",)

        def check(self, method: Method) -> None:
            """Works with all."""

        def on_message(self, outgoing: Outgoing, rng: object) -> None:
            seen.append(outgoing.sender)

    sent(SENDING["pooled styles"], Curious())

    assert seen
    assert not any(bool(sender.client.data.pixels().any()) for sender in seen)
