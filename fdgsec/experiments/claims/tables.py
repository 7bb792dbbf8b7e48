"""The claims ledger as text: its cells, which the web page shares, and Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fdgsec.experiments.claims.verdicts import Criterion
from fdgsec.experiments.report.findings import PROCEDURAL
from fdgsec.experiments.report.text_tables import markdown_table
from fdgsec.experiments.report.words import CONTROL_WORDS, MEASURE_WORDS
from fdgsec.metrics.effect_sizes import margin_of

OVERVIEW = ("Claim", "Verdict", "The paper's words", "Decided by", "Measured, median seed", "Baseline", "Holm's p")
SEEDS = ("Encoder", "Seed", "Measured", "Baseline", "n", "p", "Where", "Alone")
OTHERWISE = ("Claim", "Verdict", "Would have decided otherwise")
BEYOND = ("Encoder", "Seed", "Measured", "Baseline", "n", "Where")
PARTIES = {"server": "the server", "client": "a client", "outsider": "an outsider"}
LEAST_SHOWN = 1e-3
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def criterion_text(row: Criterion, *, compared: bool = False) -> str:
    """A criterion in words, as the attack must meet it against the claim."""
    margin = margin_of(row.measurement) if row.margin is None else row.margin
    words = {
        "twice": "> twice the baseline", "tenth": "< nine tenths of the baseline", 0: "> baseline",
        "half": "> half way from the baseline to a perfect attack",
    }  # fmt: skip
    over = f"less than {margin} lower" if compared else words.get(margin, f"> baseline + {margin}")
    if row.over:
        control = ", ".join(f"{key} {value}" for key, value in row.over.items() if value != "")
        over = f"> that of {control} + {margin}"
    where = [f"{key} {value}" if value != "" else f"no {key}" for key, value in row.where.items()]
    where += [f"{key} not {value}" for key, value in row.without.items()]
    return f"{row.measurement} {over}" + (f" ({', '.join(where)})" if where else "")


def number(value: float | None) -> str:
    """A number with three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}"


def measured(row: Mapping[str, Any]) -> str:
    """The number of a seed with its interval, and its difference from what it is held against; a dash for none."""
    if row.get("value") is None:
        return "-"
    shown = f"{number(row['value'])} [{number(row['low'])}, {number(row['high'])}]"
    differences = {"lower by": row.get("gap"), "over its control by": row.get("excess")}
    told = [
        f"; {words} {number(found['value'])} [{number(found['low'])}, {number(found['high'])}]"
        for words, found in differences.items()
        if found is not None
    ]
    name = str(row.get("measurement") or "")
    return f"{MEASURE_WORDS.get(name, name)} {shown}".lstrip() + "".join(told)


def probability(value: float | None) -> str:
    """A p-value with three digits, or that it is below .001."""
    return "<.001" if value is not None and value < LEAST_SHOWN else number(value)


def population(row: Mapping[str, Any]) -> str:
    """The slice of a row in words."""
    return ", ".join(f"{key} {CONTROL_WORDS.get(str(value), value)}" for key, value in (row.get("slice") or {}).items())


