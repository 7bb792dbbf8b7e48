"""Guards: hostile messages are refused by name, and on request outvoted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from fdgsec.defenses.guards import Guards
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.federation.artifacts import Artifact, ImageStyles, ModelState, Scores, StyleBank, StyleStatistics
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.robust_statistics import median, trimmed_mean
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Message, Receipt, Upload, Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.training.training_loop import predictions
from fdgsec.privacy.ledger import Ledger
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.hostile import Forgery, Hostile, altered, first_is, forged, scaled
from tests.support.toy_federation import FULL_BATCH, PixelStyles, images, largest_gap, members, start

NAN, INF = math.nan, math.inf
OFF = Guards(schema=False, finite=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ran:
    """A finished run: the model, and the wire that it went over."""

    model: GlobalModel
    wire: Wire


def ran(*defenses: Defense, usual: Defense | None = None, rounds: int = 1, clients: int = 3) -> Ran:
    method = PixelStyles(plan=FULL_BATCH)
    defense_stack = DefenseStack(defenses=defenses, usual=usual)
    wire = Wire(
        secret=lambda upload, number: simulated_stream(0, number), guards=defense_stack.guards, filters=defense_stack.filters,
        keep=lambda message: True,
    )  # fmt: skip
    engine = LocalEngine(members=members(*(8,) * clients), method=method, seed=0, defense_stack=defense_stack)
    model = RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds).run(start())
    assert model is not None
    return Ran(model=model, wire=wire)


def received(
    guards: Guards, slot: str, artifacts: Sequence[Artifact], model: GlobalModel | None = None
) -> Sequence[Artifact]:
    """What a server goes on with, of these clients' artifacts."""
    uploads = [
        Upload(round=0, stage="update", sender=f"client:{number}", artifacts={slot: artifact})
        for number, artifact in enumerate(artifacts)
    ]
    receipt = Receipt(uploads=uploads, model=model, rounds=1, rng=simulated_stream(0), ledger=Ledger())
    return [upload.artifacts[slot] for upload in guards.on_received(receipt)]


def styles(*means: float) -> list[Artifact]:
    return [
        StyleStatistics(mean=torch.tensor([mean, 2 * mean], dtype=torch.float32), std=torch.ones(2)) for mean in means
    ]


def means(artifacts: Sequence[Artifact]) -> Tensor:
    return torch.stack([artifact.tensors()["mean"] for artifact in artifacts])


def without(name: str) -> Forgery:
    def forge(artifact: Artifact) -> Artifact:
        return ModelState(state={key: value for key, value in artifact.tensors().items() if key != name})

    return forge


def test_a_bank_without_the_receivers_rows_passes_the_usual_guards():
    whole = StyleBank(mean=torch.ones(3, 2), std=torch.ones(3, 2), owner=torch.tensor([0, 1, 1]))
    bank = whole.without_rows_of(0)

    Guards().inspect(Message(round=0, stage="combine", sender="server", receiver="client:0", artifact=bank))
    with pytest.raises(ArtifactError, match="48 bytes; at most 47"):
        Guards(largest_bytes=47).inspect(
            Message(round=0, stage="combine", sender="server", receiver="client:0", artifact=bank)
        )


def test_honest_messages_pass_the_usual_guards_unchanged():
    guarded, plain = ran(usual=Guards()), ran()

    assert guarded.wire.transcript.sha256 == plain.wire.transcript.sha256
    assert largest_gap(guarded.model.state.state, plain.model.state.state) == 0


@pytest.mark.parametrize(
    ("slot", "forge", "said"),
    [
        ("style", altered("mean", first_is(NAN)), "client:1 sent a bad StyleStatistics .*mean has 1 of 3 values"),
        ("style", altered("std", first_is(INF)), "client:1 sent a bad StyleStatistics .*std has 1 of 3 values"),
        ("style", altered("std", first_is(-1.0)), "client:1 sent a bad StyleStatistics .*std must be >= 0"),
        ("style", altered("std", lambda std: std[:2]), r"client:1 sent a bad StyleStatistics .*mean \(C,\), std"),
        ("style", lambda a: StyleStatistics(mean=torch.ones(4), std=torch.ones(4)), r"client:1 .*mean is \(4,\)"),
        ("style", lambda a: Scores(values=torch.ones(3)), "client:1 sent a bad Scores .*StyleStatistics is expected"),
        ("style", altered("mean", lambda mean: mean.double()), "client:1 .*mean is .*float64; .*float32 is expected"),
        ("model", altered("head.bias", first_is(NAN)), "client:1 sent a bad ModelState .*head.bias has 1 of 2"),
        ("model", altered("head.bias", lambda bias: bias[:1]), r"client:1 .*head.bias is \(1,\) .*the model has \(2,\)"),
        ("model", without("head.bias"), "client:1 .*entry head.bias is missing"),
        ("model", lambda a: ModelState(state={**a.tensors(), "x": torch.ones(1)}), "client:1 .*x is .*no such entry"),
        ("numbers", altered("values", first_is(-5.0)), "client:1 sent a bad Scores .*weight is -5"),
    ],
)  # fmt: skip
def test_hostile_messages_are_refused_by_default_with_sender_kind_and_entry(slot: str, forge: Forgery, said: str):
    with pytest.raises(ArtifactError, match=said):
        ran(Hostile(slot=slot, forge=forge), usual=Guards())


