"""The verb `claims`: the papers' privacy claims, measured with several encoders and seeds, each with a verdict.

The ledger is data (claims.toml): the paper's sentences, what would have to be true for them to hold, and the runs and
criteria that decide. The rules are in fdgsec.experiments.claims.verdicts. A claim about styles of VGG's relu4_1 is
decided by encoders of that family alone, one about a reconstruction by those that also have a decoder; what others
would have decided stands beside it. Reports are stored beside the table and reused if settings, data and code are the
same."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdgsec.experiments.claims.catalogue import ENCODER_KINDS, Beyond, Claim, ledger, ledger_run
from fdgsec.experiments.claims.columns import EncoderColumn, Sources, columns_of, single_verdicts
from fdgsec.experiments.claims.fixed_inputs import registered_inputs
from fdgsec.experiments.claims.measured_runs import ClaimsRequest, MeasuredRuns, measure, planned_runs
from fdgsec.experiments.claims.registration import Registration, commit_of, read_registration
from fdgsec.experiments.claims.tables import criterion_text, markdown
from fdgsec.experiments.claims.verdicts import Column, Verdict, agreeing, finding, ledger_p_values, verdicts
from fdgsec.experiments.claims.web_page import page
from fdgsec.experiments.run_config import plain
from fdgsec.federation.run_folder import code_sha256, reserved
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.progress import Progressive

SCHEMA = 2


def claims(
    request: ClaimsRequest,
    *,
    data_root: Path | None,
    out: Path,
    fresh: bool,
    progress: Progressive,
    workers: int = 1,
    registration: Path | None = None,
) -> dict[str, Any]:
    """Measure the claims, decide them, write claims.json, .md and .html to `out`, and return the document.

    Claims whose runs lack a resource are "not run". With a `registration` the request must be what it says. Raises
    UsageError for an unknown claim or dataset, and for a request or a ledger that is not the registered one."""
    chosen = chosen_claims(request.only)
    registered = None if registration is None else _registered(registration, request, data_root=data_root)
    with reserved(out, goes_on=("runs", "claims.json")):
        runs = measure(
            chosen, request, data_root=data_root, out=out, fresh=fresh, workers=workers, progress=progress,
            registered="" if registered is None else f"{registered['sha256']} {registered['commit']}",
        )  # fmt: skip
        document = {
            "schema": SCHEMA, "dataset": request.dataset, "profile": request.profile,
            "encoders": list(request.encoders), "seeds": list(request.seeds), "agreeing": agreeing(len(request.seeds)),
            "code": code_sha256(), "registration": registered,
            "beyond": request.beyond, "claims": _documents(chosen, runs, request),
        }  # fmt: skip
        write_atomic(out / "claims.json", json.dumps(document, indent=1) + "\n")
        write_atomic(out / "claims.md", markdown(document))
        write_atomic(out / "claims.html", page(document))
    return document


def chosen_claims(only: Sequence[str]) -> list[Claim]:
    """The claims of these ids, in the order of the ledger; all for none. Raises UsageError for an unknown one."""
    known = {claim.id: claim for claim in ledger()}
    for name in only:
        if name not in known:
            raise unknown_name("claim", name, known)
    return [claim for claim in known.values() if not only or claim.id in only]


def registered_request(path: Path) -> ClaimsRequest:
    """The request that a registration fixes. Raises UsageError where the ledger has changed since."""
    found = read_registration(path)
    return ClaimsRequest(
        dataset=found.dataset, profile=found.profile, encoders=found.encoders, seeds=found.seeds, only=found.claims,
        given=found.settings,
    )  # fmt: skip


def _registered(path: Path, request: ClaimsRequest, *, data_root: Path | None) -> Mapping[str, Any]:
    """How the result cites the registration. Raises UsageError for a request that it does not cover."""
    found = read_registration(path)
    fixed = {
        "dataset": request.dataset, "profile": request.profile, "encoders": tuple(request.encoders),
        "seeds": tuple(request.seeds), "settings": dict(request.settings),
        "claims": tuple(claim.id for claim in chosen_claims(request.only)),
    }  # fmt: skip
    differing = [name for name, value in fixed.items() if getattr(found, name) != value]
    if differing:
        raise UsageError(f"{path} registered other {', '.join(differing)}; run what is registered.")
    here = _inputs(request, data_root=data_root)
    other = [name for name in {**found.inputs, **here} if found.inputs.get(name) != here.get(name)]
    if other:
        raise UsageError(f"{', '.join(other)}: not what {path} registered; get what it names, or register anew.")
    return {
        "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "inputs": found.inputs,
        "ledger_sha256": found.ledger_sha256, "commit": commit_of(path),
        "same_code": found.code_sha256 == code_sha256(),
    }  # fmt: skip


def _inputs(request: ClaimsRequest, *, data_root: Path | None) -> Mapping[str, str]:
    """The hashes of what the runs of the claims read, those beyond them too."""
    runs = planned_runs(chosen_claims(request.only), replace(request, beyond=True))
    return registered_inputs(runs.values(), data_root=data_root)


def registration_of(request: ClaimsRequest, *, data_root: Path | None) -> Registration:
    """What would be registered for a request. Raises UsageError for an unknown claim."""
    return Registration.now(
        dataset=request.dataset, profile=request.profile, encoders=tuple(request.encoders),
        seeds=tuple(request.seeds), claims=tuple(claim.id for claim in chosen_claims(request.only)),
        inputs=_inputs(request, data_root=data_root), settings=dict(request.settings),
    )  # fmt: skip


def _documents(chosen: Sequence[Claim], runs: MeasuredRuns, request: ClaimsRequest) -> list[dict[str, Any]]:
    """One document per claim."""
    sources = Sources(runs=runs, request=request)
    testable = [claim for claim in chosen if not claim.untestable]
    columns = {claim.id: columns_of(claim, sources) for claim in testable}
    deciding = {
        name: [Column(findings=one.findings) for one in found if one.decides] for name, found in columns.items()
    }
    decided, p_values = verdicts(deciding), ledger_p_values(deciding)
    singles = single_verdicts(columns, request.seeds)
    found = []
    for claim in chosen:
        notes = [_noted(claim, note, sources) for note in claim.shown(beyond=request.beyond)]
        document = _described(claim, request) | {"beyond": notes}
        if claim.untestable:
            found.append(document | {"verdict": "not a testable claim", "reason": claim.untestable})
            continue
        verdict, reason = _verdict(claim, columns[claim.id], decided[claim.id])
        p_value, adjusted = p_values[claim.id]
        document |= {
            "verdict": verdict, "reason": reason, "p_value": p_value, "adjusted_p_value": adjusted,
            "family": len(testable), "columns": [one.document(request.seeds) for one in columns[claim.id]],
        }  # fmt: skip
        document["otherwise"] = _otherwise(document, columns[claim.id], singles[claim.id], request.seeds)
        found.append(document)
    return found


def _verdict(claim: Claim, columns: Sequence[EncoderColumn], decided: Verdict) -> tuple[Verdict, str]:
    """The verdict of a testable claim, and why it is none."""
    deciding = [one for one in columns if one.decides]
    if not any(one.reports for one in columns):
        return "not run", "; ".join(dict.fromkeys(one.missing for one in columns))
    if not deciding:
        return "undecided", f"it is decided by {_who_decides(claim)} alone, of which none ran"
    reasons = [one.reservation for one in deciding if one.reservation]
    return decided, "; ".join(dict.fromkeys(reasons)) if decided == "undecided" else ""


def _who_decides(claim: Claim) -> str:
    published = " with their published weights" if claim.per_encoder else ""
    return ENCODER_KINDS[claim.encoder] + published + (" that have a decoder" if claim.needs_decoder else "")


def _otherwise(
    document: Mapping[str, Any],
    columns: Sequence[EncoderColumn],
    singles: Mapping[str, Mapping[int | None, Verdict]],
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """Each encoder and seed (None: all of them) that alone would have given another verdict."""
    return [
        {"encoder": column.encoder, "seed": seed, "verdict": singles[column.encoder][seed]}
        for column in columns
        if column.reports
        for seed in (None, *(seeds if len(seeds) > 1 else ()))
        if singles[column.encoder][seed] != document["verdict"]
    ]


def _described(claim: Claim, request: ClaimsRequest) -> dict[str, Any]:
    """What the ledger says about a claim, and the command that reproduces its rows."""
    scope, compared = claim.scope, claim.compared
    return {
        "id": claim.id, "paper": claim.paper, "section": claim.section, "quotes": list(claim.quotes),
        "context": list(claim.context),
        "holds_if": claim.holds_if or None,
        "scope": None if scope is None else {key: getattr(scope, key) for key in ("sharing", "clients", "attacker")},
        "decided_by": None if claim.untestable else _who_decides(claim),
        "criteria": [criterion_text(row, compared=compared is not None) for row in claim.rows()],
        "compared": None if compared is None else compared.says,
        "attack": None if claim.measured is None else claim.measured.attack,
        "target": None if claim.measured is None else claim.measured.target,
        "adversary": None if claim.measured is None else claim.measured.adversary,
        "command": None if claim.measured is None else reproducing_command(claim, request),
    }  # fmt: skip


def _noted(claim: Claim, note: Beyond, sources: Sources) -> dict[str, Any]:
    """A number beyond the claim, with each encoder and seed."""
    rows = []
    for encoder in sources.encoders(claim):
        for seed in sources.request.seeds:
            shown = sources.rows(claim, note.probe, encoder=encoder, seed=seed)
            decisive = finding(shown.rows, [note.criterion], controlled=shown.controlled).decisive
            if decisive is not None:
                numbers = {
                    key: decisive.row[key] for key in ("slice", "value", "low", "high", "chance", "n", "p_value")
                }
                rows.append({"encoder": shown.encoder or encoder, "seed": seed, **numbers})
    return {
        "says": note.says, "target": note.probe.target, "attack": note.probe.attack,
        "measurement": note.criterion.measurement, "rows": rows,
    }  # fmt: skip


def reproducing_command(claim: Claim, request: ClaimsRequest) -> str:
    """The command that reproduces the rows of the first encoder and seed."""
    assert claim.measured is not None
    probe = claim.measured
    encoder, seed = request.encoders[0], request.seeds[0]
    words = ["fdgsec", "attack", "--target", probe.target, "--dataset", request.dataset, "--attack", probe.attack]
    words += ["--profile", request.profile, "--seed", str(seed)]
    if probe.adversary != "server":
        words += ["--adversary", probe.adversary]
    if claim.per_encoder:
        words += ["--encoder", encoder]
    given = {**ledger_run(), **probe.run, **request.settings}
    words += [f"--defense {each}" for each in given.pop("defenses", ())]
    words += [f"--set run.{key}={plain(value)}" for key, value in given.items()]
    return " ".join([*words, *(f"--set '{item}'" for item in probe.settings)])
