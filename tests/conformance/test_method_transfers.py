"""What a step of every method moves between host and device, counted without a GPU: docs/performance.md."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from fdgsec.data.shapes import shapes
from fdgsec.experiments.run_config import build
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.runtime.registry import METHODS, resolve
from fdgsec.testing.small_federation import federated, start_of
from tests.support.counting_device import DEVICE, counting_device

CLIENTS = 2
ROUNDS = 2
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "fedadg": {"hidden": 64, "projected": 32, "adversarial_epochs": 1},
    "feddag": {"generator": "fcn16", "warm_up": 0},
    "feddag-dp": {"generator": "fcn16", "warm_up": 0},
}

UP: Mapping[str, float] = {
    "stablefdg": 10.75, "stablefdg-dp": 4, "fisc": 1, "fisc-dp": 1, "fedalign": 15.5, "fedalign-dp": 16,
    "fedccrl": 14.7, "mixstyle": 3.2, "dsu": 6.9, "jigen": 2, "fedsr": 2, "feddg": 4, "fedadg": 2,
}  # fmt: skip
"""Copies of a step to the device, of the methods that make any: may only shrink. Ten of FedCCRL's and FedAlign's are
torchvision's, of numbers of its operations; one of those that draw from the stream of the batches is the batch's."""
DOWN: Mapping[str, float] = {"stablefdg": 0.75}
"""Copies of a step to the host: may only shrink. k-means++ draws by distances between styles."""


def counted(name: str, steps: int) -> Counter[tuple[str, str, str]]:
    """The transfers of two rounds of two clients, whose training has this many steps, all of one epoch."""
    plan = {"batch_size": 6, "learning_rate": 0.01, **({} if name == "fedadg" else {"steps": steps})}
    method: Method = build(resolve("methods", name), {"plan": plan, **OPTIONS.get(name, {})}, where="method")
    method = method.fitting(CLIENTS)
    drawn = shapes(image_size=32, per_domain=36)
    parts = [drawn.of_domain(number) for number in range(CLIENTS)]
    judged = drawn.of_domain(CLIENTS).subset(torch.arange(6))
    members = [Client(name=f"client:{number}", data=part, validation=judged) for number, part in enumerate(parts)]
    if name == "fedadg":
        members = [replace(client, data=client.data.subset(torch.arange(6 * steps))) for client in members]
    start = start_of(method)
    start = GlobalModel(blueprint=replace(start.blueprint, device=str(DEVICE)), state=start.state)
    with counting_device() as transfers:
        federated(method, members, recode=False, rounds=ROUNDS, start=start)
    return Counter(transfers.seen)


def per_step(name: str) -> dict[str, float]:
    """Transfers up, down and reads of a step, the mean over the fourth to sixth of each client and round."""
    few, many = counted(name, 3), counted(name, 6)
    many.subtract(few)
    steps = 3 * CLIENTS * ROUNDS
    return {
        kind: sum(count for (found, _, _), count in many.items() if found == kind) / steps
        for kind in ("up", "down", "read")
    }


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.medium
def test_a_step_waits_for_no_value_and_copies_no_more_than_stated(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_PRECISION", "float32")
    found = per_step(name)
    assert found["read"] == 0
    assert found["down"] <= DOWN.get(name, 0)
    assert found["up"] <= UP.get(name, 0)
