"""Judge harm: which forgeries are refused, and what the others cost the honest clients, paired by seed."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from fdgsec.metrics.interval import Interval
from fdgsec.metrics.intervals import bootstrap, paired_bootstrap
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Harm, Harmed
from fdgsec.threats.judging.groups import Group, Scale, row, unavailable
from fdgsec.threats.judging.permutation_tests import NullRow

PLAIN = Scale(chance=None, chance_kind="none", higher_is="descriptive")
NEVER = Scale(chance=0.0)
"""Of what cannot happen without the forgery: the honest run of the same seed finished."""
DROP = "honest_accuracy_drop"
UNTOUCHED = "nothing was forged: the client sends nothing of that kind here, or what it sends would be the same"


def measure_harm(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Judge one forgery over its seeds: refusals, accuracy lost, displacement, shares; or what an exchange made of it.

    Accuracy lost is honest minus hostile, paired by seed, over the runs that finished; without a forgery it is 0. Where
    the forgery ended others, unrefused, a drop that shows no harm is no evidence: it is that of the survivors."""
    entries = group.of(Harmed)
    found = [entry.truth.harm for entry in entries]
    harms = [harm for harm in found if harm is not None]
    if len(harms) < len(found):
        return unavailable([DROP], group.slice, f"nobody ran {entries[0].case.victim} both ways", n=len(found))
    if all(harm.none for harm in harms):
        return unavailable([DROP], group.slice, UNTOUCHED, n=len(harms))
    trained = entries[0].answer.of == "run"
    rows = _endings(group, harms) if trained or any(harm.hostile.ended for harm in harms) else []
    if trained:
        rows += _accuracies(group, harms, rng, repeats)
    return rows + _displacements(group, harms, rng, repeats) + _shares(group, harms, rng, repeats)


def _endings(group: Group, harms: Sequence[Harm]) -> list[Measurement]:
    """The shares of runs refused with the forger's name, of those that ended otherwise, and of those with a NaN."""
    counts = {
        "refused": ([harm.hostile.refused for harm in harms], PLAIN),
        "ended": ([_was_ended(harm) for harm in harms], NEVER),
        "not_finite": ([not harm.hostile.finite for harm in harms], PLAIN),
    }
    n = len(harms)
    return [
        row(name, group.slice, sum(hits) / n, clopper_pearson(sum(hits), n), n, scale)
        for name, (hits, scale) in counts.items()
    ]


def _was_ended(harm: Harm) -> bool:
    """Whether the forgery ended a run in which nobody refused it: the federation lost the run, and not the forger."""
    return bool(harm.hostile.ended) and not harm.hostile.refused


def _accuracies(group: Group, harms: Sequence[Harm], rng: torch.Generator, repeats: int) -> list[Measurement]:
    """The accuracy lost, and the accuracies of both runs, by the images that they were measured on."""
    finished = [harm for harm in harms if harm.hostile.accuracy]
    if not finished:
        ended = next((harm.hostile.ended for harm in harms if harm.hostile.ended), "")
        why = f"the run ended: {ended}" if ended else "the run trains nothing; give --rounds 1 or more"
        return unavailable([DROP], group.slice, why, n=len(harms))
    made, n = list[Measurement](), len(finished)
    lost = sum(map(_was_ended, harms))
    unread = f"{lost} of {len(harms)} runs were ended by the forgery" if lost else ""
    for name in finished[0].hostile.accuracy:
        before = [harm.honest.accuracy[name] for harm in finished]
        after = [harm.hostile.accuracy[name] for harm in finished]
        where, draws = {**group.slice, "on": name}, child(rng, DROP, name)
        interval = paired_bootstrap(before, after, rng=draws, repeats=repeats, bounds=(-1.0, 1.0)) if n > 1 else None
        drop = sum(first - second for first, second in zip(before, after, strict=True)) / n
        made.append(replace(row(DROP, where, drop, interval, n, Scale(chance=0.0)), unread=unread))
        blind = replace(PLAIN, chance=finished[0].blind[name], chance_kind="exact")
        for run, values in {"honest": before, "hostile": after}.items():
            interval = _mean(values, 1.0, child(draws, run), repeats)
            made.append(row("accuracy", {**where, "run": run}, sum(values) / n, interval, n, blind))
    return made


def _displacements(group: Group, harms: Sequence[Harm], rng: torch.Generator, repeats: int) -> list[Measurement]:
    """The relative L2 displacement by what was moved, averaged over the seeds in which it is finite."""
    names = dict.fromkeys(name for harm in harms for name in harm.displacement)
    made = []
    for name in names:
        values = [harm.displacement[name] for harm in harms if name in harm.displacement]
        interval = _mean(values, math.inf, child(rng, "displacement", name), repeats)
        where = {**group.slice, "of": name}
        made.append(row("displacement", where, sum(values) / len(values), interval, len(values), PLAIN))
    return made


def _shares(group: Group, harms: Sequence[Harm], rng: torch.Generator, repeats: int) -> list[Measurement]:
    """The forger's weight and the shares of picked rows, in the runs that have them, with and without the forgery."""
    made = []
    for name in dict.fromkeys(name for harm in harms for name in harm.hostile.numbers):
        for run in ("honest", "hostile"):
            outcomes = [harm.honest if run == "honest" else harm.hostile for harm in harms if not harm.hostile.ended]
            values = [outcome.numbers[name] for outcome in outcomes if name in outcome.numbers]
            if values:
                interval = _mean(values, 1.0, child(rng, name, run), repeats)
                where = {**group.slice, "run": run}
                made.append(row(name, where, sum(values) / len(values), interval, len(values), PLAIN))
    return made


def _mean(values: Sequence[float], most: float, rng: torch.Generator, repeats: int) -> Interval | None:
    """The interval of a mean of values from 0 to `most`; None for a single value, or for equal unbounded ones."""
    same = max(values) - min(values) <= 1e-12 * max(1.0, abs(max(values)))
    if len(values) < 2 or (same and math.isinf(most)):
        return None
    return bootstrap(values, rng=rng, repeats=repeats, bounds=(0.0, most))


def harm_test(group: Group, permutations: int) -> NullRow | None:
    """Compare runs with forgeries that change nothing: p is 1 where every pair is the same to the byte, else the least.

    Nothing is left to chance between two such runs, so one that differs is a fault, however little it does."""
    found = [entry.truth.harm for entry in group.of(Harmed)]
    harms = [harm for harm in found if harm is not None]
    if not harms or len(harms) < len(found):
        return None
    same = sum(harm.none for harm in harms)
    p_value = 1.0 if same == len(harms) else 1 / (permutations + 1)
    return NullRow(
        name="differing_runs", value=1 - same / len(harms), p_value=p_value, n=len(harms), slice=group.slice,
        permutations=permutations,
    )  # fmt: skip
