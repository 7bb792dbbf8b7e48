"""The page of several seeds of one training run: the mean of every score, and each seed with its own page's name."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.bench.web_page import mean_in_words, score_bar
from fdgsec.experiments.report.findings import PROCEDURAL
from fdgsec.experiments.report.pages import page as filled
from fdgsec.experiments.report.words import behind, rate

Row = Mapping[str, Any]


def page(found: Row) -> str:
    """A self-contained page of seeds.json."""
    method, dataset = found["method"], found["dataset"]
    return filled(
        "seeds.html", title=f"{method} trained on {dataset}, {len(found['seeds'])} seeds", method=method,
        contents=[("accuracy", "Accuracy"), ("runs", "Each seed")], sentence=sentence(found), scores=_scores(found),
        steps=_steps(found), constant=_constant(found), runs=[_run(run) for run in found["runs"]],
    ) + "\n"  # fmt: skip


def sentence(found: Row) -> str:
    """What the method reaches on the unseen domain, in how many seeds."""
    drawn = " (procedural images: no finding)" if found["dataset"] in PROCEDURAL else ""
    who = f"{found['method']}{behind(found.get('defenses', ()))}"
    reached = f"{who} reaches accuracy {mean_in_words(found['accuracy'])} on {found['unseen_domain']}"
    guessing = f"{_constant(found)} reaches {rate(found['accuracy'].get('majority_share', found['guessing']))}"
    return f"{reached}, which no client has{drawn}: the mean over {len(found['seeds'])} seeds; {guessing}."


def _constant(found: Row) -> str:
    """The answer at which bars of accuracies start; tables of earlier versions have no shares of classes."""
    known = "majority_share" in found["accuracy"]
    return "always naming the most frequent class of these images" if known else "guessing a class"


def _baseline(mean: Row, found: Row) -> float | None:
    """The accuracy of that answer; None for a score that does not say it."""
    if "majority_share" in found["accuracy"]:
        return mean.get("majority_share")
    return float(found["guessing"])


def _scores(found: Row) -> list[Mapping[str, object]]:
    unseen = found["unseen_domain"]
    named = [(unseen, "unseen domain", found["accuracy"])]
    if "adapted" in found:
        named.append((unseen, f"adapted to it: {found['adapted']['adaptation']}", found["adapted"]))
    if "validation_domain" in found:
        second = found["validation_domain"]
        named.append((second["domain"], "unseen, for choosing between models", second))
    named += [("own domains", "mean over them", found["own_domains"])] if "own_domains" in found else []
    named += [(domain, "clients' validation images", mean) for domain, mean in found["per_domain"].items()]
    bars = [score_bar(name, about, mean, baseline=_baseline(mean, found)) for name, about, mean in named]
    others = [(name, baseline) for name, baseline in (("auc", 0.5), ("f1", None)) if name in found]
    return bars + [
        score_bar(unseen, f"weighted {name.upper()}", found[name], baseline=baseline) for name, baseline in others
    ]


def _steps(found: Row) -> str:
    if "steps" not in found:
        return ""
    steps = found["steps"]
    return f"Optimizer steps per client and round: {steps['per_client_and_round']:,.4g}; in all: {steps['total']:,.0f}"


def _run(run: Row) -> Sequence[str]:
    score, own, seed = run["accuracy"], run["own_domains"], run["seed"]
    interval = "" if score["low"] is None else f"{score['low']:.3f} to {score['high']:.3f}"
    mean = "" if own is None else f"{own:.3f}"
    return str(seed), f"{score['value']:.3f}", interval, str(score["n"]), mean, f"seed{seed}/report.html"
