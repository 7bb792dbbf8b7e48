"""Options that can measure nothing are refused when an attack is built, in a dry run as in the run."""

import math

import pytest

import fdgsec
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.experiments.attack.run_attacks import dry_run
from fdgsec.experiments.run_config import attack_settings
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress


@pytest.mark.parametrize(
    ("attack", "options", "said"),
    [
        (Linkage, {"clients": 1}, "clients must be finite and at least 2; got 1"),
        (Linkage, {"noise": (0.1, -1.0)}, "noise must be finite and at least 0; got -1"),
        (Linkage, {"noise_in_sds": (math.nan,)}, "noise_in_sds must be finite and at least 0; got nan"),
        (Linkage, {"noise": (math.inf,)}, "got inf"),
        (Membership, {"sizes": (40, 0)}, "sizes must be finite and at least 1; got 0"),
        (Membership, {"row_size": 0}, "row_size must be"),
        (Membership, {"crops": -1}, "crops must be finite and at least 0"),
        (Reidentification, {"gallery": 0}, "gallery must be finite and at least 1"),
    ],
)
def test_values_out_of_range_are_named(attack: type, options: dict[str, object], said: str):
    with pytest.raises(UsageError, match=said):
        attack(**options)


@pytest.mark.parametrize("option", ["styles_per_client", "style_size"])
def test_a_method_that_could_share_nothing_is_refused(option: str):
    with pytest.raises(UsageError, match=f"{option} of at least 1; got 0"):
        fdgsec.attack("ccst-single", assignments=[f"method.{option}=0"], attacks=["linkage"], per_domain=20)


@pytest.mark.medium
def test_a_dry_run_skips_what_the_data_are_too_small_for_as_the_run_does(own_cache: object):
    given = {"per_domain": 60, "image_size": 32, "attacks": ("membership",)}
    planned = dry_run(attack_settings("ccst-overall", given), data_root=None, progress=NoProgress())
    result = fdgsec.attack("ccst-overall", **given).attacks[0]  # type: ignore[arg-type]

    assert result.status == "skipped"
    assert planned == [("membership", f"skipped: {result.reason}")]
