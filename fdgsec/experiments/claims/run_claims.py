"""The verb `claims`: the papers' privacy claims, each with the measurement of its decisive attack and a verdict.

The ledger is data (claims.toml): the claim, its paper, and the attack, target and criteria that decide it. The rules
for verdicts are in fdgsec.experiments.claims.verdicts. Claims that need the same run share it. Reports are stored
beside the table and reused if settings, data and code are the same."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fdgsec.experiments.attack.run_attacks import attack
from fdgsec.experiments.claims.catalogue import Claim, ledger
from fdgsec.experiments.claims.tables import markdown, page
from fdgsec.experiments.claims.verdicts import Finding, Verdict, adjusted_p_values, finding, verdicts
from fdgsec.experiments.run_config import RunConfig, attack_settings
from fdgsec.federation.run_folder import code_sha256, run_key
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import MissingResourceError, unknown_name
from fdgsec.runtime.progress import Progressive

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class ClaimsRequest:
    """The claims to measure, and the dataset and settings."""

    dataset: str
    profile: str = "quick"
    seed: int = 0
    only: Sequence[str] = ()
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The result of a claim's attack: the finding and the encoder, or the reason why there is none."""

    claim: Claim
    found: Finding | None
    encoder: str = ""
    reason: str = ""


def claims(
    request: ClaimsRequest, *, data_root: Path | None, out: Path, fresh: bool, progress: Progressive
) -> dict[str, Any]:
    """Measure the claims, decide them, write claims.json, .md and .html to `out`, and return the document.

    Claims whose target lacks a resource are "not run". Raises UsageError for an unknown claim or dataset."""
    chosen = _chosen(request.only)
    asked = {claim.id: _config(claim, request) for claim in chosen}
    wanted: dict[str, set[str]] = {}
    for claim in chosen:
        if request.profile in claim.profiles:
            wanted.setdefault(_same_run(asked[claim.id]), set()).add(claim.attack)
    reports: dict[str, Mapping[str, Any] | str] = {}
    outcomes = []
    for claim in chosen:
        key = _same_run(asked[claim.id])
        if key in wanted and key not in reports:
            config = replace(asked[claim.id], attacks=tuple(sorted(wanted[key])))
            reports[key] = _report(config, out=out, data_root=data_root, fresh=fresh, progress=progress)
        outcomes.append(_outcome(claim, reports.get(key, ""), request))
    document = {"schema": SCHEMA, "dataset": request.dataset, "profile": request.profile, "seed": request.seed,
                "code": code_sha256(), "claims": _rows(outcomes, request)}  # fmt: skip
    write_atomic(out / "claims.json", json.dumps(document, indent=1) + "\n")
    write_atomic(out / "claims.md", markdown(document))
    write_atomic(out / "claims.html", page(document))
    return document


def _chosen(only: Sequence[str]) -> list[Claim]:
    known = {claim.id: claim for claim in ledger()}
    for name in only:
        if name not in known:
            raise unknown_name("claim", name, known)
    return [claim for claim in known.values() if not only or claim.id in only]


def _config(claim: Claim, request: ClaimsRequest) -> RunConfig:
    given = {**claim.run, **{k: v for k, v in request.given.items() if v is not None}}
    given |= {"dataset": request.dataset, "seed": request.seed, "adversary": claim.adversary}
    if "encoder" in claim.run:
        given["encoder"] = claim.run["encoder"]
    return attack_settings(claim.target, given, profile=request.profile, assignments=claim.settings)


def _same_run(config: RunConfig) -> str:
    return replace(config, attacks=()).sha256


