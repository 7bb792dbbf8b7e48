"""Several seeds of one training run: each in its own folder, and the mean over them with its interval."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdgsec.experiments.bench.seeds_page import page
from fdgsec.experiments.bench.tables import mean_of
from fdgsec.experiments.report.accuracy import own_domain_accuracy, own_domain_majority_share
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import Federation, federate
from fdgsec.experiments.train import train
from fdgsec.federation.run_folder import reserved
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import Progressive


def train_seeds(
    config: RunConfig,
    seeds: Sequence[int],
    *,
    data_root: Path | None,
    out: Path | None,
    progress: Progressive,
    federation: Federation = federate,
    fresh: bool = False,
    engine: str = "local",
) -> dict[str, object]:
    """Train once per seed (`out`/seed0, ...) and give the summary, written as `out`/seeds.json and seeds.html.

    A seed that was interrupted goes on at the round that was kept, and a finished one is read back, unless `fresh`.
    `engine` names what `federation` is, with all that could change a run.
    Raises UsageError for fewer than two seeds, a seed named twice, or no rounds."""
    if len(seeds) < 2 or len(set(seeds)) != len(seeds) or not config.rounds:
        raise UsageError(f"several seeds need two or more, each once, and rounds to train; got {list(seeds)}.")
    with reserved(out, goes_on=("seeds.json", *(f"seed{seed}" for seed in seeds))):
        reports = []
        for number, seed in enumerate(seeds):
            progress.update("seeds", number, len(seeds))
            folder = None if out is None else out / f"seed{seed}"
            report = train(
                replace(config, seed=seed), data_root=data_root, out=folder, progress=progress, federation=federation,
                fresh=fresh, reuse=engine,
            )  # fmt: skip
            reports.append(report)
        found = summary(seeds, reports)
        if out is not None:
            write_atomic(out / "seeds.json", json.dumps(found, indent=1) + "\n")
            write_atomic(out / "seeds.html", page(found))
    return found


def summary(seeds: Sequence[int], reports: Sequence[AttackReport]) -> dict[str, object]:
    """What the reports of the `seeds`, one each, say together: the mean of each score, and the runs."""
    runs = [_run(seed, report) for seed, report in zip(seeds, reports, strict=True)]
    method, dataset = reports[0].method, reports[0].dataset
    return {
        "schema": 1, "method": method, "dataset": dataset["name"], "seeds": list(seeds),
        "defenses": [str(one["name"]) for one in reports[0].defenses],
        "guessing": reports[0].guessing, **_means(reports), "runs": runs,
    }  # fmt: skip


def _run(seed: int, report: AttackReport) -> dict[str, object]:
    accuracy: Mapping[str, Any] = report.accuracy or {}
    score = {name: accuracy[name] for name in ("value", "low", "high", "n")}
    return {"seed": seed, "accuracy": score, "own_domains": own_domain_accuracy(accuracy)}


def _means(reports: Sequence[AttackReport]) -> dict[str, object]:
    """Mean and Student's 95% interval of each score over the reports."""
    documents: list[Mapping[str, Any]] = [report.accuracy or {} for report in reports]
    first = documents[0]
    result: dict[str, object] = {"unseen_domain": first["unseen_domain"]}
    result["accuracy"] = _mean(documents)
    for name in ("auc", "f1"):
        values = [float(document[name]["value"]) for document in documents if name in document]
        if len(values) == len(documents) and all(map(math.isfinite, values)):  # an AUC needs two classes
            result[name] = mean_of(values).document()
    for name, key in (("validation_domain", "domain"), ("adapted", "adaptation")):
        if all(name in document and document[name][key] == first[name][key] for document in documents):
            result[name] = {key: first[name][key], **_mean([document[name] for document in documents])}
    own = [own_domain_accuracy(document) for document in documents]
    alike = all(document["per_domain"].keys() == first["per_domain"].keys() for document in documents)
    if None not in own and alike:  # else a mean over seeds would be one over different domains
        shares = [own_domain_majority_share(document) for document in documents]
        known = [{} if share is None else {"majority_share": share} for share in shares]
        result["own_domains"] = _mean([{"value": value, **each} for value, each in zip(own, known, strict=True)])
    if all("steps" in document for document in documents):
        names = ("per_client_and_round", "total")
        result["steps"] = {name: mean_of([document["steps"][name] for document in documents]).value for name in names}
    result["per_domain"] = {
        domain: _mean([document["per_domain"][domain] for document in documents])
        for domain in first["per_domain"]
        if all(domain in document["per_domain"] for document in documents)
    }
    return result


def _mean(scores: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """The mean of a score over seeds, and of the accuracy of always naming the most frequent class."""
    constant = [float(score["majority_share"]) for score in scores if "majority_share" in score]
    known = {"majority_share": sum(constant) / len(constant)} if len(constant) == len(scores) else {}
    return {**mean_of([float(score["value"]) for score in scores]).document(), **known}
