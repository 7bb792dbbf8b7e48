"""Matching statistics of noisy rows: what an adversary wins that knows of the noise."""

from dataclasses import replace

import pytest

from fdgsec.attacks.style_inversion.optimization_attack import OptimizationInversion
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload
from tests.support.noisy_styles import Noise

KNOWLEDGE = Knowledge(
    statistics=lambda dataset: statistics("pixels", dataset), encoder="pixels", class_names=(), domain_names=(),
    auxiliary=None, unseen=None, own=None,
)  # fmt: skip


@pytest.mark.medium
def test_behind_noise_the_likely_style_is_aimed_at():
    attack, noise = OptimizationInversion(restarts=1, steps=60), Noise(scale=0.5)
    control = attack.positive_control(KNOWLEDGE, stream(0, "attack", "plant"))
    mean, std = control.cases[0].released()
    sent = noise.on(ImageStyles(mean=mean.float(), std=std.float()), stream(0, "attack"))
    case = replace(control.cases[0], views=(upload(sent),))
    gains = {}
    for name, defended in (("aware", noise), ("not", None)):
        answers = attack.run([case], replace(control.knowledge, defended=defended), stream(0, "attack"))
        rows = Judge(bootstrap_repeats=100).measure(answers, [case], control.truths, stream(1, "attack"))
        gains[name] = next(r.value or 0.0 for r in rows if r.name == "psnr_gain" and r.slice["over"] == "B0")

    assert gains["aware"] > gains["not"] + 0.5
