"""Banks of styles: what clients sent, stacked with its owners."""

from collections.abc import Mapping

import torch

from fdgsec.federation.artifacts import Amplitudes, Artifact
from fdgsec.federation.wire import number_of


def attributed(shared: Mapping[str, Mapping[str, Artifact]], slot: str) -> Amplitudes:
    """Stack the spectra that clients sent in `slot`, every row owned by its sender, in the order of their numbers.

    Raises TypeError where a client sent something else."""
    numbers = sorted((number_of(name), name) for name in shared)
    found = [(number, spectra_in(shared[name], slot, of=name)) for number, name in numbers]
    return Amplitudes(
        values=torch.cat([sent.values for _, sent in found]),
        owner=torch.cat([torch.full((len(sent.owner),), number) for number, sent in found]),
    )


def spectra_in(inbox: Mapping[str, Artifact], slot: str, *, of: str) -> Amplitudes:
    """Take the spectra out of `slot`. Raises TypeError, naming their holder `of`, where there are none."""
    artifact = inbox.get(slot)
    if not isinstance(artifact, Amplitudes):
        came = "nothing" if artifact is None else artifact.kind
        raise TypeError(f"{of} should hold Amplitudes in {slot!r}; it holds {came}.")
    return artifact
