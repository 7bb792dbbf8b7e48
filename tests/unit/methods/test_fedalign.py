"""FedAlign's switches and presets, and two rounds of it on the wire."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.run_config import build, load_preset, resolve_settings
from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedalign import FedAlign
from fdgsec.nn.training.augmix import AugMix
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.three_clients import CLOCK, PLAN, SIZES, Outcome, batch, clients, noise, pooled_rounds, run, start

FEDALIGN = FedAlign(plan=PLAN, upload_ratio=0.3)


@cache
def plain() -> Outcome:
    return run(FEDALIGN)


def test_two_rounds_put_exactly_these_messages_on_the_wire():
    assert plain().messages == pooled_rounds(2)


@pytest.mark.parametrize("discriminator", ["off", "detached", "reversed"])
@pytest.mark.medium
def test_encoding_and_decoding_every_message_changes_nothing(discriminator: str):
    method = build(FedAlign, {"upload_ratio": 0.3, "discriminator": discriminator}, where="method")
    method = replace(method, plan=PLAN)

    first, again = run(method), run(method, recode=True)

    assert first.transcript.sha256 == again.transcript.sha256
    assert all(torch.equal(value, again.model[name]) for name, value in first.model.items())


def test_own_statistics_are_never_in_the_received_pool_whose_size_is_the_others_shares():
    for message in plain().transcript.messages():
        if message.stage != "combine":
            continue
        assert isinstance(message.artifact, StyleBank)
        me = int(message.receiver[-1])
        expected = [other for other in range(3) if other != me for _ in range(int(0.3 * SIZES[other] + 1e-9))]
        assert message.artifact.owner.tolist() == expected


@pytest.mark.parametrize("option", ["contrast", "consistency", "agreement"])
def test_every_alignment_term_can_be_left_out_alone(option: str):
    features, logits = ([noise(4, 5, name=f"{kind}{i}") for i in range(3)] for kind in "zy")
    labels = torch.tensor([0, 1, 2, 0])
    full = FedAlign()

    without = build(FedAlign, {option: 0.0}, where="method").losses(features, logits, labels)
    alone = replace(FedAlign(contrast=0.0, consistency=0.0, agreement=0.0), **{option: 0.1})
    nothing = FedAlign(contrast=0.0, consistency=0.0, agreement=0.0)

    term = alone.losses(features, logits, labels) - nothing.losses(features, logits, labels)
    assert float(term.mean()) > 1e-3
    assert torch.allclose(full.losses(features, logits, labels) - term, without, rtol=1e-5)


def test_everything_switched_off_is_cross_entropy():
    method = FedAlign(mixing=False, perturbing=False, contrast=0.0, consistency=0.0, agreement=0.0)
    objective = method.objective(
        clients()[0], model=start(), inbox={}, state={}, clock=CLOCK, rng=stream(0, "world", "t")
    )

    made = objective(batch(6), start().module().train())

    assert torch.allclose(made, CrossEntropy()(batch(6), start().module().train()), rtol=1e-5)


@pytest.mark.parametrize(
    "switch",
    [
        {"mixing": False},
        {"perturbing": False},
        {"mixing": False, "perturbing": False},
        {"views": "sequential"},
        {"augmix_difficulty": True},
        {"difficulty": "input"},
        {"sums": True},
        {"include_self": True},
        {"classification": "sum"},
        {"overflow": "wrapped"},
        {"ignore_pool": True},
        {"pool": "others"},
        {"clusters": 1},
    ],
)
def test_every_switch_trains_and_changes_the_model(switch: dict[str, object]):
    method = replace(build(FedAlign, {"upload_ratio": 0.3, **switch}, where="method"), plan=PLAN)

    model = run(method, rounds=1).model

    assert all(bool(torch.isfinite(value).all()) for value in model.values())
    assert not torch.equal(model["head.weight"], once()["head.weight"])


@cache
def once() -> Mapping[str, Tensor]:
    return run(FEDALIGN, rounds=1).model


@pytest.mark.medium
def test_the_received_pool_moves_the_model_and_an_ignored_one_does_not():
    def model(ratio: float, *, ignore_pool: bool) -> Tensor:
        method = replace(FEDALIGN, upload_ratio=ratio, ignore_pool=ignore_pool)
        return run(method, rounds=1).model["head.weight"]

    assert not torch.equal(model(0.3, ignore_pool=False), model(0.9, ignore_pool=False))
    assert torch.equal(model(0.3, ignore_pool=True), model(0.9, ignore_pool=True))


def test_records_are_coupled_by_contrast_by_styles_of_the_client_and_by_reversal():
    free = FedAlign(contrast=0.0, pool="others")

    assert FedAlign().couples_records
    assert not free.couples_records
    assert not replace(free, discriminator="detached").couples_records
    assert replace(free, discriminator="reversed").couples_records
    assert replace(free, ignore_pool=True).couples_records
    assert replace(free, pool="complete").couples_records
    assert not replace(free, pool="complete", mixing=False).couples_records


def test_releasing_all_keeps_every_other_option():
    assert replace(FEDALIGN, clusters=3).releasing_all() == replace(FEDALIGN, clusters=3, upload_ratio=1.0)


@pytest.mark.parametrize(
    "wrong", [{"clusters": 0}, {"discriminator_rate": 0.0}, {"consistency": -0.1}, {"reversal": -1.0}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, float]):
    with pytest.raises(UsageError, match="fedalign needs at least 1 cluster"):
        replace(FEDALIGN, **wrong).check(3)  # type: ignore[arg-type]


def test_the_paper_preset_uses_the_pool_two_independent_views_and_reversal():
    method = build(FedAlign, load_preset("fedalign-paper")["method"], where="method")

    plan = TrainingPlan(
        epochs=3, batch_size=32, optimizer="adam", learning_rate=1e-3, weight_decay=1e-4, schedule="cosine-epoch",
        crop=None, flip=0.0, precision="float32",
    )  # fmt: skip
    assert method == FedAlign(
        plan=plan, keep_optimizer=True, augmix=AugMix(width=-1, per_image=True), augmix_difficulty=True,
        discriminator="reversed",
    )  # fmt: skip


def test_the_released_preset_ignores_the_pool_and_chains_its_views():
    method = build(FedAlign, load_preset("fedalign-released")["method"], where="method")

    plan = TrainingPlan(
        epochs=3, batch_size=32, optimizer="adam", learning_rate=1e-3, weight_decay=1e-4, schedule="cosine-epoch",
        crop=None, flip=0.0, precision="float32",
    )  # fmt: skip
    assert method == FedAlign(
        plan=plan, keep_optimizer=True, classification="sum", include_self=True, views="sequential",
        overflow="wrapped", pool="others", ignore_pool=True, discriminator="detached",
    )  # fmt: skip


@pytest.mark.parametrize("preset", ["fedalign-paper", "fedalign-released"])
def test_a_presets_run_is_that_of_the_papers_pacs_tables(preset: str):
    config = resolve_settings({}, preset=preset, defaults={"method": "fedalign"})

    assert (config.backbone, config.pretrained, config.image_size) == ("mobilenet_v3_large", True, 224)
    assert (config.partition, config.clients, config.rounds) == ("single-domain", 6, 10)


def test_the_paper_and_the_released_preset_train():
    for preset in ("fedalign-paper", "fedalign-released"):
        method = build(FedAlign, load_preset(preset)["method"], where="method")
        method = replace(method, upload_ratio=0.3, plan=replace(method.plan, epochs=1, batch_size=8))

        made = run(method, rounds=1)

        assert not torch.equal(made.model["head.weight"], start().state.tensors()["head.weight"])
        assert all(bool(torch.isfinite(value).all()) for value in made.model.values())


def test_nothing_is_drawn_from_torchs_own_stream():
    before = torch.random.get_rng_state()

    run(replace(FEDALIGN, discriminator="reversed"), rounds=1)

    assert torch.equal(torch.random.get_rng_state(), before)
