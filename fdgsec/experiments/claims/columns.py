"""What each encoder found about a claim, seed by seed, and what it alone would have decided."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from fdgsec.experiments.claims.catalogue import ENCODER_KINDS, Claim, Probe
from fdgsec.experiments.claims.fixed_inputs import VGG_FAMILY, published
from fdgsec.experiments.claims.measured_runs import ClaimsRequest, MeasuredRuns
from fdgsec.experiments.claims.verdicts import VOID, Column, Finding, Row, Verdict, finding, verdicts
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime.errors import MissingResourceError


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The rows of one attack in one run, whose clients' images are of `domains`; `missing` says why there are none."""

    rows: Sequence[Row] = ()
    controlled: bool = False
    encoder: str = ""
    domains: Sequence[str] = ()
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The reports of all runs, asked for by claim, probe, encoder and seed."""

    runs: MeasuredRuns
    request: ClaimsRequest

    def encoders(self, claim: Claim) -> Sequence[str]:
        """The columns of a claim: the encoders asked for, or the one that its method has."""
        return self.request.encoders if claim.per_encoder else (ENCODER_KINDS[claim.encoder],)

    def rows(self, claim: Claim, probe: Probe, *, encoder: str, seed: int) -> Shown:
        """The rows of a probe's attack."""
        report = self.runs.report(claim, probe, encoder=encoder, seed=seed)
        if isinstance(report, str):
            return Shown(missing=report)
        result = next(one for one in report["attacks"] if one["name"] == probe.attack)
        if result["status"] != "done":
            return Shown(missing=f"{result['status']}: {result['reason']}")
        controls = result["controls"]
        passed = all(control["passed"] for found in controls.values() for control in found)
        return Shown(
            rows=result["measurements"], controlled=bool(controls["positive"]) and passed, encoder=encoder,
            domains=self.runs.source_domains(claim, probe, encoder=encoder, seed=seed),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EncoderColumn:
    """A claim as one encoder shows it: a finding per seed, and whether this encoder decides.

    `reports` counts the seeds whose attack ran; `missing` says why others did not."""

    claim: Claim
    encoder: str
    decides: bool
    findings: Sequence[Finding]
    reports: int
    missing: str

    @property
    def reservation(self) -> str:
        """Why rows without a leak are no evidence of protection, or nothing could be decided; empty where neither."""
        if not any(one.populations for one in self.findings):
            return self.missing or "no report has a row that could decide it"
        failed = sum(not one.controlled for one in self.findings)
        said = [f"a control failed with {failed} of {len(self.findings)} seeds"] if failed else []
        said += [one.reservation for one in self.findings if one.reservation]
        return "; ".join(dict.fromkeys(said))

    def document(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The column as in claims.json."""
        return {
            "encoder": self.encoder, "decides": self.decides, "missing": self.missing or None,
            "p_value": Column(findings=self.findings).p_value,
            "seeds": [_seed_document(seed, one) for seed, one in zip(seeds, self.findings, strict=True)],
        }  # fmt: skip


def _seed_document(seed: int, found: Finding) -> dict[str, Any]:
    """One seed: the decisive row, and what is made of it."""
    document: dict[str, Any] = {
        "seed": seed, "p_value": found.p_value, "quiet": found.quiet, "controlled": found.controlled,
        "populations": len(found.populations),
    }  # fmt: skip
    names = ("slice", "value", "low", "high", "chance", "n", "measurement", "chance_p_value", "gap", "excess")
    numbers: dict[str, Any] = dict.fromkeys(names)
    decisive = found.decisive
    if decisive is not None:
        numbers |= {key: decisive.row[key] for key in ("slice", "value", "low", "high", "chance", "n")}
        numbers |= {"measurement": decisive.row["name"], "chance_p_value": decisive.chance_p_value}
        if (gap := decisive.gap) is not None:
            numbers["gap"] = asdict(gap)
        if (excess := decisive.excess) is not None:
            numbers["excess"] = asdict(excess)
    return document | numbers


def columns_of(claim: Claim, sources: Sources) -> list[EncoderColumn]:
    """The columns of a testable claim, one per encoder."""
    return [_column(claim, encoder, sources) for encoder in sources.encoders(claim)]


def _column(claim: Claim, encoder: str, sources: Sources) -> EncoderColumn:
    assert claim.measured is not None
    findings, missing = list[Finding](), dict[str, None]()
    for seed in sources.request.seeds:
        shown = sources.rows(claim, claim.measured, encoder=encoder, seed=seed)
        if shown.missing:
            missing[shown.missing] = None
        findings.append(_finding(claim, shown, sources, encoder=encoder, seed=seed))
    ran = len(sources.request.seeds) if not missing else sum(one is not VOID for one in findings)
    return EncoderColumn(
        claim=claim, encoder=encoder, decides=decides(claim, encoder), findings=findings, reports=ran,
        missing="; ".join(missing),
    )  # fmt: skip


def _finding(claim: Claim, shown: Shown, sources: Sources, *, encoder: str, seed: int) -> Finding:
    if shown.missing:
        return VOID
    compared = claim.compared
    if compared is None:
        return finding(shown.rows, claim.rows(), controlled=shown.controlled, domains=shown.domains)
    if compared.measured is None:
        return finding(
            shown.rows, claim.rows(), controlled=shown.controlled, compared=compared.value, domains=shown.domains
        )
    other = sources.rows(claim, compared.measured, encoder=encoder, seed=seed)
    return finding(
        shown.rows, claim.rows(), controlled=shown.controlled and other.controlled, compared=list(other.rows),
        domains=shown.domains,
    )  # fmt: skip


def decides(claim: Claim, encoder: str) -> bool:
    """Whether an encoder decides a claim: it is of the claim's kind with its published weights, and has a decoder where
    one is needed."""
    if not claim.per_encoder:
        return True
    return encoder in VGG_FAMILY and published(encoder) and (not claim.needs_decoder or _has_decoder(encoder))


@cache
def _has_decoder(encoder: str) -> bool:
    try:
        return encoder_named(encoder).has_decoder
    except MissingResourceError:
        return False


def single_verdicts(
    columns: Mapping[str, Sequence[EncoderColumn]], seeds: Sequence[int]
) -> Mapping[str, Mapping[str, Mapping[int | None, Verdict]]]:
    """Per claim and encoder, what it would have decided alone, with each seed alone and (None) with all of them.

    The rest of the ledger, which Holm's adjustment is over, is as the same encoder and seed show it; claims that do
    not have the encoder are as those that decide them show them."""
    names = dict.fromkeys(one.encoder for found in columns.values() for one in found)
    result: dict[str, dict[str, dict[int | None, Verdict]]] = {name: {} for name in columns}
    for encoder in names:
        for place in (None, *range(len(seeds))):
            chosen = {name: _alone(found, encoder, place) for name, found in columns.items()}
            for name, verdict in verdicts(chosen).items():
                if any(one.encoder == encoder for one in columns[name]):
                    result[name].setdefault(encoder, {})[None if place is None else seeds[place]] = verdict
    return result


def _alone(columns: Sequence[EncoderColumn], encoder: str, place: int | None) -> list[Column]:
    """The columns of a claim if `encoder` decided, with the seed at `place` alone, or (None) with all of them."""
    own = [one for one in columns if one.encoder == encoder] or [one for one in columns if one.decides]
    return [Column(findings=one.findings if place is None else [one.findings[place]]) for one in own]
