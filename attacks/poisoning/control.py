"""Positive control of poisoning: FedAvg on dark and bright images, with a client that scales its update by 100.

Only the images are synthetic: the federation runs as any other, and the same code measures the harm."""

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.forged_artifacts import ScaledUpdate
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.federation.method import Client, Method
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child, integer_seed
from fdgsec.runtime.registry import resolve
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.paired_runs import Setting, harm_of_forgery, honest_run, hostile_run

CLIENTS = 3
RECORDS = 8
MEASURED = 40
SIDE = 32  # pixels
ROUNDS = 2
SEEDS = 5
AT_LEAST = 0.25
"""Minimum loss of accuracy: with two classes, half is lost where the model predicts only one of them."""
FORGERY = ScaledUpdate(factor=100.0)
PLAN = TrainingPlan(batch_size=64, learning_rate=0.1, crop=None, flip=0.0)


def planted_harm(
    knowledge: Knowledge, rng: torch.Generator, *, malicious_client: MaliciousClient = FORGERY
) -> PositiveControl:
    """Run `SEEDS` pairs of federations in which client:0 forges; the mean accuracy lost must reach `AT_LEAST`."""
    cases, truths = [], []
    method: Method = resolve("methods", "fedavg")(plan=PLAN)
    for number in range(SEEDS):
        child_rng = child(rng, "federation", number)
        members = [
            Client(name=f"client:{place}", data=_images(RECORDS, child(child_rng, "client", place)))
            for place in range(CLIENTS)
        ]
        setting = Setting(
            method=method,
            members=members,
            defense_stack=DefenseStack(),
            measured={"planted": _images(MEASURED, child(child_rng, "unseen"))},
        )
        model, seed = _start(child(child_rng, "start")), integer_seed(child(child_rng, "seed"))
        honest = honest_run(setting, seed=seed, rounds=ROUNDS, model=model, forger="client:0")
        hostile = hostile_run(
            setting, seed=seed, rounds=ROUNDS, model=model, malicious_clients={"client:0": malicious_client}
        )
        harm = harm_of_forgery(honest, hostile, setting=setting, forgers=["client:0"], rng=child_rng)
        cases.append(Case(question="hostile", views=(), victim="client:0", slice={"forgery": malicious_client.name}))
        truths.append(Truth(harm=harm))
    return PositiveControl(
        cases=cases, truths=truths, knowledge=knowledge, measurement="honest_accuracy_drop", at_least=AT_LEAST
    )


def _images(count: int, rng: torch.Generator) -> DomainDataset:
    """Half dark, half bright images, with noise as large as their difference."""
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 100, (count, 3, SIDE, SIDE), generator=rng)
    return DomainDataset(
        name="planted", store=(noise + 120 * labels.view(-1, 1, 1, 1)).to(torch.uint8), rows=torch.arange(count),
        labels=labels, domains=torch.zeros(count, dtype=torch.int64), class_names=("dark", "bright"),
        ids=tuple(f"planted/{number}" for number in range(count)), domain_names=("planted",),
    )  # fmt: skip


def _start(rng: torch.Generator) -> GlobalModel:
    state = dict(build_classifier("tiny", 2, rng=rng).state_dict())
    return GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=ModelState(state=state))
