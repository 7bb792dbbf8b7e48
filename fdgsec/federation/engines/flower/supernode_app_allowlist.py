"""Flower's SuperNode, restricted to fdgsec's own app.

Run it as `python -m fdgsec.federation.engines.flower.supernode_app_allowlist ...`.

A SuperNode runs any code that its server sends, so a rule like "takes part in no run without this defense" would hold
for honest servers only. Flower can require signed apps, but only its own platform signs them. Here the app must be the
one that the installed fdgsec would write (`fdgsec.federation.engines.flower.app`): a few lines that call the code on
this machine. Any other is refused before it is unpacked, and the server is notified. Takes the arguments of
`flower-supernode`."""

import io
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import ParamSpec

from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as supernode
from flwr.supernode.cli.flower_supernode import flower_supernode

from fdgsec.federation.engines.flower.app import CODE, MODULE, PYPROJECT
from fdgsec.runtime.zip_members import ZIP_DAMAGE, unpacked

P = ParamSpec("P")
LARGEST = 65536
"""Largest size in bytes of one unpacked file: ours have a few hundred."""
FILES, LISTING = ("pyproject.toml", f"{MODULE}.py"), ".info/CONTENT"
"""The files of our app, and the list of them that Flower adds."""
OURS = {"fdgsec": "the app that this machine's fdgsec writes"}
"""Replaces the keys that Flower trusts."""


def is_own_app(content: bytes) -> bool:
    """Tell whether a Flower app bundle holds fdgsec's app and nothing else."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            names = bundle.namelist()
            if sorted(name for name in names if name != LISTING) != sorted(FILES) or names.count(LISTING) > 1:
                return False
            held = {name: unpacked(bundle, bundle.getinfo(name), most=LARGEST) for name in FILES}
            settings = tomllib.loads(held.pop("pyproject.toml").decode())
    except ZIP_DAMAGE:
        return False
    return settings == tomllib.loads(PYPROJECT) and held == {f"{MODULE}.py": CODE.encode()}


def _verified(fab: Fab, trusted_entities: dict[str, str]) -> bool:
    del trusted_entities  # Flower passes OURS; only the content counts
    return is_own_app(fab.content)


def _to_be_verified(get_fab: Callable[[str, int], Fab]) -> Callable[[str, int], Fab]:
    """Mark every bundle as verifiable, because Flower verifies only bundles that the server's platform marks."""
    return lambda digest, run: replace(get_fab(digest, run), verifications={"valid_license": "fdgsec"})


def _gated(pull: Callable[P, int | None]) -> Callable[P, int | None]:
    def gated(*given: P.args, **named: P.kwargs) -> int | None:
        bound = signature(pull).bind(*given, **named)
        bound.arguments |= {"get_fab": _to_be_verified(bound.arguments["get_fab"]), "trusted_entities": OURS}
        return pull(*bound.args, **bound.kwargs)

    return gated


def main() -> None:
    """Run `flower-supernode`, with the check before every app. Raises TypeError where Flower's internals differ."""
    pull, verify = supernode._pull_and_store_message, supernode._verify_fab
    if not {"get_fab", "trusted_entities"} <= set(signature(pull).parameters) or len(signature(verify).parameters) != 2:
        raise TypeError("this version of flwr takes in apps in another way; the gate of fdgsec does not fit it.")
    gates = {"_verify_fab": _verified, "_pull_and_store_message": _gated(pull)}
    supernode.__dict__.update(gates)  # where they are looked up for every message
    flower_supernode()


if __name__ == "__main__":
    main()
