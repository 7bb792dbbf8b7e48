"""The subjects and settings of benchmarks/dp_runs.py: methods, the defenses that each adds to dp-sgd, and shared
settings."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

STYLES = "private-styles"
SCORES = "private-scores"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method, its options, the target whose exchange is attacked, and the defenses that it adds to dp-sgd."""

    options: Mapping[str, object] = field(default_factory=dict)
    target: str = ""
    beside: str = ""


SUBJECTS: Mapping[str, Subject] = {
    "fedavg": Subject(),
    "ccst": Subject(target="ccst-overall", beside=STYLES),
    "stablefdg-dp": Subject(target="stablefdg-dp", beside=STYLES),
    "fisc-dp": Subject(target="fisc-dp", beside=STYLES, options={"local_clustering": False, "sigma": "mixture"}),
    "fedalign-dp": Subject(target="fedalign-dp", beside=STYLES, options={"discriminator": "off"}),
    "feddag-dp": Subject(beside=SCORES, options={"warm_up": 1, "generator": "fcn16", "rho": 0.05, "ema": 0.9}),
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings that all runs share; the three epsilons are those requested from the defenses."""

    dataset: str
    per_domain: int
    image_size: int
    backbone: str
    pretrained: bool
    rounds: int
    batch: int
    learning_rate: (
        float  # Adam's: pretrained SqueezeNet diverges under plain SGD at rates where noisy steps go anywhere
    )
    max_grad_norm: float
    epsilon: float
    styles_epsilon: float
    scores_epsilon: float
    delta: float
    style_clients: int
    style_size: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run."""

    method: str
    private: bool
    seed: int


def defenses_of(cell: Cell, protocol: Protocol) -> tuple[str, ...]:
    """The `--defense` options of a run."""
    if not cell.private:
        return ()
    given = f"epsilon={protocol.epsilon},delta={protocol.delta},max_grad_norm={protocol.max_grad_norm}"
    beside = {STYLES: protocol.styles_epsilon, SCORES: protocol.scores_epsilon}
    kind = SUBJECTS[cell.method].beside
    relation = ",neighbors=zero-out" if kind == STYLES else ""  # dp-sgd's
    more = (f"{kind}:epsilon={beside[kind]},delta={protocol.delta}{relation}",) if kind else ()
    return (f"dp-sgd:{given}", *more)


def protocol_of(given: argparse.Namespace) -> Protocol:
    """Shapes for a smoke test; PACS for measurements, on a pretrained network without batch norm."""
    shapes = Protocol(
        dataset="shapes", per_domain=100, image_size=32, backbone="tiny", pretrained=False, rounds=3, batch=32,
        learning_rate=5e-3, max_grad_norm=1.0, epsilon=8.0, styles_epsilon=4.0, scores_epsilon=4.0, delta=1e-5,
        style_clients=10, style_size=20,
    )  # fmt: skip
    pacs = replace(
        shapes, dataset="pacs", per_domain=500, image_size=64, backbone="squeezenet1_0", pretrained=True, rounds=5,
        batch=64, learning_rate=3e-4, style_clients=50, style_size=40,
    )  # fmt: skip
    chosen = shapes if given.dataset == "shapes" else pacs
    named = {name: getattr(given, name) for name in ("backbone", "rounds", "learning_rate", "per_domain", "epsilon")}
    made = replace(chosen, **{name: value for name, value in named.items() if value is not None})
    return replace(made, pretrained=made.pretrained and made.backbone != "tiny")
