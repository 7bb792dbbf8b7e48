"""Attacks of benchmarks/dp_runs.py: membership inference on the final model, and on an exchange of styles."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fdgsec
from benchmarks.dp_protocol import SUBJECTS, Cell, Protocol, defenses_of
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.weight_perturbation import validation_losses
from fdgsec.metrics.intervals import delong
from fdgsec.metrics.roc import auc
from fdgsec.nn.training.batches import TrainingSet


def loss_membership(
    model: GlobalModel, members: Sequence[DomainDataset], strangers: DomainDataset
) -> Mapping[str, float]:
    """The AUC of the loss under the final model for members against held-out images."""
    network = model.module()
    inside = torch.cat([validation_losses(network, TrainingSet.of(images)) for images in members])
    outside = validation_losses(network, TrainingSet.of(strangers))
    found = delong(-inside, -outside)
    return {
        "auc": auc(-inside, -outside),
        "low": found.low,
        "high": found.high,
        "members": len(inside),
        "others": len(outside),
    }


def style_membership(cell: Cell, protocol: Protocol, *, data_root: Path | None) -> list[dict[str, object]]:
    """Rows of the attack `membership` on one exchange; none for methods that share no styles."""
    subject = SUBJECTS[cell.method]
    if not subject.target:
        return []
    settings: dict[str, Any] = {
        "per_domain": protocol.per_domain, "image_size": protocol.image_size, "backbone": protocol.backbone,
        "norm": "group", "pretrained": protocol.pretrained, "defenses": defenses_of(cell, protocol)[1:],
    }  # fmt: skip
    options = {**subject.options, **({"k": 2} if cell.method == "ccst" else {})}
    assignments = [f"method.{name}={json.dumps(value)}" for name, value in options.items()]
    effort = {
        "sizes": [protocol.style_size],
        "simulated_sizes": [protocol.style_size],
        "clients": protocol.style_clients,
    }
    assignments += [f"attacks.membership.{name}={json.dumps(value)}" for name, value in effort.items()]
    report = fdgsec.attack(
        subject.target, dataset=protocol.dataset, data_root=data_root, attacks=["membership"], seed=cell.seed,
        **settings, assignments=assignments,
    )  # fmt: skip
    (result,) = report.attacks
    if result.status != "done":
        raise SystemExit(f"membership on {subject.target} was {result.status}: {result.reason}")
    return [
        {
            "slice": dict(row.slice),
            "auc": row.value,
            "low": row.low,
            "high": row.high,
            "n": row.n,
            "unavailable": row.unavailable,
        }
        for row in result.measurements
        if row.name == "auc"
    ]
