"""Defenses in settings: parsed once, kept as objects, written back as text."""

import json
import math

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.guards import Guards
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.defenses.quantize import Quantize
from fdgsec.defenses.shuffle import Shuffle
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.run_config import RunConfig, defense_of, defense_text
from fdgsec.federation.defense import Defense
from fdgsec.runtime.errors import UsageError


@pytest.mark.parametrize(
    ("defense", "text"),
    [
        (Shuffle(), "shuffle"),
        (Quantize(), "quantize"),
        (Quantize(bits=4, rounding="stochastic"), "quantize:bits=4,rounding=stochastic"),
        (PrivateStyles(epsilon=math.inf, clip=2.0), "private-styles:epsilon=inf,clip=2"),
        (Guards(schema=False, outlier=3.0), "guards:schema=false,outlier=3"),
        (DPFedAvg(delta=1e-6), "dp-fedavg:delta=1e-06"),
    ],
)
def test_a_defense_is_written_with_what_is_not_at_its_default_and_read_back(defense: Defense, text: str):
    assert defense_text(defense) == text
    assert defense_of(text) == defense


def test_settings_hash_alike_however_a_defense_was_stated():
    texts = ["style-noise:scale=0.5,p=0.1", "style-noise:scale=0.5", "style-noise:p=0.1,scale=5e-1"]
    configs = [RunConfig.of({"method": "ccst", "defenses": [text]}, where="run") for text in texts]

    assert {config.sha256 for config in configs} == {RunConfig(method="ccst", defenses=(StyleNoise(scale=0.5),)).sha256}


def test_stored_settings_are_read_as_they_were():
    config = RunConfig(method="ccst", defenses=(PrivateStyles(epsilon=4.0), Shuffle()))

    assert RunConfig.of(json.loads(json.dumps(config.document())), where="run") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("style-noise:p", "NAME:option=value"),
        ("style-nose", "did you mean 'style-noise'"),
        ("style-noise:sacle=1", "did you mean 'scale'"),
        ("quantize:bits=many", "bits cannot be 'many'; expected int"),
        ("style-noise:scale=nan", "scale cannot be NaN"),
        ("style-noise:scale=inf", "scale and least from 0 to 1e\\+18"),
        ("guards:outlier=nan", "outlier cannot be nan; expected float or nothing"),
        ("quantize:high=inf", "both up to 1e\\+18 in size"),
        ("private-styles:clip=1e300", "private-styles needs clip from 1e-09 to 1e\\+18"),
        ("dp-sgd:epsilon=8,max_grad_norm=1e300", "gradient norm from 1e-09 to 1e\\+18"),
        ("dp-fedavg:clip=inf", "clip must be above 0 and at most 1e\\+18"),
    ],
)
def test_what_names_no_defense_or_gives_it_no_number_is_refused(text: str, message: str):
    with pytest.raises(UsageError, match=message):
        defense_of(text)


def test_no_bound_of_a_guard_is_no_number():
    with pytest.raises(UsageError, match="guards needs norm, outlier"):
        Guards(norm=math.nan)
    with pytest.raises(UsageError, match="guards needs norm, outlier"):
        Guards(outlier=math.nan)
