"""How often does a report say "leaks" where nothing can leak? Measured: real attacks, real judge, redrawn truths.

    python -m benchmarks.null_calibration                   # 200 reports, goes on where it stopped
    python -m benchmarks.null_calibration --summary         # of the reports that are stored

Per target and seed a run is attacked as `fdgsec attack` does it. Then the truth about every case is drawn anew,
independently of what was released: which candidates the rows are of, which are members, which client is whose partner,
and among cases of one slice whose labels, shares and statistics are whose. No answer depends on that truth. The judge
measures the answers against it with its own intervals and p-values, and Holm's procedure runs over the report's rows.
A run is shared by `--redraws` reports, whose truths are drawn independently; the interval of the share is that for
these runs.

Left out are sizes inferred by pool-exposure, which are part of a case's slice and cannot be redrawn, and whole clients
recovered by differencing: another client's mean of images from the same pool is close to the true one, so that an
exchange leaves something to learn."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fdgsec.experiments.attack.attack_context import attack_context_of
from fdgsec.experiments.attack.attack_setting import AttackSetting
from fdgsec.experiments.attack.loop import attack_named, reason_to_skip
from fdgsec.experiments.attack.run_attacks import prepare_style_view
from fdgsec.experiments.report.multiplicity import adjusted
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.run_config import RunConfig, attack_settings
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.experiments.setup.run_inputs import attackable, attacked_clients, load_world, method_of, model_of, roles_of
from fdgsec.metrics.measurement import LEVEL, Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.answers import InferredSize, Labels, Recovered
from fdgsec.threats.attack import Answers, Attack, Case, Truth

RESULTS = Path(__file__).parent / "results" / "null-calibration.jsonl"
TARGETS = ("ccst-overall", "ccst-single", "fedalign", "fisc", "stablefdg")
ATTACKS = (
    "reidentification", "membership", "set-reconstruction", "differencing", "linkage", "label-inference",
    "domain-inference",
    "property-inference", "pool-exposure",
)  # fmt: skip
OPTIONS = (
    "attacks.membership.sizes=[20]", "attacks.membership.clients=12",
    "attacks.set-reconstruction.sizes=[20]", "attacks.set-reconstruction.clients=12", "attacks.linkage.clients=10",
    "attacks.label-inference.folds=2",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Answered:
    """One attack's answers about the cases of a run."""

    attack: str
    answers: Answers
    cases: Sequence[Case]
    truths: Sequence[Truth]


def settings_of(target: str, seed: int) -> RunConfig:
    """The settings of a small report on generated images."""
    given = {"dataset": "shapes", "per_domain": 84, "image_size": 32, "seed": seed}
    return attackable(attack_settings(target, given, assignments=OPTIONS))


def setting_of(config: RunConfig) -> AttackSetting:
    """Run the target once, and give what its attacks share."""
    method, progress = method_of(config), NoProgress()
    world = load_world(config, data_root=None, progress=progress)
    roles = roles_of(world, config)
    clients = attacked_clients(world, roles, config, method)
    model = model_of(config, method, len(world.dataset.class_names)) if method.shares == "every" else None
    stack = defense_stack_of(config, method)
    view = prepare_style_view(config, world, method, model, fresh=False, progress=progress)
    observed = observe(
        method, clients, seed=config.seed, name="run", model=model, defense_stack=stack, delta=config.delta
    )
    context = attack_context_of(config, world, roles, method, clients, observed, model, view, stack, progress)
    return AttackSetting.of(context)


def answered(attack: Attack, setting: AttackSetting) -> Answered | None:
    """The attack's answers; None where it does not apply."""
    if reason_to_skip(attack, setting.target, setting.facts.artifact_kinds, setting.adversary):
        return None
    try:
        pairs = [pair for asked in attack.plan(setting.facts) for pair in setting.questions.cases(asked, attack)]
    except UsageError:
        return None
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]
    answers = attack.run(cases, setting.knowledge, stream(setting.seed, "attack", attack.name))
    kept = [
        answer
        for answer in answers
        if not isinstance(answer, InferredSize)
        and not (isinstance(answer, Recovered) and cases[answer.case].question == "resampled_clients")
    ]
    return Answered(attack=attack.name, answers=kept, cases=cases, truths=truths) if kept else None


def redrawn(found: Answered, rng: torch.Generator) -> list[Truth]:
    """Truths of the same kind that are independent of the answers."""
    truths = [
        _within(case, truth, child(rng, "case", i))
        for i, (case, truth) in enumerate(zip(found.cases, found.truths, strict=True))
    ]
    populations: dict[tuple[object, ...], list[int]] = {}
    for number, case in enumerate(found.cases):
        where = sorted((key, value) for key, value in case.slice.items() if case.question != "released")
        populations.setdefault((case.question, *where), []).append(number)
    for place, numbers in enumerate(populations.values()):
        order = torch.randperm(len(numbers), generator=child(rng, "cases", place)).tolist()
        givers = [truths[numbers[other]] for other in order]
        for number, giver in zip(numbers, givers, strict=True):
            truths[number] = _exchanged(truths[number], giver)
    if any(isinstance(answer, Labels) and answer.of == "domains" for answer in found.answers):
        return _with_domains_exchanged(found.cases, truths, child(rng, "domains"))
    return truths


def _within(case: Case, truth: Truth, rng: torch.Generator) -> Truth:
    """Draw candidates anew, and permute what belongs to the released rows."""
    if truth.members is not None:
        truth = replace(truth, members=_permuted(truth.members, child(rng, "members")))
    if truth.rows is not None and case.candidates is not None:
        drawn = torch.randperm(len(case.candidates), generator=child(rng, "rows"))[: len(truth.rows)]
        truth = replace(truth, rows=drawn, images=None if truth.images is None else case.candidates.pixels(drawn))
    order = child(rng, "labels"), child(rng, "statistic")
    return replace(
        truth,
        labels=None if truth.labels is None else _permuted(truth.labels, order[0]),
        statistic=None if truth.statistic is None else _permuted(truth.statistic, order[1]),
    )


