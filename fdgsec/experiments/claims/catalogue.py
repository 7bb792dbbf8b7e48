"""The ledger of the papers' privacy claims as data, with the runs and criteria that decide each claim."""

import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from fdgsec.experiments.claims.verdicts import Criterion
from fdgsec.experiments.run_config import build

EncoderKind = Literal["vgg", "network", "pixels"]
ENCODER_KINDS: Mapping[EncoderKind, str] = {
    "vgg": "encoders of the VGG family",
    "network": "the method's own network",
    "pixels": "pixel colors",
}
DECIDED_BY = (
    "experiments/claims/claims.toml", "experiments/claims/catalogue.py", "experiments/claims/columns.py",
    "experiments/claims/fixed_inputs.py", "experiments/claims/measured_runs.py", "experiments/claims/run_claims.py",
    "experiments/claims/verdicts.py", "metrics/effect_sizes.py", "metrics/significance.py",
)  # fmt: skip
"""The files whose hash a registration holds: the ledger, how it is read and measured, who decides, and the rules."""
LEDGER = DECIDED_BY[0]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An attack on a target, with the settings of its run."""

    target: str
    attack: str
    adversary: Literal["server", "client", "outsider"] = "server"
    run: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a comparative claim is compared with: the run without the protection, or the exact `value` that it has."""

    says: str
    value: float | None = None
    measured: Probe | None = None


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """A number beyond the claim, which no verdict depends on: the rows of a run that `criterion` fits."""

    says: str
    probe: Probe
    criterion: Criterion


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The setting in which the claim is made, beside that in which it is tested."""

    sharing: str
    clients: str
    attacker: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the ledger.

    `quotes` are the paper's literal sentences, `context` those around them, as literal, that say what they are about,
    `holds_if` what would have to be true for them to hold. `encoder` is the
    kind of encoder that decides; `needs_decoder` leaves out those without one. `untestable` says in place of `measured`
    and `criteria` why a sentence is not a testable claim."""

    id: str
    paper: str
    section: str
    quotes: Sequence[str]
    context: Sequence[str] = ()
    encoder: EncoderKind
    holds_if: str = ""
    untestable: str = ""
    scope: Scope | None = None
    needs_decoder: bool = False
    measured: Probe | None = None
    compared: Comparison | None = None
    criteria: Sequence[Mapping[str, Any]] = ()
    beyond: Sequence[Mapping[str, Any]] = ()

    @property
    def per_encoder(self) -> bool:
        """Whether its runs depend on the encoder that the user chooses."""
        return self.encoder == "vgg"

    def rows(self) -> list[Criterion]:
        """The criteria that decide the claim."""
        return [build(Criterion, row, where=f"claim {self.id}") for row in self.criteria]

    def notes(self) -> list[Beyond]:
        """The numbers beyond the claim; those that name no target are of the claim's own run."""
        return [_beyond(self, dict(row)) for row in self.beyond]

    def deciding(self) -> list[Probe]:
        """The attacks that the verdict needs."""
        compared = None if self.compared is None else self.compared.measured
        return [probe for probe in (self.measured, compared) if probe is not None]

    def shown(self, *, beyond: bool) -> list[Beyond]:
        """The numbers beyond the claim; without those `beyond`, the ones of the attacks that decide it alone."""
        return [note for note in self.notes() if beyond or note.probe in self.deciding()]

    def probes(self, *, beyond: bool = True) -> Iterator[Probe]:
        """Every attack that the claim needs, with or without those of numbers `beyond` it."""
        yield from self.deciding()
        yield from (note.probe for note in self.shown(beyond=beyond))


def _beyond(claim: Claim, row: dict[str, Any]) -> Beyond:
    where = f"claim {claim.id}, beyond it"
    criterion: dict[str, Any] = {
        key: row.pop(key) for key in ("measurement", "where", "margin", "over", "without") if key in row
    }
    says = row.pop("says")
    probe = build(Probe, row, where=where) if row else claim.measured
    if probe is None:
        raise ValueError(f"{where}: name the target and the attack; {claim.id} has no run of its own.")
    return Beyond(says=says, probe=probe, criterion=build(Criterion, criterion, where=where))


def _source(name: str) -> str:
    return resources.files("fdgsec").joinpath(name).read_text()


def ledger() -> list[Claim]:
    """Read the claims, in the order of the ledger; each run also has the settings of the ledger's own [run]."""
    document = tomllib.loads(_source(LEDGER))
    return [build(Claim, row, where=f"claim {row.get('id')}") for row in document["claims"]]


def ledger_run() -> Mapping[str, Any]:
    """The settings of all runs, which a claim's own and the user's override."""
    found: Mapping[str, Any] = tomllib.loads(_source(LEDGER))["run"]
    return found


def ledger_sha256() -> str:
    """The SHA-256 of the ledger and its rules: of each file's name and content, in order."""
    digest = hashlib.sha256()
    for name in DECIDED_BY:
        digest.update(f"{name}\0{_source(name)}\0".encode())
    return digest.hexdigest()
