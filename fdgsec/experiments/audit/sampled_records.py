"""Whether the records of a step of private training are a secret Poisson sample, where its cost is of one.

A cost of sampled records counts on three things: a record takes part in a step with the stated rate, nobody knows in
which ones, and neither other records nor other steps tell. A sample from a public generator, batches of a fixed size
and batches of an epoch each break one of them, and no training on all records shows that. So images of which all of a
class light the same pixel are trained on at a rate below 1: what a step moves in the weights of that pixel, in units of
the noise beside it, is how many of the class take part, and noise. These numbers are compared with what the cost
states, between steps, and between two trainings that have all in common that is public, and no secret. A client has as
many images as its noise asks for (`MOST` at most): where a sum of so many is hidden too, nothing is found."""

import math
from dataclasses import dataclass, field, replace

import torch
from scipy import stats
from torch import Tensor

from fdgsec.experiments.audit.counted_steps import Counted, Findings
from fdgsec.experiments.audit.gradient_canaries import AGAINST, EVERYWHERE, moves
from fdgsec.experiments.audit.neighbor_tests import DEVIATIONS, FACTOR
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.one_run import canary_plan, inverse_variances, trainings
from fdgsec.experiments.audit.step_distances import allowed_by, of_another_size
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.dp_sgd_joint import StepsJointly
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

