"""Every stack of two defenses on every kind of message: refused, or audited where it states a guarantee.

    python -m benchmarks.defense_stacks            # singles, ordered pairs, 40 triples; goes on where it stopped
    python -m benchmarks.defense_stacks --table    # write the matrix into docs/defenses.md

A line of benchmarks/results/defense-stacks.jsonl is one stack on one kind of message: why it is refused; or the largest
relative change of a number between what the method made and what leaves the client, the guarantee as it is printed, and
an audit of it (`fdgsec audit`'s, 100 messages with a canary and 100 without, or one training on 256 canaries; 99%
confidence; a bound above its claim is measured again with 2,000 messages of each). Models are audited on a network of
12 weights. Ends with 1 if a bound lies above its claim, or a raw artifact leaves under a guarantee."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.written_tables import write_table
from fdgsec.experiments.audit.many_runs import audit_canaries
from fdgsec.experiments.audit.message_canaries import canaries_of
from fdgsec.experiments.audit.neighboring_clients import Release, Site, numbers, releases_of, worlds_of
from fdgsec.experiments.audit.noise_checks import small
from fdgsec.experiments.audit.one_run import GradientCanaries, audited
from fdgsec.experiments.audit.run_audit import AuditPlan, audit_settings, claimed, site_of
from fdgsec.experiments.run_config import RunConfig, defense_of
from fdgsec.federation.defense import Defense, TrainsPrivately
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Step
from fdgsec.privacy.epsilon_bounds import AuditResult
from fdgsec.privacy.ledger import Guarantee
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.progress import NoProgress

RESULTS = Path(__file__).parent / "results" / "defense-stacks.jsonl"
DELTA = 1e-5
RUNS, AGAIN, CANARIES, GUESSES, CONFIDENCE = 100, 2000, 256, 128, 0.99
TRIPLES = 40
DEFENSES: Mapping[str, str] = {
    "PS": "private-styles:epsilon=4", "PS0": "private-styles:epsilon=inf,clip=1e9", "PSC": "private-styles:unit=client",
    "SN": "style-noise:p=0.1,scale=0.05", "KA": "k-anonymous:k=2", "Q": "quantize", "SH": "shuffle",
    "SA": "secure-aggregation", "G": "guards", "SGD": "dp-sgd:epsilon=4", "FA": "dp-fedavg", "SC": "private-scores",
}  # fmt: skip
"""The bundled defenses by the matrix's abbreviations; private-styles three times."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of message: a target that sends it, its rounds, and the step in which it does."""

    target: str
    step: Step = "share"
    rounds: int = 0
    assignments: Sequence[str] = ()