def test_a_message_over_the_size_limit_is_refused():
    with pytest.raises(ArtifactError, match=r"server sent a bad ModelState .* bytes; at most 1000 are accepted"):
        ran(Guards(largest_bytes=1000))


def test_what_is_refused_before_it_is_used_is_not_written_down():
    defense_stack = DefenseStack(usual=Guards())
    wire = Wire(
        secret=lambda upload, number: simulated_stream(0), guards=defense_stack.guards, filters=defense_stack.filters
    )
    bad = forged(StyleStatistics, mean=torch.tensor([NAN]), std=torch.ones(1))

    with pytest.raises(ArtifactError):
        wire.collect([Upload(round=0, stage="share", sender="client:0", artifacts={"style": bad})])

    assert wire.transcript.rows == []


@pytest.mark.parametrize(
    ("guards", "forge", "passes"),
    [
        (Guards(finite=False), altered("mean", first_is(NAN)), True),
        (Guards(finite=False), altered("std", first_is(-1.0)), False),
        (Guards(schema=False), altered("std", first_is(-1.0)), True),
        (Guards(schema=False), altered("mean", first_is(NAN)), False),
        (OFF, altered("mean", first_is(NAN)), True),
    ],
)
def test_each_check_is_off_where_it_is_switched_off(guards: Guards, forge: Forgery, passes: bool):
    wire = Wire(secret=lambda upload, number: simulated_stream(0), guards=[guards.inspect], filters=[guards])
    uploads = [Upload(round=0, stage="share", sender="client:0", artifacts={"style": forge(styles(1.0)[0])})]

    if passes:
        assert wire.collect(uploads)[0].artifacts["style"] is uploads[0].artifacts["style"]
    else:
        with pytest.raises(ArtifactError, match="client:0"):
            wire.collect(uploads)


def test_every_run_of_a_verb_is_guarded_unless_guards_are_named():
    usual = defense_stack_of(RunConfig(method="fedavg"), FedAvg())
    named = defense_stack_of(RunConfig(method="fedavg", defenses=(Guards(schema=False, finite=False),)), FedAvg())

    assert [guard.__self__ for guard in usual.guards] == [Guards()]  # type: ignore[attr-defined]
    assert usual.filters == (Guards(),)
    assert usual.defenses == ()
    assert named.filters == (OFF,)


def right(model: GlobalModel) -> float:
    test = images(40, "test")
    return float((predictions(model.module(), test.pixels()) == test.labels).double().mean())


def test_one_huge_model_among_three_ruins_the_mean_and_not_the_robust_centers():
    attack = Hostile(slot="model", forge=scaled(-1e6))

    honest = right(ran(rounds=2).model)
    mean = right(ran(attack, OFF, rounds=2).model)
    centers = [
        right(ran(attack, Guards(center=center, acts_on="models"), rounds=2).model)
        for center in ("median", "trimmed-mean")
    ]

    assert honest == 1.0
    assert mean == 0.5  # everything is one class
    assert centers == [1.0, 1.0]


@pytest.mark.parametrize("forge", [altered("mean", first_is(NAN)), altered("std", first_is(-1.0))])
def test_without_guards_a_bad_style_ends_the_run_where_it_is_used_and_nobody_is_named(forge: Forgery):
    with pytest.raises(ArtifactError, match=r"^InterpolationStyle"):
        ran(Hostile(slot="style", forge=forge), OFF, rounds=0)


def test_a_huge_style_moves_the_mean_of_the_styles_and_not_their_median():
    attack = Hostile(slot="style", forge=scaled(1e6))

    def center(*defenses: Defense) -> float:
        found = [m.artifact for m in ran(*defenses, rounds=0).wire.transcript.messages() if m.stage == "combine"]
        return float(found[0].tensors()["mean"].max())

    assert center(attack, OFF) > 1e5
    assert center(attack, Guards(center="median")) < 1
    assert center(attack, Guards(outlier=5.0, on_outlier="clip")) < 10


def test_the_transcript_keeps_what_the_server_saw_and_the_method_gets_the_center():
    sent = [m.artifact for m in ran(Guards(center="median"), rounds=0).wire.transcript.messages() if m.stage == "share"]

    assert len({artifact.sha256 for artifact in sent}) == 3