def _report(
    config: RunConfig, *, out: Path, data_root: Path | None, fresh: bool, progress: Progressive
) -> Mapping[str, Any] | str:
    """The report of one run, stored or new; or the reason why it is missing."""
    folder = out / "runs" / f"{config.target}-{config.adversary}-{config.sha256[:8]}"
    key = run_key(config.sha256, str(data_root), code_sha256())
    stamp = out / "runs" / f"{folder.name}.key"
    if not fresh and stamp.exists() and stamp.read_text() == key and (folder / "report.json").exists():
        found: Mapping[str, Any] = json.loads((folder / "report.json").read_text())
        return found
    try:
        document: Mapping[str, Any] = json.loads(
            attack(config, data_root=data_root, out=folder, fresh=fresh, progress=progress).json()
        )
    except MissingResourceError as error:
        return str(error)
    write_atomic(stamp, key)
    return document


def _outcome(claim: Claim, report: Mapping[str, Any] | str, request: ClaimsRequest) -> _Outcome:
    if request.profile not in claim.profiles:
        return _Outcome(claim=claim, found=None, reason=f"its attack runs with --profile {claim.profiles[0]} only")
    if isinstance(report, str):
        return _Outcome(claim=claim, found=None, reason=report)
    result = next(one for one in report["attacks"] if one["name"] == claim.attack)
    if result["status"] != "done":
        return _Outcome(
            claim=claim, found=None, encoder=report["encoder"], reason=f"{result['status']}: {result['reason']}"
        )
    positive = result["controls"]["positive"]
    controlled = bool(positive) and all(control["passed"] for control in positive)
    found = finding(claim.id, result["measurements"], claim.rows(), controlled=controlled)
    reason = "" if found.populations else "the report has no row that could decide it"
    return _Outcome(claim=claim, found=found if found.populations else None, encoder=report["encoder"], reason=reason)


def _rows(outcomes: Sequence[_Outcome], request: ClaimsRequest) -> list[dict[str, Any]]:
    family = [outcome.found for outcome in outcomes if outcome.found is not None]
    decided, adjusted = verdicts(family), adjusted_p_values(family)
    rows = [_row(outcome, decided.get(outcome.claim.id, "not run"), request) for outcome in outcomes]
    return [row | {"adjusted_p_value": adjusted.get(row["id"]), "family": len(family)} for row in rows]


def _row(outcome: _Outcome, verdict: Verdict, request: ClaimsRequest) -> dict[str, Any]:
    claim, found, reason = outcome.claim, outcome.found, outcome.reason
    if found is not None and claim.vgg and not outcome.encoder.startswith("vgg19"):
        verdict, reason = "undecided", f"the number depends on VGG's features and was measured with {outcome.encoder}"
    decisive = None if found is None else found.decisive
    if verdict == "undecided" and decisive is not None and not reason:
        reason = decisive.reservation
    row: dict[str, Any] = {
        "id": claim.id, "paper": claim.paper, "section": claim.section, "claim": claim.claim, "attack": claim.attack,
        "target": claim.target, "adversary": claim.adversary, "encoder": outcome.encoder or None,
        "measurement": None, "slice": None, "value": None, "low": None, "high": None, "chance": None, "n": None,
        "p_value": None, "populations": 0, "verdict": verdict, "rule": claim.rule, "reason": reason,
        "command": _command(claim, request),
    }  # fmt: skip
    if found is not None and decisive is not None:
        row |= {key: decisive.row[key] for key in ("slice", "value", "low", "high", "chance", "n")}
        row |= {"measurement": decisive.row["name"], "p_value": found.p_value, "populations": len(found.populations)}
    return row


def _command(claim: Claim, request: ClaimsRequest) -> str:
    """The command that reproduces the row."""
    words = ["fdgsec", "attack", "--target", claim.target, "--dataset", request.dataset, "--attack", claim.attack]
    words += ["--profile", request.profile, "--seed", str(request.seed)]
    if claim.adversary != "server":
        words += ["--adversary", claim.adversary]
    for key, value in {**claim.run, **{k: v for k, v in request.given.items() if v is not None}}.items():
        flag = f"--{key.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return " ".join([*words, *(f"--set {item}" for item in claim.settings)])