def deciding(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The columns of the encoders that decide a claim."""
    return [column for column in claim.get("columns", ()) if column["decides"]]


def median_seed(claim: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the first deciding encoder, the seed with the median value; empty where there is none."""
    shown = [seed for column in deciding(claim)[:1] for seed in column["seeds"] if seed["value"] is not None]
    shown.sort(key=lambda seed: seed["value"])
    return shown[(len(shown) - 1) // 2] if shown else {}


def overview(document: Mapping[str, Any]) -> Table:
    """One row per claim."""
    rows = []
    for claim in document["claims"]:
        seed = median_seed(claim)
        rows.append((
            claim["id"], claim["verdict"],
            f"{claim['paper']} {claim['section']}: " + " ".join(f'"{quote}"' for quote in claim["quotes"]),
            ", ".join(column["encoder"] for column in deciding(claim)) or "-", measured(seed),
            number(seed.get("chance")), probability(claim.get("adjusted_p_value")),
        ))  # fmt: skip
    return OVERVIEW, rows


def otherwise(document: Mapping[str, Any]) -> Table:
    """One row per testable claim: the encoders and seeds that alone would have decided otherwise."""
    rows = []
    for claim in document["claims"]:
        if "columns" in claim:
            said = [
                f"{one['encoder']}, {'all seeds' if one['seed'] is None else 'seed ' + str(one['seed'])}: "
                f"{one['verdict']}"
                for one in claim["otherwise"]
            ]
            rows.append((claim["id"], claim["verdict"], "; ".join(said) or "none"))
    return OTHERWISE, rows


def seed_rows(claim: Mapping[str, Any]) -> Table:
    """One row per encoder and seed."""
    alone = {(one["encoder"], one["seed"]): one["verdict"] for one in claim["otherwise"]}
    rows = []
    for column in claim["columns"]:
        name = column["encoder"] + ("" if column["decides"] else " (does not decide)")
        for seed in column["seeds"]:
            verdict = alone.get(
                (column["encoder"], seed["seed"]), claim["verdict"] if seed["value"] is not None else "-"
            )
            where = f"{population(seed)} (of {seed['populations']})" if seed["value"] is not None else "-"
            p_value = probability(seed["chance_p_value"])
            controls = "" if seed["controlled"] or seed["value"] is None else "; a control failed"
            rows.append((
                name, str(seed["seed"]), measured(seed), number(seed["chance"]), number(seed["n"]), p_value,
                where + controls, verdict,
            ))  # fmt: skip
    return SEEDS, rows


def beyond_text(note: Mapping[str, Any]) -> str:
    """What a number beyond a claim says, and whether any run measured it."""
    told = f"({note['attack']} on {note['target']}): {note['says']}."
    return told if note["rows"] else f"{told} No run measured it."


def beyond_rows(note: Mapping[str, Any]) -> Table:
    """One row per encoder and seed of a number beyond a claim."""
    rows = [
        (
            row["encoder"], str(row["seed"]), measured(row), number(row["chance"]), number(row["n"]), population(row)
        )
        for row in note["rows"]
    ]  # fmt: skip
    return BEYOND, rows


def facts(claim: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the ledger says about a claim, by heading."""
    if claim["context"]:
        yield "Its context", " ".join(f'"{sentence}"' for sentence in claim["context"])
    if claim["holds_if"]:
        yield "Holds if", claim["holds_if"]
    for key, about in (claim["scope"] or {}).items():
        yield {"sharing": "Shared", "clients": "Clients", "attacker": "Attacker"}[key], f"{about}."
    if claim["criteria"]:
        yield "Attack", f"{claim['attack']} by {PARTIES[claim['adversary']]} on {claim['target']}."
        yield "Speaks against it", "all of: " + "; ".join(claim["criteria"]) + "."
    if claim["compared"]:
        yield "Compared with", f"{claim['compared']}."
    if claim["decided_by"]:
        yield "Decided by", f"{claim['decided_by']}."
    if claim.get("reason"):
        yield "Note", f"{claim['reason']}."


def registration_text(document: Mapping[str, Any]) -> str:
    """Which registration the run had, in a sentence."""
    found = document["registration"]
    if found is None:
        return "This run was not registered beforehand."
    code = "with the code of the registration" if found["same_code"] else "with other code than when it was registered"
    return (
        f"Registered in {found['file']}, commit {found['commit']}, ledger and rules SHA-256 "
        f"{found['ledger_sha256']}; run {code}."
    )


def mechanics(document: Mapping[str, Any]) -> str:
    """That verdicts on drawn images say nothing about a paper, in a sentence; empty for real images."""
    dataset = document["dataset"]
    if dataset not in PROCEDURAL:
        return ""
    return f"Mechanics only: {dataset} is procedural, so these verdicts are no finding about a paper."


def legend(document: Mapping[str, Any]) -> str:
    """How to read verdicts and numbers."""
    seeds, agree = len(document["seeds"]), document["agreeing"]
    return (
        f"Contradicted: with {agree} of {seeds} seeds some population's intervals lie beyond baseline and margin, and "
        "p-values of no better than the baseline hold after Bonferroni over populations, for any dependence between "
        f"seeds, and Holm over the testable claims of this run. Supported: with {agree} of {seeds} seeds all "
        "populations' intervals lie on the other side, and all controls passed. Undecided: neither. Each number is "
        "that of the weakest criterion in the population that speaks most against the claim; intervals are 95%; p is "
        "that of no better than the baseline. Alone: the verdict that this encoder and seed would have given. Numbers "
        "beyond a claim enter no verdict"
        f"{'.' if document.get('beyond', True) else ', and are shown where they are of runs that decide one.'}"
    )


def title(document: Mapping[str, Any]) -> str:
    """The heading of the document."""
    named = ", ".join(map(str, document["seeds"]))
    seeds = f"seed {named}" if len(document["seeds"]) == 1 else f"seeds {named}"
    return f"Claims on {document['dataset']} ({document['profile']}, {', '.join(document['encoders'])}, {seeds})"


def markdown(document: Mapping[str, Any]) -> str:
    """The ledger: an overview, what would have decided otherwise, and every claim with all its numbers."""
    lines = [f"# {title(document)}", "", *([said, ""] if (said := mechanics(document)) else [])]
    lines += [registration_text(document), "", legend(document), ""]
    lines += [*_lines(overview(document)), "", "## Which encoder and seed would have decided otherwise", ""]
    lines += [*_lines(otherwise(document)), ""]
    for claim in document["claims"]:
        lines += [f"## {claim['id']}", "", f"{claim['paper']}, {claim['section']}:", ""]
        lines += [f'> "{quote}"' for quote in claim["quotes"]]
        lines += ["", f"Verdict: **{claim['verdict']}**", ""]
        lines += [f"* {name}: {text}" for name, text in facts(claim)] + [""]
        if "columns" in claim:
            lines += [*_lines(seed_rows(claim)), "", "```sh", claim["command"], "```", ""]
        for note in claim["beyond"]:
            lines += [f"Beyond the claim {beyond_text(note)}", ""]
            lines += [*_lines(beyond_rows(note)), ""] if note["rows"] else []
    return "\n".join(lines)


def _lines(table: Table) -> list[str]:
    return markdown_table(*table).splitlines()
