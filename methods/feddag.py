"""FedDAG: federated domain adversarial generation toward generalizable medical image analysis.

Che, Wu, Jin, Xia & Chen, 2025, https://arxiv.org/abs/2501.13967. Novel domain adversarial generation (NDAG) is
section III-B: the discrepancy eq. (1), the perturbed image eq. (2), its task loss eq. (3), the similarity eq. (4), a
client's training Algorithm 1. Sharpness-aware hierarchical aggregation (SHA), section III-C with eqs. (5), (6) and
Algorithm 2, is methods/feddag_aggregation.py, which this extends. Section III-D distributes the models, section IV-A2
sets the constants. No code was released, hence there is no preset but `feddag-paper`.

Shares, every round: the teacher ("model") and the generator up; the perturbed teacher up, and on to every other
client; one loss per evaluated model back; the student too, if it is global. Down come the global model, for the
student, and the global generator, from round 0 on.
Differs from the paper, or fills in what it leaves open: the teacher follows with 0.99; the generator is DDAIG's; x_hat
is perturbed in the classifier's normalized space and not clamped; f and f_hat are the penultimate features; the margin
cuts each record's discrepancy; the student's task loss is that of x plus that of x_hat; in warm-up rounds the student
minimizes L_cls(x) alone and the generator is passed on unchanged; teacher and student normalize by their batches, and
the teacher copies the student's running statistics (`teacher_buffers`). The paper defines full participation alone
(Algorithm 2 goes over all n clients): with less, the teacher of a client that sat out is as old as its last round, and
its weight in eq. (6) is that of an old model. One forward pass S(x_hat) serves both steps of a batch: Algorithm 1
leaves the student unchanged between them. Training takes two optimizers, hence not through training.epochs."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State, Update
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.weight_perturbation import gradient_of
from fdgsec.methods.fedavg import averaged, detached
from fdgsec.methods.feddag_aggregation import SharpnessAware
from fdgsec.nn.networks.classifiers import Classifier, Normalization
from fdgsec.nn.networks.perturbation_generator import GeneratorName, PerturbationNetwork, perturbation_network
from fdgsec.nn.training.batches import Batch, TrainingSet, epoch_of_batches
from fdgsec.nn.training.precision import Precision, autocast
from fdgsec.nn.training.training_loop import optimizer_step, prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream

TEACHER = "teacher/"
GENERATOR = "generator/"
STUDENT = "student/"


def discrepancy(features: Tensor, generated: Tensor) -> Tensor:
    """|| f / |f| - f_hat / |f_hat| ||_2^2 for each record of (B, d), (B,): eq. (4), and eq. (1) before its margin."""
    return (functional.normalize(features, dim=1) - functional.normalize(generated, dim=1)).square().sum(1)


def generated_images(
    generator: nn.Module,
    images: Tensor,
    *,
    a: float,
    normalize: Normalization | None = None,
    clamp: bool = False,
) -> Tensor:
    """x_hat = x + a G(x) (eq. 2) for images (B, 3, H, W) in [0, 1].

    With `normalize` x and x_hat are in the normalized space, where a perturbation of a means a times std in
    pixels. `clamp` brings the result back to [0, 1]."""
    drawn: Tensor = generator(images if normalize is None else normalize(images))
    moved = images + a * (drawn if normalize is None else normalize.std * drawn)
    return moved.clamp(0, 1) if clamp else moved


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, *, ema: float, buffers: Literal["copied", "averaged"]) -> None:
    """T <- ema T + (1 - ema) S over parameters (Algorithm 1, line 5; Tarvainen & Valpola 2017).

    Buffers are copied, or averaged alike; integer counters are always copied."""
    for mine, other in zip(teacher.parameters(), student.parameters(), strict=True):
        mine.lerp_(other, 1 - ema)
    for kept, new in zip(teacher.buffers(), student.buffers(), strict=True):
        if buffers == "averaged" and kept.is_floating_point():
            kept.lerp_(new, 1 - ema)
        else:
            kept.copy_(new)


@dataclass(frozen=True, kw_only=True, eq=False)
class Networks:
    """A client's three networks, and the optimizers of student and generator, all on one device."""

    student: Classifier
    teacher: Classifier
    generator: PerturbationNetwork
    student_optimizer: torch.optim.Optimizer
    generator_optimizer: torch.optim.Optimizer

    @classmethod
    def of(
        cls, student: Classifier, teacher: Classifier, generator: PerturbationNetwork, plan: TrainingPlan
    ) -> "Networks":
        """Create the optimizers; the teacher normalizes by its batches and does not update running statistics."""
        device, _ = prepare_training(student, plan)
        prepare_training(teacher, plan)
        for module in teacher.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.track_running_stats = False  # its running statistics come from the student
        return cls(
            student=student,
            teacher=teacher.requires_grad_(False),
            generator=generator.to(device),
            student_optimizer=optimizer_of(student.parameters(), plan),
            generator_optimizer=optimizer_of(generator.parameters(), plan),
        )

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of both optimizers."""
        for group in [*self.student_optimizer.param_groups, *self.generator_optimizer.param_groups]:
            group["lr"] = rate


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """A batch's generated images and the student's outputs on them, before either network takes its step.

    `images` (B, 3, H, W) belong to the generator's graph; `seen` has the same values and is the leaf of the student's
    graph; `classified` is L_cls(x_hat, y) of eq. (3) and `distance` the discrepancy, (B,) both."""

    images: Tensor
    seen: Tensor
    classified: Tensor
    distance: Tensor


@dataclass(frozen=True, kw_only=True)
class FedDAG(SharpnessAware):
    """FedDAG; student and generator each have an optimizer with the settings of `plan`.

    `a` is the intensity of eq. (2), `margin` the m of eq. (1), `ema` the teacher's coefficient. `distribution` is
    section IV-C2's: "student" (the paper's: F to the student, teachers stay), "both" (type 1: F to teacher and
    student) or "global-student" (type 2: students are uploaded and averaged too, F goes to the teacher, their mean
    to the student; the paper only says "maintain a global student model"). `student_loss` is over
    original and generated images, as the text has it, or over generated ones, as Algorithm 1 may be read. Without
    NDAG this is CrossEvaluation; without SHA set beta = 0 and k = 0."""

    a: float = 0.3
    margin: float = 0.1
    ema: float = 0.99
    warm_up: int = 5
    generator: GeneratorName = "fcn32"
    distribution: Literal["student", "both", "global-student"] = "student"
    space: Literal["normalized", "pixel"] = "normalized"
    clamp: bool = False
    margin_over: Literal["record", "batch"] = "record"
    student_loss: Literal["both", "generated"] = "both"
    teacher_buffers: Literal["copied", "averaged"] = "copied"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.a <= 1 and self.margin >= 0 and 0 <= self.ema <= 1 and self.warm_up >= 0):
            raise UsageError(
                f"feddag needs a and ema in [0, 1], margin and warm_up at least 0; got a = {self.a}, ema = {self.ema}, "
                f"margin = {self.margin}, warm_up = {self.warm_up}."
            )
        if self.local is not None or self.keep_optimizer:
            raise UsageError(
                "feddag has its own objectives and makes its optimizers anew; drop local and keep_optimizer."
            )

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Every round: the global generator comes down before training."""
        return "every"

    @property
    def asks_for_shares(self) -> bool:
        """False: generators go up only with the update."""
        return False

    @property
    def releases(self) -> Sequence[Release]:
        """As SharpnessAware's, and a generator up and down; the student too if it is global."""
        states: dict[str, type[ModelState]] = {"generator": GeneratorState}
        if self.distribution == "global-student":
            states["student"] = ModelState
        up = [Release(stage="update", slot=slot, kind=kind) for slot, kind in states.items()]
        down = [Release(stage="combine", slot=slot, kind=kind) for slot, kind in states.items()]
        return (*super().releases, *up, *down)

    @property
    def server_needs(self) -> ServerNeeds:
        """The owner of each model."""
        return ServerNeeds(uploads="named", because="models are judged by other clients one by one")

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Section III-D, model distribution: send the global generator, drawn from `rng` before the first round."""
        if not _without_prefix(GENERATOR, server):
            drawn = perturbation_network(self.generator, rng=rng.child("generator").generator())
            server = {**server, **_with_prefix(GENERATOR, detached(drawn))}
        inbox: dict[str, Artifact] = {"generator": GeneratorState(state=_without_prefix(GENERATOR, server))}
        if self.distribution == "global-student" and _without_prefix(STUDENT, server):
            inbox["student"] = ModelState(state=_without_prefix(STUDENT, server))
        return {name: inbox for name in shared}, server

    def train(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Algorithm 1; the teacher is stored unless the global model replaces it."""
        networks = self._networks(client, model, inbox, state)
        data = TrainingSet.of(client.data)
        metrics = self.train_networks(networks, data, clock=clock, rng=rng)
        teacher = detached(networks.teacher)
        artifacts: dict[str, Artifact] = {
            "model": ModelState(state=teacher),
            "generator": GeneratorState(state=detached(networks.generator)),
            **self.perturbed_copy(teacher, gradient_of(networks.student)),
        }
        if self.distribution == "global-student":
            artifacts["student"] = ModelState(state=detached(networks.student))
        if self.distribution == "student":
            state = {**state, **_with_prefix(TEACHER, teacher)}
        return Update(artifacts=artifacts, weight=1.0, metrics=metrics), state

    def _networks(self, client: Client, model: GlobalModel, inbox: Inbox, state: State) -> Networks:
        """F -> S_i, G -> G_i (section III-D); T_i is the client's stored teacher, or F if it has none."""
        received = inbox.get("generator")
        if not isinstance(received, GeneratorState):
            came = "nothing" if received is None else f"a {received.kind}"
            raise TypeError(f"feddag trains with a GeneratorState; {client.name} received {came}.")
        generator = perturbation_network(self.generator, rng=stream(0, "world", "blueprint"))
        generator.load_state_dict(received.tensors())
        student = model.module()
        teacher = deepcopy(student)
        if self.distribution == "student" and (own := _without_prefix(TEACHER, state)):
            teacher.load_state_dict(own)
        if "student" in inbox:
            student.load_state_dict(inbox["student"].tensors())
        return Networks.of(student, teacher, generator, self.plan)

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        """Run Algorithm 1's loop over mini-batches, in place; return the student's mean loss, steps and discrepancy."""
        device, precision = prepare_training(networks.student, self.plan, rng)
        data = data.on(device)
        total, apart, seen, steps = torch.zeros((), device=device), torch.zeros((), device=device), 0, 0
        warming = clock.round < self.warm_up
        dealt = _scheduled_batches(data, self.plan, rng, clock=clock, device=device, precision=precision)
        for rate, batch in islice(dealt, self.plan.steps):
            networks.set_rate(rate)
            if warming:
                losses = self.student_step(networks, batch, None, precision)
            else:
                made = self.generated(networks, batch, precision)
                self.generator_step(networks, made)
                losses = self.student_step(networks, batch, made, precision)
                apart = apart + made.distance.detach().sum()
            follow(networks.teacher, networks.student, ema=self.ema, buffers=self.teacher_buffers)
            total, seen, steps = total + losses.detach().sum(), seen + len(batch.labels), steps + 1
        metrics = {"loss": float(total) / max(seen, 1), "steps": float(steps)}
        return metrics if warming else {**metrics, "discrepancy": float(apart) / max(seen, 1)}

    def generated(self, networks: Networks, batch: Batch, precision: Precision) -> Generated:
        """Algorithm 1, line 2: x_hat (eq. 2), f = T(x), f_hat = S(x_hat), L_cls(x_hat, y) (eq. 3)."""
        student = networks.student
        with autocast(batch.images.device, precision):
            with torch.no_grad():
                features = networks.teacher.features(batch.images)
            normalize = student.normalize if self.space == "normalized" else None
            images = generated_images(networks.generator, batch.images, a=self.a, normalize=normalize, clamp=self.clamp)
            seen = images.detach().requires_grad_()
            penultimate = student.features(seen)
            answered = student.head(penultimate)
        classified = functional.cross_entropy(answered.float(), batch.labels, reduction="none")
        distance = discrepancy(features.float(), penultimate.float())
        return Generated(images=images, seen=seen, classified=classified, distance=distance)

    def generator_loss(self, made: Generated) -> Tensor:
        """L_cls(x_hat, y) - L_dis (Algorithm 1, line 3), L_dis = min(distance, m) of eq. (1), a scalar."""
        if self.margin_over == "batch":
            return made.classified.mean() - made.distance.mean().clamp_max(self.margin)
        return (made.classified - made.distance.clamp_max(self.margin)).mean()

    def generator_step(self, networks: Networks, made: Generated) -> None:
        """Step G on its loss with S and T frozen: first the gradient with respect to x_hat, then through G."""
        (slope,) = torch.autograd.grad(self.generator_loss(made), made.seen, retain_graph=True)
        optimizer_step(networks.generator_optimizer, (made.images * slope).sum(), self.plan)

    def student_step(self, networks: Networks, batch: Batch, made: Generated | None, precision: Precision) -> Tensor:
        """Step S on L_cls + L_sim (Algorithm 1, line 4) with G and T frozen; without `made` on L_cls(x, y).

        Returns the losses, (B,)."""
        parts = [] if made is None else [made.classified + made.distance]
        if made is None or self.student_loss == "both":
            with autocast(batch.images.device, precision):
                answered = networks.student(batch.images)
            parts.append(functional.cross_entropy(answered.float(), batch.labels, reduction="none"))
        losses = torch.stack(parts).sum(0)
        optimizer_step(networks.student_optimizer, losses.mean(), self.plan)
        return losses

    def merge(self, updates: Mapping[str, Update], *, model: GlobalModel, server: State) -> tuple[GlobalModel, State]:
        """Eq. (6) for the teachers, and with the same weights for the generators (and for global students)."""
        model, server = super().merge(updates, model=model, server=server)
        weights = [update.weight for update in updates.values()]
        parts = {"generator": GENERATOR} | ({"student": STUDENT} if self.distribution == "global-student" else {})
        for part, prefix in parts.items():
            states = [update.artifacts[part].tensors() for update in updates.values()]
            server = {**server, **_with_prefix(prefix, averaged(states, weights))}
        return model, server


def _scheduled_batches(
    data: TrainingSet,
    plan: TrainingPlan,
    rng: torch.Generator,
    *,
    clock: Clock,
    device: torch.device,
    precision: Precision,
) -> Iterator[tuple[float, Batch]]:
    """Yield the batches of the plan's epochs (endlessly if it counts steps), each with its learning rate."""
    epoch = 0
    while plan.steps is not None or epoch < plan.epochs:
        rate = plan.rate(round=clock.round, rounds=clock.rounds, epoch=epoch)
        for batch in epoch_of_batches(data, plan, rng, device=device, layout=precision.layout):
            yield rate, batch
        epoch += 1


def _with_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def _without_prefix(prefix: str, memory: State) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}