PER_EPOCH = 4
"""Steps in which a record takes part once, as is to be expected."""
STEPS, ROUNDS = 256, 2
"""Steps of a training, and the rounds among which they are divided."""
CLASSES = (EVERYWHERE, AGAINST)
"""Labels, each of which has a pixel and a direction of its own; the second is that of every fourth image."""
SIDE = 2
FEWEST, MOST = 64, 4096
"""Images of the client."""
VISIBLE = 3.0
"""How many times the variance of the noise that of the number of records of a class is to be."""
VERSIONS, VERSION_STEPS = 4, 64
"""Entries of a record, and steps, in one of the trainings: a sample of entries takes it more often."""
UNRELATED = 6.5
"""Standard deviations of the correlation of unrelated samples, beyond which two steps or trainings are related."""
BY_CHANCE = 1e-7
LINEAR, LINEAR_STEPS = 0.1, 64
"""Largest relative difference between what all records move and twice what half of them move; and the steps in which it
is measured."""
UNEVEN = 4.0
"""By how much more than that of equal noise the sizes of steps' noise vary, from which on no sample is read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampled:
    """How many records of each class take part in each step (steps, classes), with the noise and in its deviations.

    As is stated, their means are `means` (classes,), and their variances, beside the noise's of 1, `variances`."""

    counts: Tensor
    means: Tensor
    variances: Tensor
    rate: float
    taken: Counted
    rounds: int = 1
    sizes: Tensor | None = None
    """Logarithms of the size of each step's noise (steps,), where they were measured."""

    @property
    def more_often(self) -> bool:
        """Whether records of a class take part more often than is stated."""
        mean, times = self._first
        error = times * ((1 + self.variances) / len(self.counts)).sqrt()
        return bool((mean - DEVIATIONS * error > FACTOR * self.means).any())

    @property
    def dependent(self) -> bool:
        """Whether the number of records in a step varies less, or more, than if each had a coin of its own.

        Means below those stated tell of shorter gradients or a lower rate: both lower the variance."""
        part = float(self._first[0].sum() / self.means.sum())
        part = min(max(part, 0.0), 1.0)
        freedom = len(self.counts) - 2
        sizes = torch.cat([self._rest, self._rest.sum(1, keepdim=True)], 1).square().sum(0)
        fewest = len(CLASSES) + part**2 * self.variances.sum()
        most = part * torch.cat([self.variances, self.variances.sum(0, keepdim=True)]) / (1 - self.rate)
        noise = torch.tensor([*[1.0] * len(CLASSES), float(len(CLASSES))])
        fewer = float(stats.chi2.cdf(float(sizes[-1] / fewest), freedom))
        more = float(stats.chi2.sf((sizes / (noise + most)).numpy(), freedom).min())
        return min(fewer, more) < BY_CHANCE

    @property
    def related(self) -> bool:
        """Whether the samples of two steps so many apart are related, or the steps of an epoch even out."""
        rows = self._standard
        for lag in range(1, len(rows) // 2 + 1):
            if _correlated(rows[lag:], rows[:-lag]):
                return True
        epochs = rows[: len(rows) // PER_EPOCH * PER_EPOCH].view(-1, PER_EPOCH, len(CLASSES)).sum(1)
        size = float(epochs.square().sum() / PER_EPOCH)
        return float(stats.chi2.cdf(size, epochs.numel() - len(CLASSES))) < BY_CHANCE

    @property
    def linear(self) -> bool:
        """Whether a step has as much noise where many records take part in it as where few do."""
        if self.sizes is None:
            return True
        sizes, lengths = self.sizes - self.sizes.mean(), self.counts.norm(dim=1)
        lengths = lengths - lengths.mean()
        scale = (sizes.square().mean() * lengths.square().mean()).sqrt().clamp_min(torch.finfo(sizes.dtype).tiny)
        return not _correlated(sizes / scale, lengths)

    def known_from(self, other: "Sampled") -> bool:
        """Whether another training's samples tell those of this one."""
        steps = min(len(self.counts), len(other.counts))
        return _correlated(self._standard[:steps], other._standard[:steps])

    @property
    def _standard(self) -> Tensor:
        return self._rest / self._rest.square().mean(0).sqrt().clamp_min(torch.finfo(self.counts.dtype).tiny)

    @property
    def _rest(self) -> Tensor:
        """What remains of the counts beside their mean and what follows from where the weights stand at each step.

        A weight decay of the trainer's own moves them in proportion to what all steps of a round have moved."""
        return self.counts - self.counts.mean(0) - self._slope * (self._before - self._before.mean(0))

    @property
    def _first(self) -> tuple[Tensor, Tensor]:
        """The mean counts (classes,) as they are before any decay, and by how many times their error is larger than
        that of a mean."""
        before = self._before
        spread = before.var(0, correction=0).clamp_min(torch.finfo(before.dtype).tiny)
        return self.counts.mean(0) - self._slope * before.mean(0), (1 + before.mean(0).square() / spread).sqrt()

    @property
    def _slope(self) -> Tensor:
        around = self._before - self._before.mean(0)
        square = around.square().sum(0).clamp_min(torch.finfo(around.dtype).tiny)
        found: Tensor = (around * self.counts).sum(0) / square
        return found

    @property
    def _before(self) -> Tensor:
        """What all steps of a round before each have moved, (steps, classes)."""
        return self.counts.view(self.rounds, -1, len(CLASSES)).cumsum(1).flatten(0, 1) - self.counts


def _correlated(one: Tensor, other: Tensor) -> bool:
    return abs(float((one * other).sum())) > UNRELATED * math.sqrt(one.numel())


def sampling_faults(site: Site, defense_stack: DefenseStack) -> Findings:
    """What is wrong with the samples of a client's training, in words; nothing where its steps take all records.

    Where several networks take steps jointly the samples are fdgsec's own (fdgsec.federation.dp_sgd_joint)."""
    if isinstance(site.method, StepsJointly):
        return Findings()
    tried = _Tried(site=replace(site, clocks=site.clocks[:ROUNDS]), defense_stack=defense_stack)
    one = tried.sampled(FEWEST, "one")
    if one is None:
        return Findings(untested=tried.unread())
    records = min(FEWEST * max(1, math.ceil(VISIBLE / float(one.variances.mean()))), MOST)
    if records > FEWEST:
        one = tried.sampled(records, "one")
    other, versions = tried.sampled(records, "other"), tried.versions(records // VERSIONS)
    if one is None or other is None:
        return Findings(untested=tried.unread())
    said, untested = _faults(one, other, versions), list[str]()
    if said and not (one.linear and other.linear and tried.linear()):  # a clip or the sign of a noisy sum, for example
        said, untested = [], ["samples of steps that do not follow their noisy sum linearly"]
    if one.taken.steps > one.taken.paid:
        said.append(f"a training takes {one.taken.steps} steps; its cost is of {one.taken.paid}")
    return Findings(faults=said, untested=untested)


def _faults(one: Sampled, other: Sampled, versions: Sampled | None) -> list[str]:
    """What two trainings on the same records, and one on records of several entries, tell of their samples."""
    said = []
    if one.known_from(other):
        said.append("two trainings take the same records in their steps, whatever their secret: the sample is known")
    if one.dependent or other.dependent:
        said.append("the number of records in a step of training does not vary as in a Poisson sample")
    if one.related or other.related:
        said.append("the records in a step of training tell those of another step")
    if one.more_often or (versions is not None and versions.more_often):
        said.append("an image takes part in the steps of a training more often than its cost says")
    return said


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tried:
    """Trainings of a client of many images through the defense's own trainer, in all rounds."""

    site: Site
    defense_stack: DefenseStack
    seen: list[Use] = field(default_factory=list)
    """The costs of all trainings."""

    def unread(self) -> list[str]:
        """What is not tried where no one rate and Gaussian noise of one size are stated and seen."""
        sampled = any(use.noise and use.sampling_rate < 1 for use in self.seen)
        return ["samples of steps without one rate and Gaussian noise of one size"] if sampled else []

    def linear(self) -> bool:
        """Whether all records, where all take part, move a step twice as far as half of them do, in the same noise."""
        whole, half = (self._all_taking_part(lit) for lit in (FEWEST, FEWEST // 2))
        if of_another_size(whole[..., len(CLASSES) :], half[..., len(CLASSES) :]):
            return False
        far, near = (float(_in_units_of_noise(moved)[:, 0].mean()) for moved in (whole, half))
        return abs(far - 2 * near) <= LINEAR * 2 * near + DEVIATIONS * math.sqrt(5 / LINEAR_STEPS)

    def _all_taking_part(self, lit: int) -> Tensor:
        """What steps move (steps, T, weights) in which all of FEWEST records take part, so many with a gradient."""
        images = torch.zeros(FEWEST, 3 * SIDE**2, dtype=torch.uint8)
        images[:lit, 0] = 255
        given = TrainingSet(images=images.view(-1, 3, SIDE, SIDE), labels=torch.full((FEWEST,), EVERYWHERE))
        plan = replace(canary_plan(self.site), epochs=LINEAR_STEPS, steps=None, batch_size=FEWEST)
        named = replace(self.defense_stack, name=f"{self.defense_stack.name}/sampled/linear/{lit}")
        moved = list[Tensor]()

        def train(with_trainer: Client, clock: Clock) -> None:
            moved.extend(moves(with_trainer, self.site.method, given, plan, clock=clock, sign=1.0, seed=self.site.seed))

        one = replace(self.site, clocks=self.site.clocks[:1])
        trainings(one, named, replace(self.site.client, validation=None), train)
        return torch.stack(moved).double()

    def versions(self, records: int) -> Sampled | None:
        """As `sampled`, of records of several entries; None also where the trainer refuses these."""
        try:
            return self.sampled(records, "versions", steps=VERSION_STEPS, versions=VERSIONS)
        except UsageError:
            return None

    def sampled(self, records: int, name: str, *, steps: int = STEPS, versions: int = 1) -> Sampled | None:
        """Train on so many records, each of so many equal entries.

        Torch's own generator is no secret of a client, and begins alike in each training. None where no Poisson sample
        with Gaussian noise is stated, or several different ones, and where the noise of steps varies in size."""
        classes = (torch.arange(records) % 4 == 3).long()
        given = _lit(classes, versions)
        epochs = max(1, steps // PER_EPOCH // len(self.site.clocks))
        plan = replace(canary_plan(self.site), epochs=epochs, steps=None, batch_size=records // PER_EPOCH)
        named = replace(self.defense_stack, name=f"{self.defense_stack.name}/sampled/{name}/{records}")
        moved = list[Tensor]()

        def train(with_trainer: Client, clock: Clock) -> None:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(stream(self.site.seed, "world", "audit").get_state())
                seen = moves(with_trainer, self.site.method, given, plan, clock=clock, sign=1.0, seed=self.site.seed)
            moved.extend(seen)

        trainers = trainings(self.site, named, replace(self.site.client, validation=None), train)
        uses = [use for trainer in trainers for use in trainer.uses]
        self.seen.extend(uses)
        stated = set(map(_stated, uses))
        (only,) = stated if len(stated) == 1 else (None,)
        taken = torch.stack(moved).double()
        sizes = _sizes(taken)
        if only is None or sizes is None:
            return None
        rate, noise = only
        expected = rate * torch.bincount(classes).double()
        return Sampled(
            counts=_in_units_of_noise(taken), means=expected / noise,
            variances=expected * (1 - rate) / noise**2, rate=rate,
            taken=Counted.of(moved, uses), rounds=len(trainers) if len(moved) % len(trainers) == 0 else 1, sizes=sizes,
        )  # fmt: skip


def _lit(classes: Tensor, versions: int) -> TrainingSet:
    """Images of these classes (records,), each of so many entries with the pixel of its class lit."""
    owners = torch.arange(len(classes)).repeat_interleave(versions)
    images = torch.zeros(len(owners), 3 * SIDE**2, dtype=torch.uint8)
    images[torch.arange(len(owners)), classes[owners]] = 255
    return TrainingSet(
        images=images.view(-1, 3, SIDE, SIDE), labels=torch.tensor(CLASSES)[classes[owners]],
        owners=None if versions == 1 else owners,
    )  # fmt: skip


def _stated(use: Use) -> tuple[float, float] | None:
    """The rate of a secret sample, and its Gaussian noise in units of the distance of neighbors."""
    allowed = allowed_by([use])
    return None if allowed is None or allowed.rate == 1 else (allowed.rate, 1 / allowed.present)


def _sizes(moved: Tensor) -> Tensor | None:
    """Logarithms of the mean square of the noise in each of steps (steps, T, weights); None where they vary more than
    those of equal noise, as behind a clip that a noisy count chooses, or where there is no noise."""
    beside = moved[..., len(CLASSES) :]
    beside = beside[:, beside.any(2).any(0)].flatten(1)
    if not beside.shape[1]:
        return None
    sizes = beside.square().mean(1).clamp_min(torch.finfo(beside.dtype).tiny).log()
    return sizes if float(sizes.var()) <= UNEVEN * 2 / beside.shape[1] else None


def _in_units_of_noise(moved: Tensor) -> Tensor:
    """What steps (steps, T, weights) move in the weights of each class's pixel (steps, classes); AGAINST moves down.

    Tensors count by their noise: a gradient is as long in each of them."""
    beside = moved[..., len(CLASSES) :]
    along = inverse_variances(beside.square().mean((0, 2)))
    noise = torch.einsum("stw,t->sw", beside, along).square().mean().sqrt()
    lit = torch.einsum("stw,t->sw", moved[..., : len(CLASSES)], along) * torch.tensor([1.0, -1.0])
    return lit / noise.clamp_min(torch.finfo(noise.dtype).tiny)
