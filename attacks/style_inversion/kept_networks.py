"""Trained networks of style inversion, kept as each is finished: a stopped attack goes on after the last of them, and
inside the training that it was in.

A network is found again by a hash of everything that decides its weights: the training data, the options and the random
stream, fdgsec's code, torch, and what the processor's sums depend on. A network that is read computes what it computed
when it was trained, to the bit."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fdgsec.attacks.style_inversion.halfway import Halfway
from fdgsec.nn.training.numerics import numerics_of
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.progress import warn
from fdgsec.runtime.source_hash import is_unchanged, module_sha256, source_sha256
from fdgsec.runtime.tensor_files import read_safetensors

NetworkT = TypeVar("NetworkT", bound=nn.Module)

FOLDER = "networks"
"""The folder of the cache."""
PACKAGES = ("fdgsec.nn",)
MODULES = (
    "fdgsec.attacks.style_inversion.halfway", "fdgsec.attacks.style_inversion.inverter",
    "fdgsec.attacks.style_inversion.inverter_cache", "fdgsec.attacks.style_inversion.inverter_gan",
    "fdgsec.attacks.style_inversion.kept_networks", "fdgsec.metrics.image_similarity", "fdgsec.runtime.random_streams",
)  # fmt: skip
"""Packages and modules that decide how a network is trained on given data."""


def kept_network(
    train: Callable[[Halfway], NetworkT],
    blank: Callable[[], NetworkT],
    *,
    device: torch.device,
    keeps: bool,
    **decided_by: object,
) -> NetworkT:
    """Give the network that `train` gives, in evaluation mode: read from the cache into a `blank` one, or trained.

    `train` is told where its own state may be kept before it ends.
    `decided_by` are all the arguments of `train`; their order does not matter. Unless it `keeps`, nothing is read or
    stored: `train` then runs code that the key does not cover. A full disk is said, and no error."""
    if not keeps:
        return train(Halfway()).eval()
    key = _key(device, decided_by)
    path = cache_root() / FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
    halfway = Halfway(path=path.with_suffix(".halfway"), key=f"{key} halfway")
    found = recalled(path, key=key, read=lambda content: _loaded(content, blank()))
    if found is not None:
        halfway.forget()  # what another process left, which was stopped after this network was finished
        return found.to(device).eval()
    unchanged = is_unchanged("fdgsec")
    if not unchanged:
        halfway = Halfway()
    trained = train(halfway)
    if unchanged:
        content = {name: value.detach().cpu().contiguous() for name, value in trained.state_dict().items()}
        try:
            remember(path, save(content), key=key)
        except OSError as error:
            warn(f"a trained network cannot be kept under {cache_root()}: {error.strerror}.")
        else:
            halfway.forget()
    return trained.eval()


def _key(device: torch.device, decided_by: Mapping[str, object]) -> str:
    code = " ".join([*map(source_sha256, PACKAGES), *map(module_sha256, MODULES)])
    told = " ".join(f"{name}={_digest(value)}" for name, value in sorted(decided_by.items()))
    return f"{code} {torch.__version__} {numerics_of(device)} {told}"


def _digest(value: object) -> str:
    """A hash of the content of `value`: tensors, networks, streams (by their seed), and plain values of these.

    Raises TypeError for anything else."""
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous()
        digest = hashlib.sha256(f"{content.dtype} {tuple(content.shape)}".encode())
        digest.update(content.reshape(-1).view(torch.uint8).numpy().data)  # without a copy: images of a prior are many
        return digest.hexdigest()
    if isinstance(value, nn.Module):
        return _digest(tuple((name, part) for name, part in value.state_dict().items()))
    if isinstance(value, torch.Generator):
        return f"seed {value.initial_seed()}"
    if isinstance(value, tuple):
        return hashlib.sha256("\n".join(map(_digest, value)).encode()).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        named = tuple((spec.name, getattr(value, spec.name)) for spec in fields(value))
        return _digest((type(value).__name__, *named))
    if value is None or isinstance(value, str | int | float):
        return f"{type(value).__name__} {value!r}"
    raise TypeError(f"{type(value).__name__} has no description that another process would give.")


def _loaded(content: bytes, blank: NetworkT) -> NetworkT:
    """The `blank` network with stored weights. Raises DataError."""
    stored, _ = read_safetensors(content, source="its content")
    try:
        blank.load_state_dict(stored)
    except RuntimeError as error:
        raise DataError("it holds another network.") from error
    return blank