KINDS: Mapping[str, Kind] = {
    "pooled styles": Kind(target="ccst-overall"), "rows": Kind(target="ccst-single"),
    "color rows": Kind(target="fedalign", rounds=1), "spectra": Kind(target="feddg"),
    "a distribution": Kind(target="stablefdg", rounds=1), 
    "models": Kind(
        target="fedavg", step="fit", rounds=1, assignments=(f"method.plan.batch_size={CANARIES}",)
    ),
    "scores": Kind(target="feddag-dp", step="review", rounds=1),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """A client that sends one kind of message, without defenses, and what it sends."""

    config: RunConfig
    site: Site
    release: Release

    @classmethod
    def of(cls, kind: Kind) -> "Bench":
        """With few images of shapes."""
        given: dict[str, object] = {
            "dataset": "shapes", "per_domain": 20, "image_size": 32, "encoder": "pixels", "norm": "group",
            "rounds": kind.rounds, "defenses": (),
        }  # fmt: skip
        plan = AuditPlan(canaries=CANARIES)
        config = audit_settings(kind.target, given, plan, assignments=kind.assignments)
        site = site_of(config, plan, data_root=None, progress=NoProgress())
        every = [releases[0] for releases in releases_of(site)]
        return cls(config=config, site=site, release=next(one for one in every if one.step == kind.step))

    def outcome(self, names: Sequence[str]) -> dict[str, object]:
        """Send the message under a stack: refused and why, or what leaves and the audit of its guarantee."""
        defenses = tuple(defense_of(DEFENSES[name]) for name in names)
        stack = replace(self.site.defense_stack, defenses=defenses, name="stack " + " ".join(names))
        try:
            stack.check(self.site.method)
            return self._accepted(defenses, stack)
        except FdgsecError as error:
            return {"refused": str(error)}

    def _accepted(self, defenses: Sequence[Defense], stack: DefenseStack) -> dict[str, object]:
        trains = self.release.step == "fit" and any(isinstance(one, TrainsPrivately) for one in defenses)
        site = replace(self.site, defense_stack=stack)
        if trains:
            return {"changed": None, **_stated(*self._training(site))}
        release = small(self.release)
        sent, uses = release.sent(stack)
        changed = _change(numbers(release.artifact), numbers(sent))
        if not uses:
            return {"changed": changed}
        guarantee = claimed(replace(self.config, defenses=tuple(defenses)), site, [release], [uses], DELTA)
        assert guarantee.relation is not None
        canaries = canaries_of(site, release, uses, guarantee.unit)
        worlds = [worlds_of(canary, [release], guarantee.relation) for canary in canaries]
        bound = audit_canaries(worlds, stack, guarantee, runs=RUNS, confidence=CONFIDENCE, name=f"audit {RUNS}")
        if bound.exceeded:
            bound = audit_canaries(worlds, stack, guarantee, runs=AGAIN, confidence=CONFIDENCE, name=f"audit {AGAIN}")
        return {"changed": changed, **_stated(guarantee, bound)}

    def _training(self, site: Site) -> tuple[Guarantee, AuditResult]:
        canaries = GradientCanaries(site=site, count=CANARIES)
        stack = site.defense_stack
        costs = canaries.observed(torch.zeros(CANARIES, dtype=torch.bool), replace(stack, name="claim")).uses
        guarantee = claimed(replace(self.config, defenses=tuple(stack.defenses)), site, [self.release], costs, DELTA)
        bound = audited(canaries, stack, guarantee, guesses=GUESSES, confidence=CONFIDENCE, seed=0, repeat=0)
        return guarantee, bound


def _stated(guarantee: Guarantee, bound: AuditResult) -> dict[str, object]:
    return {
        "guarantee": guarantee.line(), "claim": guarantee.epsilon, "bound": bound.lower_bound,
        "ceiling": bound.ceiling, "exceeded": bound.exceeded,
    }  # fmt: skip


def _change(raw: Tensor, sent: Tensor) -> float | None:
    """The largest difference of two numbers in units of the largest raw one (1 if all are 0); None for other shapes."""
    return float((raw - sent).abs().max()) / (float(raw.abs().max()) or 1.0) if raw.shape == sent.shape else None


def stacks() -> Iterator[tuple[str, ...]]:
    """Every defense alone, every ordered pair, and a sample of triples, each once."""
    yield from ((name,) for name in DEFENSES)
    yield from product(DEFENSES, DEFENSES)
    names, rng = list(DEFENSES), torch.Generator().manual_seed(0)
    triples = set[tuple[str, ...]]()
    while len(triples) < TRIPLES:
        triple = tuple(names[int(place)] for place in torch.randperm(len(names), generator=rng)[:3])
        if triple not in triples:
            triples.add(triple)
            yield triple


def rows() -> list[dict[str, Any]]:
    """All outcomes so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []


def faults(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Bounds above their claims, and raw artifacts under a guarantee."""
    return [
        f"{' then '.join(row['stack'])} on {row['kind']}"
        for row in found
        if row.get("exceeded") or (row.get("guarantee") and row["changed"] == 0)
    ]


def cell(found: Sequence[Mapping[str, Any]]) -> str:
    """A stack over all kinds: refused, `-` without a guarantee, or the largest bound of an audit over its claim."""
    if all("refused" in row for row in found):
        return "refused"
    audits = [row for row in found if "bound" in row]
    worst = max(audits, key=lambda row: row["bound"] / row["claim"], default=None)
    return "-" if worst is None else f"{worst['bound']:.1f} / {worst['claim']:.3g}"


def table() -> str:
    """Markdown: the first defense by row, the second by column."""
    every = rows()
    by_stack: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in every:
        by_stack.setdefault(tuple(row["stack"]), []).append(row)
    lines = [f"| first, then | alone | {' | '.join(DEFENSES)} |", "|---" * (len(DEFENSES) + 2) + "|"]
    for one in DEFENSES:
        pairs = [(one,), *((one, other) for other in DEFENSES)]
        lines.append(f"| {one} | {' | '.join(cell(by_stack.get(pair, [])) for pair in pairs)} |")
    stated = [row for row in every if "bound" in row]
    refused = sum("refused" in row for row in every)
    plain, planned = len(every) - refused - len(stated), len(KINDS) * len(list(stacks()))
    counts = f"{refused} refused, {plain} accepted without a guarantee, {len(stated)} audited"
    lines += ["", f"{len(every)} of {planned} stacks on messages: {counts}, {len(faults(every))} at fault."]
    return "\n".join(lines)


def main() -> None:
    """Try the stacks that are missing, and print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--table", action="store_true")
    told = parser.parse_args()
    torch.set_num_threads(1)
    done = {(row["kind"], tuple(row["stack"])) for row in rows()}
    for name in () if told.table else told.only or KINDS:
        bench = Bench.of(KINDS[name])
        for stack in stacks():
            if (name, stack) not in done:
                found = {"kind": name, "stack": list(stack), **bench.outcome(stack)}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(found) + "\n")
    print(table())
    if told.table:
        write_table("defenses.md", "defense stacks", table())
    for fault in faults(rows()):
        print(f"at fault: {fault}")
    sys.exit(1 if faults(rows()) else 0)


if __name__ == "__main__":
    main()
