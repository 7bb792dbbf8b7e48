"""Evaluation of a trained model: accuracy, weighted AUC and F1 on the unseen domain, accuracy on the sources, and the
optimizer steps that led to it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.global_model import GlobalModel
from fdgsec.metrics.accuracy import classification
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.metrics.roc import majority_share
from fdgsec.nn.training.test_time_adaptation import Tent, tent_predictions
from fdgsec.nn.training.training_loop import logits, predictions
from fdgsec.runtime.random_streams import stream


def accuracy_document(
    model: GlobalModel,
    unseen: DomainDataset,
    validation: Mapping[str, DomainDataset],
    *,
    second: DomainDataset | None = None,
    frozen: str = "none",
) -> dict[str, object]:
    """Accuracy (Clopper-Pearson), weighted AUC and F1 on `unseen`, and accuracy per domain on `validation`.

    Beside each accuracy stands "majority_share": that of always naming the most frequent class of those images.
    `second` is LTDO's validation domain, on which no client trains. `frozen` is the last part of the network that
    the plan freezes: its outputs may be recalled from the cache (fdgsec/nn/training/frozen_maps.py)."""
    network = model.module()
    name = _named(unseen)
    judged = classification(logits(network, unseen.pixels(), frozen=frozen), unseen.labels)
    others = {key: {"value": value, "n": len(unseen)} for key, value in judged.items() if key != "accuracy"}
    interval = clopper_pearson(round(judged["accuracy"] * len(unseen)), len(unseen))
    accuracy = {"value": judged["accuracy"], "low": interval.low, "high": interval.high, **_counted(unseen)}

    def measured(dataset: DomainDataset) -> dict[str, object]:
        correct = int((predictions(network, dataset.pixels(), frozen=frozen) == dataset.labels).sum())
        interval = clopper_pearson(correct, len(dataset))
        return {"value": correct / len(dataset), "low": interval.low, "high": interval.high, **_counted(dataset)}

    per_domain = {domain: measured(images) for domain, images in validation.items() if len(images)}
    held = {} if second is None else {"validation_domain": {"domain": _named(second), **measured(second)}}
    return {"unseen_domain": name, **accuracy, **others, **held, "per_domain": per_domain}


def adapted_document(model: GlobalModel, unseen: DomainDataset, how: Tent, *, seed: int) -> dict[str, object]:
    """Accuracy (Clopper-Pearson) on `unseen` after test-time adaptation of a copy of the model to these images."""
    rng = stream(seed, "world", "adaptation", _named(unseen))
    correct = int((tent_predictions(model.module(), unseen.pixels(), how=how, rng=rng) == unseen.labels).sum())
    interval = clopper_pearson(correct, len(unseen))
    return {"value": correct / len(unseen), "low": interval.low, "high": interval.high, **_counted(unseen)}


def own_domain_accuracy(document: Mapping[str, Any]) -> float | None:
    """The mean over the clients' own domains of the accuracy on their validation images, each domain counting once.

    `document` is that of `accuracy_document`; None where no client has validation images."""
    return _mean_over_domains(document, "value")


def own_domain_majority_share(document: Mapping[str, Any]) -> float | None:
    """The mean over the clients' own domains of what always naming a domain's most frequent class reaches there.

    None where a domain's is not known, or where no client has validation images."""
    return _mean_over_domains(document, "majority_share")


def _mean_over_domains(document: Mapping[str, Any], name: str) -> float | None:
    values = [domain.get(name) for domain in document["per_domain"].values()]
    return sum(map(float, values)) / len(values) if values and None not in values else None


def steps_document(curve: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """The optimizer steps of a run: the mean per participant and round, and the sum over all of them.

    `curve` is that of a `FederationRun`; None where some client did not report its steps."""
    if not curve or not all("steps" in point for point in curve):
        return None
    total = sum(point["steps"] for point in curve)
    return {"per_client_and_round": total / sum(point["clients"] for point in curve), "total": total}


def _counted(images: DomainDataset) -> dict[str, object]:
    return {"n": len(images), "majority_share": majority_share(images.labels)}


def _named(domain: DomainDataset) -> str:
    return str(domain.domain_names[int(domain.domains[0])])
