"""The edges of every defense: which options it takes, what it lets through just at a bound, and what it refuses beyond."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.defenses.guards import Guards
from fdgsec.defenses.k_anonymous import KAnonymous, group_means, nearest_groups, random_groups
from fdgsec.defenses.private_scores import PrivateScores, sensitivity_of_scores
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.defenses.quantize import Quantize
from fdgsec.defenses.secure_aggregation import SecureAggregation
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    GeneratorState,
    ImageStyles,
    ModelState,
    Scores,
    StyleStatistics,
)
from fdgsec.federation.defense import Defense, Protected, Sender
from fdgsec.federation.method import NUMBERS, Clock
from fdgsec.federation.reply_checks import HEAVIEST
from fdgsec.federation.wire import CLIENTS, Message, Receipt, Upload
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.privacy.accounting import epsilon
from fdgsec.privacy.ledger import Ledger
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import ArtifactError, UnseenError, UsageError
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.hostile import forged
from tests.support.outgoings import outgoing
from tests.support.round_loop import four_clients

DEFAULTS: Mapping[type[Defense], Mapping[str, object]] = {
    DPFedAvg: {
        "epsilon": 8.0, "delta": 1e-5, "noise_multiplier": None, "clip": 1.0, "trust": "local", "neighbors": "zero-out",
        "weight_cap": None, "buffers": "refuse",
    },
    Guards: {
        "schema": True, "finite": True, "largest_bytes": 2**30, "norm": None, "outlier": None, "on_outlier": "refuse",
        "center": "none", "hostile": 1, "acts_on": "all",
    },
    KAnonymous: {"k": 5, "groups": "random"},
    PrivateScores: {"epsilon": 8.0, "delta": 1e-5},
    Quantize: {"bits": 8, "low": -4.0, "high": 156.0, "rounding": "nearest"},
    SecureAggregation: {"least": 2},
    StyleNoise: {"p": 0.1, "scale": 0.05, "mode": "fedpcl", "distribution": "gaussian", "least": 1e-6},
}  # fmt: skip


def style(value: float, std: float = 1.0) -> StyleStatistics:
    return StyleStatistics(mean=torch.full((3,), float(value)), std=torch.full((3,), float(std)))


def released(defense: Defense, artifact: Artifact, **given: object) -> Artifact:
    found = defense.on_message(outgoing(artifact, **given), simulated_stream(0, "edges"))  # type: ignore[arg-type]
    assert found is not None
    return found.artifact


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_what_a_user_gets_who_names_no_option(kind: type[Defense]):
    assert {spec.name: getattr(kind(), spec.name) for spec in fields(kind)} == DEFAULTS[kind]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Quantize, {"bits": 1}), (Quantize, {"bits": 23}), (Quantize, {"low": 0.5, "high": 0.6}),
        (StyleNoise, {"p": 0.0}), (StyleNoise, {"p": 0.999}), (StyleNoise, {"scale": 0.0}), (StyleNoise, {"least": 0.0}),
        (KAnonymous, {"k": 2}), (SecureAggregation, {"least": 2}),
        (Guards, {"hostile": 0}), (Guards, {"norm": 1e-9, "outlier": 1e-9, "largest_bytes": 1}),
        (PrivateScores, {"epsilon": 1e-9}), (PrivateScores, {"epsilon": math.inf, "delta": 0.999}),
        (DPSGD, {"epsilon": 1e-9}), (DPSGD, {"epsilon": math.inf}), (DPSGD, {"noise_multiplier": 0.0}),
        (DPSGD, {"epsilon": 1.0, "max_physical_batch": 1, "max_grad_norm": 1e-9, "delta": 0.999}),
        (DPFedAvg, {"noise_multiplier": 0.0}), (DPFedAvg, {"weight_cap": 1}), (DPFedAvg, {"clip": 1e-9}),
    ],
)  # fmt: skip
def test_options_at_the_edge_of_their_range_are_taken(kind: type[Defense], options: dict[str, object]):
    kind(**options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Quantize, {"bits": 0}), (Quantize, {"bits": 24}), (Quantize, {"low": 2.0, "high": 2.0}),
        (Quantize, {"low": -2.0, "high": 0.0}),
        (StyleNoise, {"p": 1.0}), (StyleNoise, {"p": -1e-9}), (StyleNoise, {"scale": -1e-9}), (StyleNoise, {"least": -1e-9}),
        (KAnonymous, {"k": 1}), (SecureAggregation, {"least": 1}),
        (Guards, {"hostile": -1}), (Guards, {"norm": 0.0}), (Guards, {"outlier": 0.0}), (Guards, {"largest_bytes": 0}),
        (PrivateScores, {"epsilon": 0.0}), (PrivateScores, {"delta": 0.0}), (PrivateScores, {"delta": 1.0}),
        (DPSGD, {}), (DPSGD, {"epsilon": 1.0, "noise_multiplier": 1.0}), (DPSGD, {"epsilon": 0.0}),
        (DPSGD, {"epsilon": 1.0, "delta": 0.0}), (DPSGD, {"epsilon": 1.0, "delta": 1.0}),
        (DPSGD, {"noise_multiplier": -1e-9}), (DPSGD, {"noise_multiplier": 1e-9}), (DPSGD, {"noise_multiplier": math.inf}),
        (DPSGD, {"epsilon": 1.0, "max_grad_norm": 0.0}), (DPSGD, {"epsilon": 1.0, "max_grad_norm": math.inf}),
        (DPSGD, {"epsilon": 1.0, "max_physical_batch": 0}),
        (DPFedAvg, {"noise_multiplier": -1e-9}), (DPFedAvg, {"noise_multiplier": math.inf}), (DPFedAvg, {"weight_cap": 0}),
        (DPFedAvg, {"clip": 0.0}), (DPFedAvg, {"clip": math.inf}), (DPFedAvg, {"epsilon": 0.0}), (DPFedAvg, {"delta": 1.0}),
        (PrivateStyles, {"epsilon": 0.0}), (PrivateStyles, {"delta": 0.0}),
    ],
)  # fmt: skip
def test_options_just_beyond_are_refused(kind: type[Defense], options: dict[str, object]):
    with pytest.raises(UsageError):
        kind(**options)


@pytest.mark.parametrize(
    ("name", "kind"), [("generator", ModelState), ("generator", GeneratorState), ("model", GeneratorState)]
)
def test_dp_fedavg_covers_the_model_and_no_other_network(name: str, kind: type[ModelState]):
    message = replace(outgoing(kind(state={"w": torch.ones(1)})), stage="update", name=name)

    assert DPFedAvg().on_message(message, simulated_stream(0, "edges")) is None


def test_buffers_that_go_back_are_an_assumption_where_they_do():
    told = {how: any("buffers" in line for line in DPFedAvg(buffers=how).assumptions) for how in ("refuse", "received")}

    assert told == {"refuse": False, "received": True}


def test_distributed_noise_alone_needs_every_client():
    assert {trust: DPFedAvg(trust=trust).needs_everyone for trust in ("local", "distributed", "server")} == {
        "local": False, "distributed": True, "server": False,
    }  # fmt: skip


@pytest.mark.parametrize("options", [{"epsilon": math.inf}, {"noise_multiplier": 0.0}])
def test_dp_sgd_without_noise_plans_no_guarantee(options: dict[str, float]):
    assert DPSGD(**options).promise is None  # type: ignore[arg-type]
    for noisy in (DPSGD(epsilon=8.0), DPSGD(noise_multiplier=1e-3)):
        assert noisy.promise is not None
        assert (noisy.promise.unit, noisy.promise.relations) == ("record", {"zero-out"})


@pytest.mark.parametrize(("bits", "rounding"), [(1, "nearest"), (8, "nearest"), (23, "nearest")])
def test_the_ends_of_a_quantized_range_are_levels(bits: int, rounding: str):
    defense = Quantize(bits=bits, low=-2.0, high=6.0, rounding=rounding)  # type: ignore[arg-type]
    given = StyleStatistics(mean=torch.tensor([-9.0, 9.0]), std=torch.tensor([0.0, 9.0]))

    found = released(defense, given).tensors()

    assert (found["mean"].tolist(), found["std"].tolist()) == ([-2.0, 6.0], [0.0, 6.0])


@pytest.mark.parametrize(("width", "highest"), [(1, 10.0), (2, 10.0), (3, 20.0), (4, 30.0)])
def test_a_spectrums_range_ends_at_the_number_of_pixels(width: int, highest: float):
    values = torch.tensor([0.0, 1e6])[:, None, None, None].expand(2, 1, 5, width)  # of 5 x 2 (width - 1) pixels

    found = released(Quantize(), Amplitudes(values=values, owner=torch.zeros(2).long())).tensors()["values"]

    assert found[:, 0, 0, 0].tolist() == [0.0, highest]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 11])
@pytest.mark.parametrize("k", [2, 3])
def test_every_group_has_k_rows_or_more_and_as_many_groups_as_that_allows(count: int, k: int):
    if count < k:
        return
    rows = torch.rand(count, 3, generator=torch.Generator().manual_seed(count)).double()

    for labels in (random_groups(count, k, simulated_stream(count, "groups")), nearest_groups(rows, k)):
        sizes = torch.bincount(labels)
        assert int(sizes.min()) >= k
        assert len(sizes) == count // k
        assert int(sizes.sum()) == count
    assert int(torch.bincount(random_groups(count, k, simulated_stream(0, "x"))).max()) <= math.ceil(
        count / (count // k)
    )


def test_nearest_rows_are_near_in_units_of_their_spread_and_constant_numbers_do_not_matter():
    # the second number varies a thousand times as much; the third not at all
    rows = torch.tensor([[0.0, 0, 7], [0.1, 900, 7], [5.0, 1000, 7], [5.1, 100, 7]]).double()

    labels = nearest_groups(rows, 2)

    assert labels[0] == labels[1]
    assert labels[2] == labels[3]


def test_means_of_groups_keep_the_place_the_shape_and_the_dtype_of_each_row():
    values = torch.arange(12, dtype=torch.float32).reshape(3, 2, 2)

    found = group_means(values, torch.tensor([1, 0, 1]))

    assert found.dtype == torch.float32
    assert torch.equal(found, torch.stack([values[[0, 2]].mean(0), values[1], values[[0, 2]].mean(0)]))


@pytest.mark.parametrize("artifact", [style(1.0), ImageStyles(mean=torch.rand(3, 2), std=torch.rand(3, 2))])
def test_exactly_k_are_released_and_one_less_is_not(artifact: Artifact):
    released(KAnonymous(k=3), artifact, holds=3)
    with pytest.raises(UnseenError, match="fewer than k = 4"):
        released(KAnonymous(k=4), artifact, holds=3)


def test_a_mean_spectrum_of_fewer_than_k_images_stays_at_home_and_of_k_leaves_as_it_is():
    spectrum = Amplitudes(values=torch.ones(1, 1, 4, 3), owner=torch.zeros(1).long())

    assert released(KAnonymous(k=3), spectrum, holds=3) is spectrum
    with pytest.raises(UnseenError, match="release 3 images, fewer than k = 4"):
        released(KAnonymous(k=4), spectrum, holds=3)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_guards_count_what_is_not_finite_in_tensors_of_any_length(count: int):
    def message(value: float) -> Message:
        artifact = forged(Scores, values=torch.full((count,), value))
        return Message(round=0, stage="share", sender="client:0", receiver="server", artifact=artifact)

    Guards().inspect(message(1.0))
    if count:
        with pytest.raises(ArtifactError, match=f"values has {count} of {count} values that are not finite"):
            Guards().inspect(message(math.nan))


def test_nobody_is_outvoted_where_two_clients_hold_one_and_the_same_mean():
    mean = style(1.0)

    with pytest.raises(UsageError, match="cannot outvote anybody"):
        received(Guards(center="median"), mean, mean)
    assert len(received(Guards(center="median"), style(1.0), style(1.0))) == 2
    assert received(Guards(norm=9.0), mean, mean) == [mean, mean]


def received(
    defense: Guards, *artifacts: Artifact, slot: str = "style", senders: tuple[str, ...] = ()
) -> list[Artifact]:
    names = senders or tuple(f"client:{number}" for number in range(len(artifacts)))
    uploads = [
        Upload(round=0, stage="share", sender=name, artifacts={slot: artifact})
        for name, artifact in zip(names, artifacts, strict=True)
    ]
    receipt = Receipt(uploads=uploads, model=None, rounds=1, rng=simulated_stream(0, "guards"), ledger=Ledger())
    return [upload.artifacts[slot] for upload in defense.on_received(receipt)]


def test_a_message_of_the_largest_size_passes_and_one_byte_more_does_not():
    message = Message(round=0, stage="share", sender="client:0", receiver="server", artifact=style(1.0))

    Guards(largest_bytes=24).inspect(message)
    with pytest.raises(ArtifactError, match="24 bytes; at most 23"):
        Guards(largest_bytes=23).inspect(message)


def test_a_norm_at_the_bound_passes_and_beyond_it_is_refused_clipped_or_replaced():
    three, four, far = (ImageStyles(mean=torch.tensor([[v, 0.0]]), std=torch.zeros(1, 2)) for v in (3.0, 4.0, 8.0))

    assert received(Guards(norm=8.0), three, four, far) == [three, four, far]
    with pytest.raises(ArtifactError, match=r"client:2 .* L2 norm is 8; at most 7 is accepted"):
        received(Guards(norm=7.0), three, four, far)
    clipped, replaced = (
        received(Guards(norm=7.0, on_outlier=how), three, four, far)[2].tensors()["mean"].tolist()  # type: ignore[arg-type]
        for how in ("clip", "replace")
    )
    assert (clipped, replaced) == ([[7.0, 0.0]], [[4.0, 0.0]])


@pytest.mark.parametrize("acts_on", ["models", "styles", "all"])
def test_bounds_act_on_the_kind_that_they_are_for(acts_on: str):
    guards = Guards(norm=1.0, acts_on=acts_on)  # type: ignore[arg-type]
    for artifact, kinds in ((style(9.0), "styles"), (ModelState(state={"w": torch.full((2,), 9.0)}), "models")):
        if acts_on in (kinds, "all"):
            with pytest.raises(ArtifactError, match="at most 1 is accepted"):
                received(guards, artifact, artifact)
        else:
            received(guards, artifact, artifact)


@pytest.mark.parametrize(
    ("weight", "sender", "passes"),
    [(1e-9, "client:0", True), (HEAVIEST, "client:0", True), (0.0, "client:0", False), (-1.0, "client:0", False),
     (2 * HEAVIEST, "client:0", False), (2 * HEAVIEST, CLIENTS, True), (0.0, CLIENTS, False)],
)  # fmt: skip
def test_a_weight_is_above_zero_and_plausible_for_one_client(weight: float, sender: str, passes: bool):
    numbers = Scores(values=torch.tensor([weight, 0.5], dtype=torch.float64))

    if passes:
        assert received(Guards(), numbers, slot=NUMBERS, senders=(sender,)) == [numbers]
    else:
        with pytest.raises(ArtifactError, match="its weight is"):
            received(Guards(), numbers, slot=NUMBERS, senders=(sender,))


@pytest.mark.parametrize(
    ("slots", "said"),
    [(["a", "a", "b"], r"client:2 did not send 'a'"), (["a", "b", "a"], "client:1 did not send 'a'"),
     (["a", "a", "ab"], "client:2 sent 'b'"), (["a", "b"], "clients sent different things"), (["a", "a"], None)],
)  # fmt: skip
def test_who_sends_other_parts_than_most_is_named_and_in_a_tie_everybody(slots: list[str], said: str | None):
    uploads = [
        Upload(round=0, stage="share", sender=f"client:{i}", artifacts={name: style(1.0 + i) for name in names})
        for i, names in enumerate(slots)
    ]
    receipt = Receipt(uploads=uploads, model=None, rounds=1, rng=simulated_stream(0, "guards"), ledger=Ledger())

    if said is None:
        assert len(Guards().on_received(receipt)) == 2
    else:
        with pytest.raises(ArtifactError, match=said):
            Guards().on_received(receipt)


def summed(*parts: tuple[float, Artifact], least: int = 2, slot: str = "style") -> Upload:
    uploads = [
        Upload(round=3, stage="update", sender=f"client:{i}", artifacts={slot: artifact}, weight=weight, metrics=("m",))
        for i, (weight, artifact) in enumerate(parts)
    ]
    (found,) = SecureAggregation(least=least).policy().on_collected(uploads, simulated_stream(0, "sum"))
    return found


def test_a_sum_is_of_all_who_took_part_and_of_at_least_so_many():
    found = summed((1.0, style(1.0)), (3.0, style(5.0)), least=2)

    assert (found.sender, found.weight, found.metrics, found.round, found.stage) == (CLIENTS, 4.0, ("m",), 3, "update")
    summed((1.0, style(1.0)), (0.0, style(5.0)), least=2)
    with pytest.raises(UnseenError, match="at least 3 clients, and 2 took part"):
        summed((1.0, style(1.0)), (3.0, style(5.0)), least=3)


def test_the_sum_of_styles_is_the_style_of_all_pixels():
    pixels = [torch.rand(3, 50, generator=torch.Generator().manual_seed(i)).double() * (i + 1) for i in range(2)]
    pixels[1] = pixels[1].repeat(1, 3)
    parts = [StyleStatistics(mean=one.mean(1), std=one.std(1, correction=0)) for one in pixels]

    found = summed((50.0, parts[0]), (150.0, parts[1])).artifacts["style"].tensors()

    whole = torch.cat(pixels, dim=1)
    torch.testing.assert_close(found["mean"], whole.mean(1))
    torch.testing.assert_close(found["std"], whole.std(1, correction=0))


@pytest.mark.parametrize("kind", [ModelState, GeneratorState])
def test_the_sum_of_states_is_their_weighted_mean_of_their_kind_with_whole_counters(kind: type[ModelState]):
    states = [
        kind(state={"w": torch.tensor([v, 2 * v]), "n": torch.tensor(int(v)), "d": torch.tensor(v / 7).double()})
        for v in (1.0, 4.0)
    ]

    found = summed((1.0, states[0]), (2.0, states[1])).artifacts["style"]

    assert type(found) is kind
    assert found.tensors()["w"].tolist() == [3.0, 6.0]
    assert found.tensors()["n"].tolist() == 3
    assert float(found.tensors()["d"]) == pytest.approx(
        float(states[0].state["d"] + 2 * states[1].state["d"]) / 3, rel=1e-15
    )
    assert found.tensors()["n"].dtype == torch.int64


def test_the_sum_of_spectra_is_nobodys_and_that_of_numbers_adds_the_weights():
    spectra = [Amplitudes(values=torch.full((1, 1, 2, 2), v), owner=torch.tensor([7])) for v in (1.0, 4.0)]
    numbers = [Scores(values=torch.tensor([w, m], dtype=torch.float64)) for w, m in ((1.0, 10.0), (2.0, 40.0))]

    spectrum = summed((1.0, spectra[0]), (2.0, spectra[1])).artifacts["style"].tensors()
    told = summed((1.0, numbers[0]), (2.0, numbers[1]), slot=NUMBERS).artifacts[NUMBERS].tensors()["values"]

    assert (spectrum["values"].unique().tolist(), spectrum["owner"].tolist()) == ([3.0], [-1])
    assert told.tolist() == [3.0, 30.0]


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 5.0)])
def test_weights_below_zero_or_of_no_sum_are_refused(weights: tuple[float, float]):
    with pytest.raises(UsageError, match="needs weights of at least 0"):
        summed((weights[0], style(1.0)), (weights[1], style(2.0)))


@pytest.mark.parametrize(
    ("first", "second"),
    [(style(1.0), StyleStatistics(mean=torch.ones(2), std=torch.ones(2))), (style(1.0), ModelState(state={})),
     (ModelState(state={"a": torch.ones(1)}), ModelState(state={"b": torch.ones(1)}))],
)  # fmt: skip
def test_only_like_is_summed_with_like(first: Artifact, second: Artifact):
    with pytest.raises(UsageError, match="sums like with like"):
        summed((1.0, first), (1.0, second))


def scored(values: Tensor, *, rounds: int = 1, epsilon: float = 2.0) -> tuple[Protected, float, int]:
    """What leaves, the bound on a loss, and the number of validation images."""
    judge = four_clients()[0]
    clock = Clock(round=0, rounds=rounds, participants=(judge.name,))
    method = FedDAGDP()
    sender = Sender(client=judge, method=method, clock=clock, model=None, state={}, statistic_source=None)
    message = replace(outgoing(Scores(values=values)), stage="review", name="scores", sender=sender)
    found = PrivateScores(epsilon=epsilon).on_message(message, simulated_stream(0, "scores"))
    assert found is not None
    return found, method.loss_bound, len(judge.validation or ())


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_scores_carry_the_noise_of_all_rounds_for_all_that_one_image_changes(rounds: int):
    found, bound, images = scored(torch.full((9,), 0.5).double(), rounds=rounds)

    assert found.uses is not None
    (use,) = found.uses
    sensitivity = 3 * bound / images  # sqrt(9) B / n
    assert sensitivity_of_scores(scores=9, images=images, bound=bound) == pytest.approx(sensitivity)
    assert dict(use.sensitivity) == pytest.approx({"replace-one": sensitivity, "zero-out": sensitivity})
    assert use.noise == pytest.approx(noise_multiplier(2.0, 1e-5) * sensitivity * math.sqrt(max(rounds, 1)))
    assert epsilon([use] * max(rounds, 1), delta=1e-5, relation="replace-one") == pytest.approx(2.0, rel=1e-9)


def test_scores_at_their_bounds_pass_and_beyond_them_are_refused():
    _, bound, _ = scored(torch.zeros(3).double())

    scored(torch.tensor([0.0, bound, bound * (1 + 9e-7)]).double())
    scored(torch.zeros(0).double(), epsilon=math.inf)
    for value in (-1e-9, bound * (1 + 2e-6)):
        with pytest.raises(UsageError, match="scores lie in"):
            scored(torch.tensor([0.5, value]).double())