@pytest.mark.parametrize("center", ["median", "trimmed-mean", "krum"])
def test_a_center_is_in_everybodys_place(center: Literal["median", "trimmed-mean", "krum"]):
    values = [1.0, 1.1, 1.22, 1.4, 900.0]
    rows = means(styles(*values)).double()

    made = received(Guards(center=center), "style", styles(*values))

    expected = {"median": median(rows), "trimmed-mean": trimmed_mean(rows, trim=1), "krum": rows[1]}[center]
    for row in means(made):
        torch.testing.assert_close(row.double(), expected, atol=1e-6, rtol=0)


def test_integers_stay_each_clients_own_under_a_center():
    artifacts = [ModelState(state={"w": torch.full((2,), float(i)), "steps": torch.tensor(i)}) for i in range(3)]

    made = received(Guards(center="median"), "model", artifacts)

    assert [int(artifact.tensors()["steps"]) for artifact in made] == [0, 1, 2]
    assert [artifact.tensors()["w"].tolist() for artifact in made] == [[1.0, 1.0]] * 3


def test_a_models_norm_is_that_of_its_change():
    begun = start()
    near = ModelState(state={**begun.state.state, "head.bias": begun.state.state["head.bias"] + 3.0})
    length = 3 * math.sqrt(2)

    passed = received(Guards(norm=length * 1.01), "model", [near], model=begun)
    clipped = received(Guards(norm=length / 2, on_outlier="clip"), "model", [near], model=begun)

    assert passed[0] is near
    moved = clipped[0].tensors()["head.bias"] - begun.state.state["head.bias"]
    torch.testing.assert_close(moved, torch.full((2,), 1.5), atol=1e-6, rtol=0)
    with pytest.raises(ArtifactError, match=r"client:0 .*L2 norm is 4.243; at most 4 is accepted"):
        received(Guards(norm=4.0), "model", [near], model=begun)


def test_an_outlier_is_refused_by_name_or_replaced_by_the_median():
    values = [1.0, 1.1, 1.2, 1.3, 900.0, 1.4, 1.5]

    made = means(received(Guards(outlier=20.0, on_outlier="replace"), "style", styles(*values)))

    torch.testing.assert_close(made[4], median(means(styles(*values))), atol=1e-6, rtol=0)
    keep = [0, 1, 2, 3, 5, 6]
    assert torch.equal(made[keep], means(styles(*values))[keep])
    with pytest.raises(ArtifactError, match=r"client:4 sent a bad StyleStatistics .*robust z"):
        received(Guards(outlier=20.0), "style", styles(*values))


def test_rows_are_compared_over_all_clients_and_each_one_by_itself():
    rng = stream(0, "world", "rows")
    artifacts = [ImageStyles(mean=torch.randn(count, 4, generator=rng), std=torch.ones(count, 4)) for count in (5, 9)]
    mean = artifacts[1].mean.clone()
    mean[2] = 1e6
    artifacts[1] = ImageStyles(mean=mean, std=artifacts[1].std)

    made = received(Guards(outlier=30.0, on_outlier="replace"), "styles", artifacts)

    assert torch.equal(made[0].tensors()["mean"], artifacts[0].mean)
    changed = (made[1].tensors()["mean"] != mean).any(1).nonzero().flatten().tolist()
    assert changed == [2]
    with pytest.raises(ArtifactError, match="client:1"):
        received(Guards(outlier=30.0), "styles", artifacts)


@pytest.mark.parametrize(
    ("guards", "slot", "artifacts", "said"),
    [
        (Guards(center="median"), "styles", [ImageStyles(mean=torch.ones(2, 3), std=torch.ones(2, 3))], "one vector per client"),
        (Guards(center="krum"), "style", styles(1, 2, 3), "are 4 for f = 1; got 3"),
        (Guards(center="trimmed-mean", hostile=2), "style", styles(1, 2, 3), "got 2"),
    ],
)  # fmt: skip
def test_a_center_that_cannot_be_taken_is_an_error(guards: Guards, slot: str, artifacts: Sequence[Artifact], said: str):
    with pytest.raises(UsageError, match=said):
        received(guards, slot, artifacts)


def test_of_a_mean_nobody_can_be_outvoted():
    one = styles(1.0)[0]

    with pytest.raises(UsageError, match=r"dp-fedavg:trust=server"):
        received(Guards(center="median"), "style", [one, one, one])


def test_numbers_and_scores_are_never_outvoted():
    artifacts = [Scores(values=torch.tensor([float(size), 0.1])) for size in (10, 20, 3000)]

    made = received(Guards(center="median", outlier=2.0, norm=1.0), "numbers", artifacts)

    assert [artifact is before for artifact, before in zip(made, artifacts, strict=True)] == [True] * 3


@pytest.mark.parametrize("options", [{"norm": 0.0}, {"outlier": -1.0}, {"largest_bytes": 0}, {"hostile": -1}])
def test_options_out_of_range_are_refused(options: dict[str, float]):
    with pytest.raises(UsageError, match=next(iter(options))):
        Guards(**options)  # type: ignore[arg-type]
