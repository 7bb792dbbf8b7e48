"""FedDAG for training under DP-SGD: noisy steps for student and generator, and bounded losses.

Che, Wu, Jin, Xia & Chen, 2025, https://arxiv.org/abs/2501.13967; extends methods/feddag.py; equation numbers are the
same. FedDAG's losses are already per record (the discrepancy of eq. (1), the margin applied per record, the task loss
of eq. (3), the similarity of eq. (4)), and the generator's instance normalization uses one image. Three networks are
trained on the data, and everything that is sent is computed from them.

Shares: what FedDAG shares, without a client's loss on its own images and the effect of the perturbation on it.
Differs from FedDAG:
* Algorithm 1, lines 3 and 4: under a private trainer (fdgsec/federation/dp_sgd_joint.py) a record's gradients of
  generator and student, both at the weights before the step, are clipped, summed and noised jointly, as one release,
  because lines 3 and 4 use the same sample. The generator's gradient passes through the student trained by noisy
  steps; no student is trained without noise. In warm-up rounds the student has the whole clipping bound.
* line 5: the teacher, which is sent, is a mean of students; the update is post-processing and costs no privacy.
* eq. (5): the perturbation follows the last *noisy* gradient of the student.
* eqs. (5) and (6): an evaluator's answer is the mean over its validation images of losses clipped at `loss_bound`, so
  that one image changes it by at most loss_bound / images; a defense adds noise to the scores. The server clips the
  received scores to [`loss_floor`, loss_bound], because noise can make a loss negative. An own loss (`include_self`)
  would be sent among an update's numbers, without that noise, and is refused; so is `margin_over="batch"`, which
  couples records.
Under the plain trainer this is FedDAG with those scores. A private trainer refuses batch norm, whose running
statistics are computed from records without noise and are sent: it needs `norm="group"`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.federation.artifacts import Scores
from fdgsec.federation.dp_sgd_joint import Gradients, joint_training
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State, Update
from fdgsec.federation.weight_perturbation import losses_with
from fdgsec.methods.feddag import FedDAG, Generated, Networks, follow
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.precision import Precision, autocast
from fdgsec.nn.training.training_loop import prepare_training
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateNetworks(Networks):
    """A client's networks and the private trainer of student and generator."""

    trainer: PrivateTrainer


@dataclass(frozen=True, kw_only=True)
class FedDAGDP(FedDAG):
    """FedDAG with bounded scores, and private steps for clients with a private trainer.

    `loss_bound` clips the loss of each validation image, in nats (uniform guessing has log classes); `loss_floor` is
    the smallest mean loss that the server accepts."""

    include_self: bool = False
    loss_bound: float = 4.0
    loss_floor: float = 0.01

    @property
    def trains_through_trainer(self) -> bool:
        """True: student and generator take private steps, and the teacher is a mean of students."""
        return type(self) is FedDAGDP

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.include_self:
            raise UsageError("feddag-dp sends no loss of a client on its own images; leave include_self off.")
        if self.margin_over != "record":
            raise UsageError('feddag-dp cuts each record by its margin; leave margin_over at "record".')
        if not 0 < self.loss_floor < self.loss_bound:
            raise UsageError(
                f"feddag-dp needs 0 < loss_floor < loss_bound; got {self.loss_floor} and {self.loss_bound}."
            )

    def check(self, clients: int) -> None:
        """Raise UsageError for a single client, whose model has no evaluator."""
        if clients < 2:
            raise UsageError("feddag-dp needs two clients or more: peers judge each model, and nobody its own.")
        super().check(clients)

    def fitting(self, clients: int) -> Self:
        """At most as many evaluators as there are other clients."""
        return self if self.evaluators is None else replace(self, evaluators=max(1, min(self.evaluators, clients - 1)))

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train, without metrics on own validation images. Raises UsageError for a client without validation images."""
        if self.needs_scores:
            self._validation_images(client, state)
        return self.train(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)

    def _networks(self, client: Client, model: GlobalModel, inbox: Inbox, state: State) -> Networks:
        made = super()._networks(client, model, inbox, state)
        if not isinstance(client.trainer, PrivateTrainer):
            return made
        return PrivateNetworks(
            student=made.student, teacher=made.teacher, generator=made.generator, trainer=client.trainer,
            student_optimizer=made.student_optimizer, generator_optimizer=made.generator_optimizer,
        )  # fmt: skip

    def network_count(self, clock: Clock) -> int:
        """The number of trained networks: 1 (the student) in warm-up rounds, then 2 (and the generator)."""
        return 1 if clock.round < self.warm_up else 2

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        """Run Algorithm 1, in place; by noisy steps if there is a private trainer."""
        if not isinstance(networks, PrivateNetworks):
            return super().train_networks(networks, data, clock=clock, rng=rng)
        device, precision = prepare_training(networks.student, self.plan)
        count = self.network_count(clock)
        players: list[nn.Module] = [networks.student, networks.generator][:count]
        optimizers = [networks.student_optimizer, networks.generator_optimizer][:count]
        return joint_training(
            networks.trainer, players, optimizers, data,
            lambda one: self.gradients(networks, one, precision, warming=count == 1), self.plan,
            device=device, layout=precision.layout, round=clock.round, rounds=clock.rounds,
            after=lambda: follow(networks.teacher, networks.student, ema=self.ema, buffers=self.teacher_buffers),
        )  # fmt: skip

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        """One record's gradients of the student and, after warm-up rounds, of the generator."""
        if warming:
            losses = self.student_losses(networks, record, None, precision)
            return [_gradients(losses, networks.student)]
        made = self.generated(networks, record, precision)
        (slope,) = torch.autograd.grad(self.generator_loss(made), made.seen, retain_graph=True)
        drawn = _gradients(made.images * slope, networks.generator)
        return [_gradients(self.student_losses(networks, record, made, precision), networks.student), drawn]

    def student_losses(self, networks: Networks, batch: Batch, made: Generated | None, precision: Precision) -> Tensor:
        """L_cls + L_sim (Algorithm 1, line 4), or L_cls(x, y) without `made`: the losses of `student_step`, (B,)."""
        parts = [] if made is None else [made.classified + made.distance]
        if made is None or self.student_loss == "both":
            with autocast(batch.images.device, precision):
                answered = networks.student(batch.images)
            parts.append(functional.cross_entropy(answered.float(), batch.labels, reduction="none"))
        return torch.stack(parts).sum(0)

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """E[min(L_cls, loss_bound)] of each received model (eq. 5), in the order of the sorted names.

        A NaN loss, which a peer's weights may cause for a single image, counts as the bound."""
        data, network = self._validation_images(client, state), model.module()
        found = [losses_with(network, {**model.state.state, **inbox[peer].tensors()}, data) for peer in sorted(inbox)]
        bound = self.loss_bound
        return Scores(values=torch.stack([losses.nan_to_num(nan=bound).clamp(0.0, bound).mean() for losses in found]))

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Algorithm 2, with received losses clipped to [`loss_floor`, `loss_bound`]."""
        held = {
            name: Scores(values=given.values.clamp(self.loss_floor, self.loss_bound)) for name, given in scores.items()
        }
        return super().aggregate(updates, scores=held, model=model, server=server)


def _gradients(values: Tensor, network: nn.Module) -> list[Tensor]:
    """The gradient of the sum of `values` with respect to the trained parameters of `network`; the graph is kept."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return list(
        torch.autograd.grad(values.sum(), trained, retain_graph=True, materialize_grads=True, allow_unused=True)
    )
