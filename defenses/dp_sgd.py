"""DP-SGD in every client: differential privacy of each image in what its client's model learned.

Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133, by fdgsec.privacy.dp_sgd (per-record gradients by Opacus);
accounted over all rounds by fdgsec.privacy.accounting. What a method needs so that the guarantee covers its own
objective is in docs/defenses/dp-sgd.md, method by method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fdgsec.federation.artifact_checks import LARGEST
from fdgsec.federation.artifacts import GeneratorState, ModelState
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import NUMBERS, Client, Clock, Method
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Relation, calibrated_noise
from fdgsec.privacy.dp_sgd import SMALLEST_NORM, PrivateTrainer, uses_of
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import name_of
from fdgsec.runtime.secret_streams import SecretStream

SMALLEST_MULTIPLIER = 1e-6
"""Less noise costs an epsilon above 5e11 in a single step, which protects nobody and overflows where it is composed."""
PUBLIC = frozenset({"steps"})
"""Metrics that do not depend on any image."""


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """Clip every record's gradient and add Gaussian noise to each step (DP-SGD, Abadi et al. 2016), for (epsilon,
    delta).

    `epsilon` is for all rounds together, with the client in each; or `noise_multiplier` is given. `max_grad_norm` is
    the bound C, `max_physical_batch` the number of images in one forward pass. `epsilon` inf, or a multiplier of 0,
    clips without noise and gives no guarantee."""

    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    max_grad_norm: float = 1.0
    max_physical_batch: int | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise UsageError("dp-sgd needs either epsilon or noise_multiplier, as in dp-sgd:epsilon=8.")
        if (self.epsilon is not None and not self.epsilon > 0) or not 0 < self.delta < 1:
            raise UsageError(f"dp-sgd needs epsilon above 0 and delta in (0, 1); got {self.epsilon} and {self.delta}.")
        noise = 0.0 if self.noise_multiplier is None else self.noise_multiplier
        if not (0 <= noise < math.inf and SMALLEST_NORM <= self.max_grad_norm <= LARGEST):
            raise UsageError(
                f"dp-sgd needs a noise multiplier of at least 0 and a gradient norm from {SMALLEST_NORM:g} to "
                f"{LARGEST:g}; got {self.noise_multiplier} and {self.max_grad_norm}."
            )
        if 0 < noise < SMALLEST_MULTIPLIER:
            raise UsageError(
                f"dp-sgd.noise_multiplier must be 0 (no guarantee) or at least {SMALLEST_MULTIPLIER:g}; got {noise:g}, "
                "whose epsilon would be above 5e11."
            )
        if self.max_physical_batch is not None and self.max_physical_batch < 1:
            raise UsageError(f"dp-sgd.max_physical_batch counts images, at least 1; got {self.max_physical_batch}.")

    @property
    def mechanism_on(self) -> frozenset[str]:
        """Replaces what the update stage sends by a noisy function of the records."""
        return frozenset({"update"})

    @property
    def assumptions(self) -> Sequence[str]:
        """The assumptions of the guarantee."""
        return (
            (
                "dp-sgd: client sizes, steps and rounds are public; noise is set as if every client took part in all "
                "rounds"
            ),
            "dp-sgd: the records that a step draws, and the noise, stay secret; Gaussian sampling is research grade",
            (
                "dp-sgd: it counts a client's own training; what others' models reveal of its shared artifacts is "
                "their cost"
            ),
        )

    @property
    def promise(self) -> PlannedGuarantee | None:
        """A guarantee per record in the relation zero-out, because sizes are public. None without noise."""
        if self.noise_multiplier == 0 or self.epsilon == math.inf:
            return None
        relations: frozenset[Relation] = frozenset({"zero-out"})
        return PlannedGuarantee(by="dp-sgd", stage="update", unit="record", relations=relations)

    def check(self, method: Method) -> None:
        """Raise UsageError for a method whose model depends on images other than through its trainer."""
        if isinstance(method, Stacked):
            raise UsageError(
                f"dp-sgd has no guarantee for {_method_name(method.local)} on top of {_method_name(method.base)}: "
                "what a local method adds may let records meet in a batch; leave --with out, or take --defense "
                "dp-fedavg."
            )
        if not method.trains_through_trainer:
            raise UsageError(
                f"dp-sgd has no guarantee for {_method_name(method)}: its records meet in a batch, or its model "
                "depends on images beside what its trainer sees. Take fedavg, ccst, stablefdg-dp, fisc-dp, "
                "fedalign-dp or feddag-dp, or --defense dp-fedavg."
            )
        if method.client_plan is None:
            raise UsageError(f"dp-sgd needs to know the steps of a round; {_method_name(method)} trains by no plan.")

    def trainer(self, client: Client, method: Method, clock: Clock, rng: SecretStream) -> PrivateTrainer:
        """The training loop of `client`, with the noise that all rounds together need."""
        assert method.client_plan is not None
        noise = self.noise_multiplier
        if noise is None:
            assert self.epsilon is not None
            noise = _multiplier(
                self.epsilon, self.delta, len(client.data), method.client_plan, max(clock.rounds, 1), self.max_grad_norm
            )
        return PrivateTrainer(
            noise_multiplier=noise, max_grad_norm=self.max_grad_norm, secret=rng, method=_method_name(method),
            max_physical_batch=self.max_physical_batch,
        )  # fmt: skip

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Charge the cost of training to the model; other networks come from the same steps, and the size is public."""
        trained = outgoing.sender.trained
        if outgoing.stage != "update" or not trained or not all(use.noise for use in trained):
            return None
        artifact = outgoing.artifact
        if isinstance(artifact, ModelState) and outgoing.name == "model":
            return Protected(artifact=artifact, uses=trained)
        if isinstance(artifact, GeneratorState | ModelState):
            return Protected(artifact=artifact, uses=())
        if outgoing.name == NUMBERS and outgoing.metrics <= PUBLIC:
            weight = float(artifact.tensors()["values"].flatten()[0])
            if weight in (1.0, float(len(outgoing.sender.client.data))):  # public; any other may depend on images
                return Protected(artifact=artifact, uses=())
        return None


def _method_name(method: object) -> str:
    return name_of("methods", type(method))


@lru_cache(maxsize=256)
def _multiplier(epsilon: float, delta: float, records: int, plan: TrainingPlan, rounds: int, norm: float) -> float:
    """The smallest noise multiplier for which `rounds` rounds of a client of `records` images meet epsilon."""
    return calibrated_noise(
        lambda noise: [uses_of(records, plan, noise_multiplier=noise, max_grad_norm=norm)] * rounds,
        epsilon=epsilon, delta=delta, relation="zero-out",
    )  # fmt: skip