def _permuted(values: Tensor, rng: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=rng)]


def _exchanged(truth: Truth, giver: Truth) -> Truth:
    """Take from another case of the slice what is about the whole client, or about its only row."""
    single = truth.statistic is not None and len(truth.statistic) == 1
    return replace(
        truth, partner=giver.partner, alike=giver.alike, proportions=giver.proportions,
        domain_shares=giver.domain_shares, statistic=giver.statistic if single else truth.statistic,
    )  # fmt: skip


def _with_domains_exchanged(cases: Sequence[Case], truths: Sequence[Truth], rng: torch.Generator) -> list[Truth]:
    """Permute the domains of all rows of a question, since those of one case are the same."""
    changed = list(truths)
    for question in dict.fromkeys(case.question for case in cases):
        mine = [i for i, case in enumerate(cases) if case.question == question]
        domains = [(i, part) for i in mine if (part := truths[i].domains) is not None]
        if domains:
            everything = torch.cat([part for _, part in domains])
            drawn = everything[torch.randperm(len(everything), generator=child(rng, question))]
            for (i, _), part in zip(domains, drawn.split([len(part) for _, part in domains]), strict=True):
                changed[i] = replace(changed[i], domains=part)
    return changed


def judged(found: Sequence[Answered], setting: AttackSetting, redraw: int) -> list[tuple[str, Measurement]]:
    """The judged rows of one report, corrected as in any other."""
    results = []
    for one in found:
        rng = stream(setting.seed, "world", "null calibration", redraw, one.attack)
        rows = setting.judge.measure(one.answers, one.cases, redrawn(one, child(rng, "truth")), child(rng, "judge"))
        results.append(AttackResult(name=one.attack, adversary={}, status="done", measurements=rows))
    return [(result.name, row) for result in adjusted(results) for row in result.measurements if row.judged]


def document(target: str, seed: int, redraw: int, rows: Sequence[tuple[str, Measurement]]) -> dict[str, object]:
    """What is kept of a report: its least p-values, and every row whose interval excludes chance."""
    by_interval = [(attack, row) for attack, row in rows if row.p_value is not None and row.p_value <= LEVEL / 2]
    counts: dict[str, int] = {}
    for attack, row in rows:
        counts[f"{attack} {row.name}"] = counts.get(f"{attack} {row.name}", 0) + 1
    return {
        "target": target, "seed": seed, "redraw": redraw, "rows": len(rows), "counts": counts,
        "leaks": sum(row.leaks for _, row in rows),
        "excluding": [
            {
                "attack": attack, "name": row.name, "slice": dict(row.slice), "value": row.value, "low": row.low,
                "high": row.high, "chance": row.chance, "n": row.n, "p": row.p_value, "holm": row.adjusted_p_value,
            }
            for attack, row in by_interval
        ],
    }  # fmt: skip


def stored(path: Path) -> list[dict[str, object]]:
    """The reports of earlier calls."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(reports: Sequence[dict[str, object]]) -> list[str]:
    """The share of reports with a false "leaks", with and without Holm, and the share of rows by measurement."""
    runs = {(report["target"], report["seed"]) for report in reports}
    lines = [f"{len(reports)} reports of {len(runs)} runs, {sum(_int(r['rows']) for r in reports)} judged rows"]
    for name, key in (("after Holm", "leaks"), ("by intervals alone", "excluding")):
        alarms = sum(bool(report[key]) for report in reports)
        interval, share = clopper_pearson(alarms, len(reports)), alarms / len(reports)
        lines.append(
            f"reports with a false leak, {name}: {share:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
            + (f", nominal at most {LEVEL:g}" if key == "leaks" else "")
        )
    totals: dict[str, list[int]] = {}
    for report in reports:
        counts, excluding = report["counts"], report["excluding"]
        assert isinstance(counts, dict)
        assert isinstance(excluding, list)
        for name, count in counts.items():
            totals.setdefault(name, [0, 0])[1] += count
        for row in excluding:
            totals[f"{row['attack']} {row['name']}"][0] += 1
    lines.append("rows whose interval excludes chance (nominal .025):")
    for name, (hits, n) in sorted(totals.items(), key=lambda item: -item[1][0] / item[1][1]):
        interval = clopper_pearson(hits, n)
        lines.append(f"  {name}: {hits / n:.4f} [{interval.low:.4f}, {interval.high:.4f}], n = {n}")
    return lines


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def main() -> None:
    """Make the reports that are missing, and print the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS, choices=TARGETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--redraws", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true", help="print the stored reports' summary only")
    told = parser.parse_args()
    done = {(one["target"], one["seed"], one["redraw"]) for one in stored(told.out)}
    for seed in range(0 if told.summary else told.seeds):
        for target in told.targets:
            missing = [draw for draw in range(told.redraws) if (target, seed, draw) not in done]
            if not missing:
                continue
            begun = time.monotonic()
            config = settings_of(target, seed)
            setting = setting_of(config)
            found = [one for name in ATTACKS if (one := answered(attack_named(name, config), setting)) is not None]
            with told.out.open("a") as out:
                for draw in missing:
                    out.write(json.dumps(document(target, seed, draw, judged(found, setting, draw))) + "\n")
            print(f"{target} {seed}: {time.monotonic() - begun:.1f} s", flush=True)
    print("\n".join(summary(stored(told.out))))


if __name__ == "__main__":
    main()
