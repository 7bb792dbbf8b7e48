"""The runs behind a ledger: which attacks on which targets, encoders and seeds, each once, stored and reused."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fdgsec.data.catalog import dataset_entry
from fdgsec.experiments.attack.run_attacks import attack
from fdgsec.experiments.claims.catalogue import Claim, Probe, ledger_run
from fdgsec.experiments.claims.fixed_inputs import inputs_of
from fdgsec.experiments.failed_runs import Failed, Runs
from fdgsec.experiments.run_config import RunConfig, attack_settings, merged, on_stated_threads
from fdgsec.experiments.setup.run_inputs import load_world
from fdgsec.federation.run_folder import run_key
from fdgsec.nn.styles.image_styles import prepare_statistics
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.checked_files import check_sums
from fdgsec.runtime.errors import DataError, MissingResourceError, UsageError
from fdgsec.runtime.interruption import kept_text, telling
from fdgsec.runtime.progress import NoProgress, Progressive, warn
from fdgsec.runtime.source_hash import check_unchanged, source_sha256
from fdgsec.runtime.untrusted_text import read_json_object

Report = Mapping[str, Any] | str
"""A report document, or the reason why there is none."""


@dataclass(frozen=True, kw_only=True)
class ClaimsRequest:
    """The claims to measure, and the dataset, encoders, seeds and settings; `given` overrides the claims' own.

    Without `beyond`, runs are left out of which no verdict is made."""

    dataset: str
    profile: str = "quick"
    encoders: Sequence[str] = ("mini",)
    seeds: Sequence[int] = (0,)
    only: Sequence[str] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    beyond: bool = True

    def __post_init__(self) -> None:
        for name, values in {"encoders": self.encoders, "seeds": self.seeds}.items():
            if not values or len(set(values)) != len(values):
                raise UsageError(f"claims take one or more different {name}; got {list(values)}.")

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that were given."""
        return {key: value for key, value in self.given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class MeasuredRuns:
    """The reports of all runs that the claims need, by their settings."""

    request: ClaimsRequest
    reports: Mapping[str, Report]

    def report(self, claim: Claim, probe: Probe, *, encoder: str, seed: int) -> Report:
        """The report of a probe with an encoder and seed."""
        return self.reports[_shared(probe_config(claim, probe, self.request, encoder=encoder, seed=seed))]

    def source_domains(self, claim: Claim, probe: Probe, *, encoder: str, seed: int) -> Sequence[str]:
        """The domains that clients have images of in a probe's run; none where there is no report."""
        report = self.report(claim, probe, encoder=encoder, seed=seed)
        if isinstance(report, str):
            return ()
        config = probe_config(claim, probe, self.request, encoder=encoder, seed=seed)
        names = report["dataset"]["domains"]
        unseen = config.target_domain or dataset_entry(config.dataset).target_domain or names[-1]
        return [name for name in names if name not in (unseen, config.validation_domain)]


def probe_config(claim: Claim, probe: Probe, request: ClaimsRequest, *, encoder: str, seed: int) -> RunConfig:
    """The settings of a probe's run: the ledger's, the probe's and the user's, later ones winning.

    Claims about the method's own network, or pixels, have no `encoder`."""
    given = {**ledger_run(), **probe.run, **request.settings}
    given |= {"dataset": request.dataset, "seed": seed, "adversary": probe.adversary}
    if claim.per_encoder:
        given["encoder"] = encoder
    config = attack_settings(probe.target, given, profile=request.profile, assignments=probe.settings)
    return replace(config, attacks=(probe.attack,))


def _shared(config: RunConfig) -> str:
    """The key of the run that attacks with these settings share."""
    return replace(config, attacks=(), attack_options={}).sha256


def planned_runs(claims: Sequence[Claim], request: ClaimsRequest) -> Mapping[str, RunConfig]:
    """Every run once, with all the attacks that some claim asks for, seed by seed.

    Raises UsageError where two claims ask for one attack with different options."""
    runs: dict[str, RunConfig] = {}
    for seed in request.seeds:
        for claim in claims:
            for probe in claim.probes(beyond=request.beyond):
                for encoder in request.encoders if claim.per_encoder else ("",):
                    config = probe_config(claim, probe, request, encoder=encoder, seed=seed)
                    key = _shared(config)
                    runs[key] = _joined(runs[key], config, claim) if key in runs else config
    return runs


def _joined(one: RunConfig, other: RunConfig, claim: Claim) -> RunConfig:
    """The run with the attacks of both."""
    for name in set(one.attacks) & set(other.attacks):
        if one.attack_options.get(name) != other.attack_options.get(name):
            raise UsageError(f"claim {claim.id} and another ask for {name} on {one.target} with different options.")
    attacks = tuple(sorted({*one.attacks, *other.attacks}))
    return replace(one, attacks=attacks, attack_options=merged(one.attack_options, other.attack_options))


def measure(
    claims: Sequence[Claim],
    request: ClaimsRequest,
    *,
    data_root: Path | None,
    out: Path,
    fresh: bool,
    workers: int,
    progress: Progressive,
    registered: str = "",
) -> MeasuredRuns:
    """Make all runs that are not stored under `out`/runs, `workers` at once.

    Stored reports are used again if settings, images, weights and code are the same, and `registered`: the registration
    that they were made under, so that no report from before it counts. Raises the error of a run that fails before any
    other one has ended, and FailedRunsError after all where later ones did."""
    runs = planned_runs(claims, request)
    if workers > 1 and not fresh:
        asked = [config for config in runs.values() if config.encoder in request.encoders and not config.rounds]
        _prepare(asked, data_root=data_root, progress=progress)
    shown: Progressive = progress if workers == 1 else NoProgress()
    work = partial(_report, data_root, out, fresh, registered, source_sha256("fdgsec"), shown)
    reports, finished = dict[str, Report](), 0 if fresh else len([*(out / "runs").glob("*.key")])
    tried = Runs(ended=finished)
    progress.update("runs", 0, len(runs))
    kept = telling(lambda: kept_text(out / "runs", len(reports), len(runs), "runs"))
    with kept, closing(tried.results(work, longest_first(runs), workers=workers, name=_named)) as ended:
        for done, ((key, _), report) in enumerate(ended, 1):
            if not isinstance(report, Failed):
                reports[key] = report
            progress.update("runs", done, len(runs))
    tried.check()
    return MeasuredRuns(request=request, reports={key: reports[key] for key in runs})


def _named(run: tuple[str, RunConfig]) -> str:
    _, config = run
    return f"{config.target}, {config.encoder}, adversary {config.adversary}, seed {config.seed}"


def longest_first(runs: Mapping[str, RunConfig]) -> list[tuple[str, RunConfig]]:
    """The runs, those first that take several times as long as others, so that none of them ends alone: where lists are
    reconstructed behind a defense, the adversary runs the method on hundreds of its own for each client."""
    return sorted(runs.items(), key=lambda run: not (run[1].defenses and "set-reconstruction" in run[1].attacks))


def _prepare(runs: Sequence[RunConfig], *, data_root: Path | None, progress: Progressive) -> None:
    """Compute and store each encoder's statistics of all images once, on their threads, before workers need them."""
    prepared = set[tuple[object, ...]]()
    for config in runs:
        needed = (config.encoder, config.image_size, config.per_domain, config.per_class, config.style_size)
        if needed in prepared:
            continue
        prepared.add(needed)
        try:
            _prepare_one(config, data_root=data_root, progress=progress)
        except MissingResourceError:
            continue  # the run itself says what is missing


@on_stated_threads
def _prepare_one(config: RunConfig, *, data_root: Path | None, progress: Progressive) -> None:
    dataset = load_world(config, data_root=data_root, progress=progress).dataset
    prepare_statistics(
        config.encoder, dataset, reuse=True, size=config.style_size,
        progress=partial(progress.update, f"style statistics, {config.encoder}"),
    )  # fmt: skip


def _report(
    data_root: Path | None, out: Path, fresh: bool, registered: str, code: str, progress: Progressive,
    run: tuple[str, RunConfig],
) -> Report:  # fmt: skip
    """The report of one run, stored or new, made by `code`; or the reason why it is missing."""
    _, config = run
    name = f"{config.target}-{config.adversary}-{config.encoder}-seed{config.seed}-{config.sha256[:8]}"
    folder, stamp = out / "runs" / name, out / "runs" / f"{name}.key"
    try:
        inputs = inputs_of(config, data_root=data_root)
    except MissingResourceError as error:
        return str(error)
    key = run_key(config.sha256, json.dumps(inputs, sort_keys=True), registered)
    if not fresh and (found := _stamped(folder, stamp, key)) is not None:
        return found
    check_unchanged("fdgsec", since=code)  # before what may take hours, too
    try:
        made = attack(
            config, data_root=data_root, out=folder, fresh=fresh, progress=progress, kept_for=registered
        )  # no attack from before the registration counts
    except MissingResourceError as error:
        return str(error)
    check_unchanged("fdgsec", since=code)
    text = made.json()
    write_atomic(stamp, f"{key} {hashlib.sha256(text.encode()).hexdigest()}")
    document: Mapping[str, Any] = json.loads(text)
    return document


def _stamped(folder: Path, stamp: Path, key: str) -> Mapping[str, Any] | None:
    """The report of a finished run; None where there is none of these settings, or another one than was stamped.

    One whose files were altered is not used, which is said on stderr."""
    if not stamp.exists() or not (folder / "report.json").exists():
        return None
    text = (folder / "report.json").read_bytes()
    if stamp.read_text(errors="replace") != f"{key} {hashlib.sha256(text).hexdigest()}":
        return None
    try:
        check_sums(folder)
        return read_json_object(folder / "report.json")
    except DataError as error:
        warn(f"{folder} is not used, it is computed anew: {error}")
        return None
