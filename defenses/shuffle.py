"""Shuffling: the server receives every client's upload in random order and without its sender's name.

Uploads of a stage arrive as those of "anonymous:0", "anonymous:1", ..., in a fresh order at each stage, so that a
number does not identify a client. The parts of one upload stay together (a model with its weight). Shuffling alone
gives no epsilon. It amplifies that of local randomizers (Feldman, McMillan & Talwar, FOCS 2021), which is not claimed
here, and the content of a style links it to its client without a name (the linkage attack)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.federation.artifacts import Amplitudes, Artifact
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.federation.server_needs import needs_of
from fdgsec.federation.wire import ANONYMOUS, CLIENTS, Policy, Upload, number_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """Send uploads to the server in random order, without their senders' names; no (epsilon, delta)."""

    @property
    def assumptions(self) -> Sequence[str]:
        """The assumptions about the shuffler, and what it does not guarantee."""
        return (
            "shuffle: an ideal shuffler, that neither reads uploads nor colludes with the server, stands between",
            "shuffle: no (epsilon, delta), no amplification: what an upload says of its client links it without a name",
        )

    def check(self, method: Method) -> None:
        """Raise UsageError for a method whose server must know who sent what."""
        needs = needs_of(method)
        if needs.uploads == "named":
            raise UsageError(f"shuffle hides who sent what; this method needs to know it because {needs.because}.")

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """No change: only the sender is hidden, on the wire."""
        return None

    def policy(self) -> Policy:
        """Shuffle on the wire."""
        return _ShufflePolicy()


@dataclass(frozen=True, kw_only=True)
class _ShufflePolicy:
    """Renames uploads in a random order."""

    def on_collected(self, uploads: Sequence[Upload], rng: SecretStream) -> Sequence[Upload]:
        """The same uploads in random order; a sum of all clients (secure aggregation) stays what it is."""
        if [upload.sender for upload in uploads] == [CLIENTS]:
            return uploads
        order = rng.permutation(len(uploads)).tolist()
        return [_rename_sender(uploads[number], f"{ANONYMOUS}:{place}") for place, number in enumerate(order)]


def _rename_sender(upload: Upload, sender: str) -> Upload:
    artifacts: Mapping[str, Artifact] = {
        slot: _rename_owner(artifact, sender) for slot, artifact in upload.artifacts.items()
    }
    return replace(upload, sender=sender, artifacts=artifacts)


def _rename_owner(artifact: Artifact, sender: str) -> Artifact:
    """Replace the owner that spectra name in every row by the new sender."""
    if not isinstance(artifact, Amplitudes):
        return artifact
    return replace(artifact, owner=torch.full_like(artifact.owner, number_of(sender)))
