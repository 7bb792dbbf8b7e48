"""Style banks: the styles or spectra that clients sent, stacked, with the owner of each row."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleBank, StyleStatistics
from fdgsec.federation.wire import number_of

Kind = TypeVar("Kind", bound=Artifact)


def artifact_in(inbox: Mapping[str, Artifact], slot: str, kind: type[Kind], *, of: str) -> Kind:
    """Take the artifact out of `slot`. Raises TypeError, naming its holder `of`, unless it is of this kind."""
    artifact = inbox.get(slot)
    if not isinstance(artifact, kind):
        came = "nothing" if artifact is None else artifact.kind
        raise TypeError(f"{of} should hold {kind.kind} in {slot!r}; it holds {came}.")
    return artifact


def stack_styles(
    shared: Mapping[str, Mapping[str, Artifact]], slot: str, kind: type[StyleStatistics] | type[ImageStyles]
) -> StyleBank:
    """Stack the styles that clients sent in `slot`, every row owned by its sender, in the order of `shared`.

    Raises TypeError where a client sent another kind."""
    sent = {name: artifact_in(inbox, slot, kind, of=name) for name, inbox in shared.items()}
    means = [torch.atleast_2d(styles.mean) for styles in sent.values()]
    stds = [torch.atleast_2d(styles.std) for styles in sent.values()]
    return StyleBank(mean=torch.cat(means), std=torch.cat(stds), owner=_owners(list(sent), means))


def stack_spectra(shared: Mapping[str, Mapping[str, Artifact]], slot: str) -> Amplitudes:
    """Stack the spectra that clients sent in `slot`, every row owned by its sender, in the order of their numbers.

    Raises TypeError where a client sent another kind."""
    names = sorted(shared, key=number_of)
    values = [artifact_in(shared[name], slot, Amplitudes, of=name).values for name in names]
    return Amplitudes(values=torch.cat(values), owner=_owners(names, values))


def _owners(names: Sequence[str], rows: Sequence[Tensor]) -> Tensor:
    """Give the number of the sender of each row."""
    return torch.cat([torch.full((len(sent),), number_of(name)) for name, sent in zip(names, rows, strict=True)])
