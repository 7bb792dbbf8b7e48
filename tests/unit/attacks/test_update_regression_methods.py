"""Regression of the updates of clients that methods have trained, each in its own way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.model_membership.round_scores import client_steps, last_update
from fdgsec.attacks.model_membership.update_regression import Candidates, regression_scores
from fdgsec.attacks.statistics.noise_image_classifiers import noise_images
from fdgsec.data.domains import DomainDataset
from fdgsec.data.swatches import swatches
from fdgsec.experiments.attack.attack_context import objective_of
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedbn import FedBN
from fdgsec.methods.fedprox import FedProx, Proximal
from fdgsec.methods.fedsr import FedSR
from fdgsec.methods.jigen import JiGen, JigsawLoss
from fdgsec.metrics.roc import auc
from fdgsec.nn.networks.classifiers import Classifier, Norm
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import METHODS, resolve
from fdgsec.testing.small_federation import four_clients, start_of
from fdgsec.threats.adversary import MakesObjective, View

PLAN = TrainingPlan(epochs=1, batch_size=12, learning_rate=0.01, optimizer="sgd", crop=None, flip=0.0)
CLIENTS, IMAGES = 3, 36


def start(method: FedAvg, norm: Norm) -> GlobalModel:
    blueprint = Blueprint(backbone="tiny", classes=4, norm=norm, device="cpu", remodel=method.remodel)
    return replace(start_of(method), blueprint=blueprint).with_state(blueprint.network(stream(0, "world")).state_dict())


def view_of(method: FedAvg, members: Sequence[Client], model: GlobalModel, *, rounds: int) -> View:
    run = observe(method, members, seed=0, name="run", model=model, rounds=rounds, every_round=True)
    return View(messages=tuple(run.transcript.messages()))


def range_of(first: int, last: int) -> Tensor:
    return torch.arange(first, last)


def area(method: FedAvg, norm: Norm = "group", *, public: bool = True, images: DomainDataset | None = None) -> float:
    """The mean AUC over clients of 36 images each, by the public objective or by cross-entropy: of swatches, with the
    labels that the colors have, or of the 180 that are given."""
    images = swatches(per_domain=180).of_domain(0) if images is None else images
    members = [
        Client(name=f"client:{number}", data=images.subset(range_of(IMAGES * number, IMAGES * (number + 1))))
        for number in range(CLIENTS)
    ]
    model = start(method, norm)
    view, others = view_of(method, members, model, rounds=4), images.subset(range_of(144, 180))
    objective = objective_of(method, model, others) if public else None
    areas = list[float]()
    for client in members:
        asked = Candidates(
            images=images.subset(torch.cat([torch.arange(180)[client.data.rows % 180], range_of(108, 144)])),
            others=others, plan=method.plan, count=2, objective=objective,
        )  # fmt: skip
        found = [
            regression_scores(
                step, asked, lambda state: model.with_state({**model.state.state, **state}).module(),
                stream(0, "attack"),
            )["update regression"]
            for step in client_steps(view, client.name)
        ]  # fmt: skip
        areas.append(auc(*torch.stack(found).mean(0).split(IMAGES)))
    return sum(areas) / len(areas)


@pytest.mark.medium
def test_one_epoch_of_every_client_is_enough():
    assert area(FedAvg(plan=PLAN)) > 0.8


@pytest.mark.medium
def test_the_loss_that_a_method_trains_is_regressed():
    """JiGen trains a second head, on images that are cut to a multiple of three pixels."""
    images = noise_images(180, side=32, classes=4, rng=stream(0, "attack", "images"))
    assert area(JiGen(plan=PLAN), images=images) > 0.9
    assert area(JiGen(plan=PLAN), images=images, public=False) < 0.65


def test_a_method_on_top_of_another_trains_its_own_loss_by_the_plan_below():
    plan = replace(PLAN, weight_decay=5e-4)
    method, images = Stacked(base=FedProx(plan=plan, mu=0.5), local=JiGen()), swatches(per_domain=4).of_domain(0)
    model = start_of(method)

    made = objective_of(method, model, images)

    assert method.client_plan == plan
    assert made is not None
    found = made(stream(0, "attack"))
    assert isinstance(found, Proximal)
    assert isinstance(found.inner, JigsawLoss)


def test_an_adversary_without_images_makes_no_loss_of_a_victims():
    method = JiGen()

    assert objective_of(method, start_of(method), None) is None


@pytest.mark.medium
def test_entries_that_clients_keep_hide_no_images():
    assert area(FedSR(plan=PLAN)) > 0.8
    assert area(FedBN(plan=PLAN), "batch") > 0.7


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.medium
def test_the_update_of_every_method_is_read_beside_the_model_before_it(name: str):
    method = resolve("methods", name)()
    if hasattr(method, "plan"):
        method = replace(method, plan=replace(method.plan, epochs=1, steps=1, batch_size=8))
    if hasattr(method, "warm_up"):
        method = replace(method, warm_up=0)
    members, model = four_clients(), start_of(method)

    view = view_of(method, members, model, rounds=1)

    (step,) = client_steps(view, "client:0")
    assert step.changed
    assert step.before.state.keys() == step.after.state.keys()
    last = last_update(view, "client:0")
    assert last is not None
    assert step.kept == step.before.state.keys() - last.state.keys()


@dataclass(frozen=True)
class _Odd:
    """A loss that is made for another network, of another number of images, or no number."""

    fault: str
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        losses = functional.cross_entropy(model(batch.images), batch.labels, reduction="none")
        if self.fault == "raises":
            raise KeyError("no second head")
        return {"mean": losses.mean(), "pairs": torch.cat([losses, losses]), "infinite": losses / 0}[self.fault]


@pytest.mark.parametrize("fault", ["raises", "mean", "pairs", "infinite"])
def test_a_loss_that_single_images_have_not_is_cross_entropy_instead(fault: str):
    def odd(_rng: torch.Generator) -> Objective:
        return _Odd(fault)

    assert torch.equal(scores_by(odd), scores_by(None))


def scores_by(objective: MakesObjective | None) -> Tensor:
    images, method = swatches(per_domain=12).of_domain(0), FedAvg(plan=PLAN)
    model = start(method, "group")
    client = Client(name="client:0", data=images.subset(range_of(0, 4)))
    (step,) = client_steps(view_of(method, [client], model, rounds=1), "client:0")
    asked = Candidates(
        images=images.subset(range_of(0, 8)), others=images.subset(range_of(8, 12)), plan=PLAN, count=1,
        objective=objective,
    )  # fmt: skip
    return regression_scores(step, asked, lambda state: model.with_state(state).module(), stream(0, "attack"))[
        "update regression"
    ]
