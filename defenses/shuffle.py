"""Shuffling: the server gets every client's upload, in random order and without its sender's name.

Uploads of a stage arrive as those of "anonymous:0", "anonymous:1", ...; a fresh order each stage, so that no number means the
same client twice. The parts of one upload stay together (a model with its weight). Order alone gives no epsilon:
shuffling amplifies that of local randomizers (Feldman, McMillan & Talwar, FOCS 2021), which is not claimed here, and what a style says of its
client links it without a name (the linkage attack)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.federation.artifacts import Amplitudes, Artifact
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.federation.server_view import needs_of
from fdgsec.federation.wire import ANONYMOUS, Policy, Upload, number_of
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """Hand uploads to the server in random order, without their senders' names; no (epsilon, delta)."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What the shuffler has to be, and what it does not promise."""
        return (
            "shuffle: a shuffler that neither reads uploads nor colludes with the server stands between",
            "shuffle: no (epsilon, delta): what an upload says of its client links it without a name",
        )

    def check(self, method: Method) -> None:
        """Raise UsageError for a method whose server must know who sent what."""
        needs = needs_of(method)
        if needs.uploads == "named":
            raise UsageError(f"shuffle hides who sent what; this method needs to know it because {needs.because}.")

    def on_message(self, outgoing: Outgoing, rng: torch.Generator) -> Protected | None:
        """Leave it: what is hidden is the sender."""
        return None

    def policy(self) -> Policy:
        """Shuffle on the wire."""
        return _Shuffling()


@dataclass(frozen=True, kw_only=True)
class _Shuffling:
    """Gives uploads new names in an order drawn by its coins."""

    def on_collected(self, uploads: Sequence[Upload], rng: torch.Generator) -> Sequence[Upload]:
        """Give the same uploads in random order."""
        order = torch.randperm(len(uploads), generator=rng).tolist()
        return [_renamed(uploads[number], f"{ANONYMOUS}:{place}") for place, number in enumerate(order)]


def _renamed(upload: Upload, sender: str) -> Upload:
    artifacts: Mapping[str, Artifact] = {
        slot: _disowned(artifact, sender) for slot, artifact in upload.artifacts.items()
    }
    return replace(upload, sender=sender, artifacts=artifacts)


def _disowned(artifact: Artifact, sender: str) -> Artifact:
    """Spectra name their owner in every row: make that the new sender."""
    if not isinstance(artifact, Amplitudes):
        return artifact
    return replace(artifact, owner=torch.full_like(artifact.owner, number_of(sender)))
