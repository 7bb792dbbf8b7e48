"""Finished attacks, kept as they finish: the same command goes on after the last one, to the same report.

A kept attack is found again by a hash of everything that decides its rows: the run that was attacked, its settings and
images, the attack with its options, the stored weights, fdgsec's code, and what the report says of the machine. Attacks
that are not fdgsec's own are not kept, for that hash covers no other code."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fdgsec.experiments.attack.attack_setting import Outcome
from fdgsec.experiments.report.schema import AttackResult, Figure
from fdgsec.experiments.run_config import RunConfig
from fdgsec.federation.method import Method
from fdgsec.federation.run_folder import conditions, run_key
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.nn.networks.weights import listing
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.progress import warn
from fdgsec.runtime.registry import is_bundled
from fdgsec.runtime.source_hash import is_unchanged
from fdgsec.threats.attack import Attack
from fdgsec.threats.judging.permutation_tests import NullRow


@dataclass(frozen=True, kw_only=True)
class KeptOutcomes:
    """The finished attacks of one run by one adversary; `key` is a hash of all that they share.

    With `fresh`, none is read; what finishes is kept all the same."""

    key: str
    fresh: bool = False

    @classmethod
    def of(
        cls,
        config: RunConfig,
        *,
        images: str,
        weights: Sequence[str],
        transcript: str,
        controls: bool,
        kept_for: str,
        fresh: bool,
    ) -> "KeptOutcomes":
        """The finished attacks on a run with this `transcript` and these `images` and `weights`, all given as hashes.

        `kept_for` is what else they were made for, as a registration; others made for it alone are found."""
        shared = replace(config, attacks=(), attack_options={})
        published = {row.name: row.sha256 for row in listing() if row.stored}
        told = json.dumps([published, controls, kept_for, conditions()], sort_keys=True)
        return cls(key=run_key(shared.sha256, images, *weights, transcript, told), fresh=fresh)

    def path(self, attack: Attack) -> Path:
        """The file of an attack with its options."""
        name = hashlib.sha256(f"{self.key}\n{attack.name}\n{attack!r}".encode()).hexdigest()
        return cache_root() / "attacks" / f"{name}.json"

    def read(self, attack: Attack) -> Outcome | None:
        """A finished attack; None where there is none, and for a damaged one, which is said."""
        return None if self.fresh else self._recalled(attack)

    def made(self, attack: Attack) -> Outcome | None:
        """An attack that another process of this run has finished and kept, also where everything is made anew."""
        return self._recalled(attack, just_made=True)

    def _recalled(self, attack: Attack, *, just_made: bool = False) -> Outcome | None:
        document = read_kept(self.path(attack), just_made=just_made) if is_bundled(attack) else None
        return None if document is None else _outcome(document)

    def keep(self, attack: Attack, outcome: Outcome) -> bool:
        """Keep an attack that did not fail, and say whether it is kept. A full disk is no reason to lose the report: it
        is said."""
        if not is_bundled(attack) or outcome.result.status == "failed" or not is_unchanged("fdgsec"):
            return False
        try:
            write_kept(self.path(attack), _document(outcome))
        except OSError as error:
            warn(f"the finished attack {attack.name} cannot be kept under {cache_root()}: {error.strerror}.")
            return False
        return True

    def told(self, attacks: Sequence[Attack]) -> str:
        """How many of `attacks` are kept, and how to go on."""
        kept = sum(is_bundled(attack) and self.path(attack).exists() for attack in attacks)
        again = "the same command, without --fresh," if self.fresh else "the same command"
        return f"{kept} of {len(attacks)} attacks are finished and kept; {again} goes on after them."


def is_own(config: RunConfig, method: Method, encoder: str) -> bool:
    """Whether fdgsec's own hash covers the code of a run: the keys of what is stored hold a hash of no other code."""
    module = type(encoder_named(encoder)).__module__
    return module.partition(".")[0] == "fdgsec" and is_bundled(method) and all(map(is_bundled, config.defenses))


def write_kept(path: Path, document: Mapping[str, Any]) -> None:
    """Store a document with a seal for the name of its file."""
    remember(path, json.dumps(document).encode(), key=path.stem)


def read_kept(path: Path, *, just_made: bool = False) -> Any:  # any JSON value
    """Read a stored document; None where there is none, or where it is not as it was written: that is said."""
    return recalled(path, key=path.stem, read=json.loads, just_made=just_made)


def _document(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain data: its result and the rows that are corrected over the whole report."""
    result = asdict(outcome.result)
    for figure in result["figures"]:
        figure["png"] = None if figure["png"] is None else base64.b64encode(figure["png"]).decode()
    return {"result": result, "nulls": [asdict(row) for row in outcome.nulls]}


def _outcome(document: Mapping[str, Any]) -> Outcome:
    found = dict(document["result"])
    figures = [
        Figure(**{**each, "png": None if each["png"] is None else base64.b64decode(each["png"])})
        for each in found["figures"]
    ]
    result = AttackResult(**{
        **found, "figures": figures, "measurements": [Measurement(**row) for row in found["measurements"]],
        "positive": [_control(each) for each in found["positive"]],
        "variants": [_control(each) for each in found["variants"]],
    })  # fmt: skip
    return Outcome(result=result, nulls=[NullRow(**row) for row in document["nulls"]])


def _control(document: Mapping[str, Any]) -> Control:
    return Control(**{**document, "measurement": Measurement(**document["measurement"])})
