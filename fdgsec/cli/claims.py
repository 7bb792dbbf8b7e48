"""`fdgsec claims`: every privacy claim of the five papers, with a measured verdict."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fdgsec.cli import options as o
from fdgsec.cli.run_folders import default_folder
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import progress_bars

Only = Annotated[list[str] | None, typer.Option("--claim", help="Only this claim (`fdgsec list claims`); repeatable.")]
Encoders = Annotated[
    list[str] | None,
    typer.Option("--encoder", help="An encoder by name; repeatable. Default: mini, which decides few."),
]
Seeds = Annotated[str, typer.Option("--seeds", help="Random seeds, as in 10,11,12: each draws other clients.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Runs made at once; memory permitting.")]
Register = Annotated[
    Path | None,
    typer.Option("--register", help="Only write this file: the ledger's hash, claims, dataset, encoders, seeds."),
]
RegistrationFile = Annotated[
    Path | None, typer.Option("--registration", help="Run what this file registered, and cite its commit.")
]
WithoutBeyond = Annotated[
    bool, typer.Option("--without-beyond", help="Leave out runs that no verdict depends on: numbers beyond the claims.")
]


@o.takes("target_domain", "per_domain", "image_size", "device")
def command(
    *,
    dataset: o.Dataset = "pacs",
    data_root: o.DataRoot = None,
    encoder: Encoders = None,
    given: Mapping[str, Any],
    seeds: Seeds = "0",
    profile: o.ProfileName = "quick",
    claim: Only = None,
    register: Register = None,
    registration: RegistrationFile = None,
    without_beyond: WithoutBeyond = False,
    workers: Workers = 1,
    fresh: o.Fresh = False,
    out: o.Out = None,
    as_json: o.AsJson = False,
) -> int:
    """Measure what the papers claim about privacy, and give a verdict for each claim.

    Exit code 1 where no claim could be run; data that are not found are an error before any run."""
    from fdgsec.cli.tables import print_claims
    from fdgsec.data.catalog import check_found
    from fdgsec.experiments.claims.measured_runs import ClaimsRequest
    from fdgsec.experiments.claims.registration import write_registration
    from fdgsec.experiments.claims.run_claims import claims, registered_request, registration_of

    request = ClaimsRequest(
        dataset=dataset, profile=profile, encoders=tuple(encoder or ("mini",)), seeds=_numbers(seeds),
        only=tuple(claim or ()), given=given, beyond=not without_beyond,
    )  # fmt: skip
    if register is not None:
        if registration is not None:
            raise UsageError("a registration is made or run, not both.")
        write_registration(registration_of(request, data_root=data_root), register)
        typer.echo(f"registered in {register}; commit it before you run: fdgsec claims --registration {register}")
        return 0
    if registration is not None:
        if any((encoder, claim, seeds != "0", *(value is not None for value in given.values()))):
            raise UsageError("--registration says what is run; leave the other options out.")
        request = replace(registered_request(registration), beyond=not without_beyond)
        if dataset not in ("pacs", request.dataset) or profile not in ("quick", request.profile):
            raise UsageError(f"{registration} is of {request.dataset}, profile {request.profile}.")
    named = f"claims-{request.dataset}-{request.profile}-seed{'-'.join(map(str, request.seeds))}"
    folder = out or default_folder(named, request, data_root)
    check_found(request.dataset, data_root)
    with progress_bars() as progress:
        found = claims(
            request, data_root=data_root, out=folder, fresh=fresh, progress=progress, workers=workers,
            registration=registration,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_claims(found, out=folder)
    verdicts = [claim["verdict"] for claim in found["claims"] if claim["verdict"] != "not a testable claim"]
    return 1 if verdicts and all(verdict == "not run" for verdict in verdicts) else 0


def _numbers(text: str) -> tuple[int, ...]:
    """The seeds in "10,11,12". Raises UsageError for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--seeds takes whole numbers with commas between them; got {text!r}.") from error
