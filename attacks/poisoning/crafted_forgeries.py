"""Malicious clients that send the vectors of crafted_vectors, for models, styles, spectra, generators and gradients.

`knowledge` is "own": the client's own honest artifact, and those of the same step on halves of its images; or
"omniscient": the artifacts of all honest clients in this step, as the papers assume in their strongest setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from fdgsec.attacks.poisoning.crafted_vectors import inner_product, largest_z, little_is_enough, min_max, min_sum
from fdgsec.federation.artifacts import Artifact, ImageStyles, ModelState
from fdgsec.federation.forged_artifacts import OfKind, unchecked
from fdgsec.federation.malicious_client_protocol import ForgeryError, Leaving, Peers
from fdgsec.federation.method import Reply, StepRequest
from fdgsec.federation.reply_slots import Slot

KnowledgeOfPeers = Literal["own", "omniscient"]
Rule = Literal["a little is enough", "a little, z = 1.5", "inner product", "min-max", "min-sum"]
RULES: tuple[Rule, ...] = get_args(Rule)
ORIGIN = ("ModelState", "HeadGradient")
"""Kinds that are changes of something: only their reversal means anything (inner product)."""
CRAFTED = (*ORIGIN, "GeneratorState", "StyleStatistics", "StyleDistribution", "ImageStyles", "Amplitudes")
"""Kinds that can be averaged over clients. Scores are about different models, prototypes about different classes."""
NOT_NEGATIVE = ("std", "mean_spread", "std_spread", "values", "running_var")
MODERATE_Z = 1.5
EPSILON = 0.5
LARGEST_Z = 3.0
"""In place of an infinite z, where malicious clients are a majority."""


@dataclass(frozen=True, kw_only=True)
class Crafted(OfKind):
    """Sends what `rule` makes of the artifacts that the client knows."""

    rule: Rule
    knowledge: KnowledgeOfPeers

    @property
    def name(self) -> str:
        """Name as "min-max, omniscient"."""
        return f"{self.rule}, {self.knowledge}"

    def forged(self, leaving: Leaving, seen: StepRequest, /) -> Artifact | None:
        """Forge. Raises ForgeryError where the engine tells nothing about peers."""
        if leaving.peers is None:
            raise ForgeryError(f"{self.name} needs an engine that runs all clients before it forges.")
        model = seen.model.state if seen.model is not None and leaving.artifact.kind == ModelState.kind else None
        known = self._known(leaving, leaving.peers)
        slot = Slot(
            name=leaving.slot, senders=[str(place) for place in range(len(known))], artifacts=known, model=model
        )
        clients, malicious = len(leaving.peers.honest) + leaving.peers.malicious, leaving.peers.malicious
        vector = slot.origin + crafted_vector(self.rule, slot.rows - slot.origin, clients=clients, malicious=malicious)
        return _refilled(leaving.artifact, vector)

    def _known(self, leaving: Leaving, peers: Peers) -> list[Artifact]:
        """The artifacts that are known; the client's own one where no other client sent any."""
        if self.knowledge == "own":
            return [leaving.artifact, *_in_slot(peers.rehearse(), leaving.slot)]
        return _in_slot(peers.honest, leaving.slot) or [leaving.artifact]


def crafted(kind: str) -> tuple[Crafted, ...]:
    """Every rule that applies to artifacts of `kind`, with either knowledge."""
    if kind not in CRAFTED:
        return ()
    rules: list[Rule] = [rule for rule in RULES if rule != "inner product" or kind in ORIGIN]
    return tuple(Crafted(kind=kind, rule=rule, knowledge=knowledge) for knowledge in _KNOWLEDGE for rule in rules)


_KNOWLEDGE: tuple[KnowledgeOfPeers, ...] = ("own", "omniscient")


def crafted_vector(rule: Rule, known: Tensor, *, clients: int, malicious: int) -> Tensor:
    """Apply a rule to the known vectors (k, D) of a federation of `clients`, of which `malicious` forge: (D,)."""
    if rule == "inner product":
        return inner_product(known, epsilon=EPSILON)
    if rule in ("min-max", "min-sum"):
        return min_max(known) if rule == "min-max" else min_sum(known)
    z = MODERATE_Z if rule == "a little, z = 1.5" else min(LARGEST_Z, largest_z(clients, malicious))
    return little_is_enough(known, z=z)


def _in_slot(replies: Sequence[Reply], slot: str) -> list[Artifact]:
    return [reply.artifacts[slot] for reply in replies if slot in reply.artifacts]


def _refilled(artifact: Artifact, vector: Tensor) -> Artifact:
    """`vector` in the place of an artifact's floats, or of each of its rows; what must not be negative is cut at 0."""
    tensors, start = artifact.tensors(), 0
    rows = isinstance(artifact, ImageStyles) or artifact.kind == "Amplitudes"
    for name, value in sorted(artifact.tensors().items()):
        if not value.is_floating_point():
            continue
        width = value[0].numel() if rows else value.numel()
        part = vector[start : start + width]
        if name.rpartition(".")[2] in NOT_NEGATIVE:
            part = part.clamp_min(0)
        full = part.expand(value.shape[0], width) if rows else part
        tensors[name] = full.reshape(value.shape).to(value.dtype)
        start += width
    return unchecked(artifact, {name: tensor.clone() for name, tensor in tensors.items()})
