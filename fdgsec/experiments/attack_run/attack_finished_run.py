"""The verb `attack --run`: attack the transcript of a finished run of `train`, `attack` or a Flower federation."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from fdgsec.experiments.attack.attack_context import attack_context_of
from fdgsec.experiments.attack.attack_setting import AttackSetting
from fdgsec.experiments.attack.current_styles import follows_model, last_global_model, prepare_style_view
from fdgsec.experiments.attack.kept_outcomes import KeptOutcomes, is_own
from fdgsec.experiments.attack.loop import attacks_of, corrected, planned_rows, run_attacks
from fdgsec.experiments.attack.run_attacks import target_controlled
from fdgsec.experiments.attack.unread_releases import unread_kinds
from fdgsec.experiments.attack.written_report import write_report
from fdgsec.experiments.attack_run.read_finished_run import MODELS, Record, Recorded, read_record, reconstruct_run
from fdgsec.experiments.attack_run.truth import RecordedQuestions, models_not_kept, reproduce_states
from fdgsec.experiments.attack_vectors.read_recording import is_recording
from fdgsec.experiments.attack_vectors.run_vector_attacks import attack_vectors
from fdgsec.experiments.attack_vectors.vectors_request import VectorsRequest
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import Profile, RunConfig, merged, named_attacks, parse_assignments, target_method
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_federation import FederationRun
from fdgsec.experiments.setup.run_inputs import artifact_rows, attacked_method, method_of, options_of
from fdgsec.experiments.setup.style_view import StyleView
from fdgsec.experiments.train import dataset_document
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.run_folder import check_replaceable, code_sha256, environment
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime.checked_files import computed_anew
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.registry import Target, resolve, target_named, targets
from fdgsec.runtime.threads import limited_threads
from fdgsec.threats.attack import Attack


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """How to attack a recorded run; None stands for the run's own target, seed and device.

    `assignments` are the command line's --set items, which may only set options of attacks."""

    run: Path
    target: str | None = None
    adversary: str = "server"
    attacks: Sequence[str | Attack] = ()
    profile: str = "quick"
    seed: int | None = None
    assignments: Sequence[str] = field(default_factory=tuple)
    device: str | None = None


def attack_recorded(
    request: RecordedRequest,
    *,
    data_root: Path | None,
    out: Path | None,
    fresh: bool,
    progress: Progressive,
    workers: int = 1,
) -> AttackReport:
    """Attack the run in `request.run` and return the report; with `out`, also write it with a copy of the transcript.

    Questions that the transcript does not answer are simulated with the run's method, or skipped with the reason.
    Finished attacks are kept as they finish, and used again by the next call with the same request, unless `fresh`;
    `workers` processes share them out, with the same results.
    Raises UsageError, DataError, ArtifactError and MissingResourceError before anything is written."""
    if is_recording(request.run):
        with computed_anew(fresh):
            return attack_vectors(_of_recording(request, out), data_root=data_root, out=out, progress=progress)
    started = time.monotonic()
    if out is not None:
        if out.resolve() == request.run.resolve():
            raise UsageError(f"--out {out} is the folder of the attacked run; name another folder.")
        check_replaceable(out)
    record = read_record(request.run)
    config = settings_for(record, request)
    attacks = attacks_of(config)
    with limited_threads(config.threads), computed_anew(fresh):
        recorded = reconstruct_run(record, config, data_root=data_root, progress=progress)
        model = _shared_model(recorded)
        style_view = prepare_style_view(config, recorded.world, recorded.method, model, fresh=fresh, progress=progress)
        setting, notes = _attack_setting(recorded, request, model, style_view, progress=progress)
        finished = KeptOutcomes.of(
            config, images=recorded.world.dataset.content_sha256,
            weights=[encoder_named(style_view.encoder).fingerprint, *([model.state.sha256] if model else [])],
            transcript=record.transcript.sha256, controls=True, kept_for=json.dumps(["run", setting.seed, notes]),
            fresh=fresh,
        )  # fmt: skip
        own = is_own(config, recorded.method, style_view.encoder)
        outcomes = run_attacks(attacks, setting, progress, finished=finished if own else None, workers=workers)
        report = _report(recorded, setting, started=started, notes=notes)
        side = recorded.world.dataset.image_size[0]
        results = target_controlled(corrected(outcomes), config, progress, image_size=side)
    unread = unread_kinds(record.transcript, setting.adversary, attacks, results)
    report = replace(report, attacks=results, unread_kinds=unread, seconds=time.monotonic() - started)
    if out is not None:
        write_report(report, out, config=config, transcript=record.transcript)
    return report


def _of_recording(request: RecordedRequest, out: Path | None) -> VectorsRequest:
    """The request about a recording of another federation, which has no method. Raises UsageError for a target."""
    if request.target is not None:
        raise UsageError(f"{request.run} is a recording of another federation: there is no method to name a target of.")
    if out is not None and out.resolve() == request.run.resolve():
        raise UsageError(f"--out {out} is the folder of the recording; name another folder.")
    return VectorsRequest(
        artifacts=request.run, adversary=request.adversary, attacks=request.attacks, profile=request.profile,
        seed=request.seed or 0, assignments=request.assignments,
    )  # fmt: skip


def dry_run_recorded(
    request: RecordedRequest, *, data_root: Path | None, progress: Progressive
) -> tuple[RunConfig, list[tuple[str, str]]]:
    """The settings, and each attack with whether it would run or why not, decided as in the run.

    Raises what `attack_recorded` raises, and UsageError for a recording, whose attacks take seconds."""
    if is_recording(request.run):
        raise UsageError(f"{request.run} is a recording: attacks on it take seconds; leave --dry-run out.")
    record = read_record(request.run)
    config = settings_for(record, request)
    attacks = attacks_of(config)
    with limited_threads(config.threads):
        recorded = reconstruct_run(record, config, data_root=data_root, progress=progress)
        model = _shared_model(recorded)
        style_view = StyleView.of(config, recorded.world.dataset, recorded.method, model)
        setting, _ = _attack_setting(recorded, request, model, style_view, progress=progress)
        planned = planned_rows(attacks, setting)
    lacking = {attack.name: models_not_kept(attack, config.keep) for attack in attacks}
    return config, [
        (name, f"in part: {lacking[name]}" if said == "runs" and lacking[name] else said) for name, said in planned
    ]


def settings_for(record: Record, request: RecordedRequest) -> RunConfig:
    """The run's settings combined with those of the attack. Raises UsageError if they do not fit the run."""
    if request.profile not in get_args(Profile):
        raise unknown_name("profile", request.profile, get_args(Profile))
    ran = record.config
    resolve("methods", ran.method)
    name = _target(record, request.target)
    shared = target_method(target_named(name)).shared_mean
    encoder = None if shared is None else shared.encoder
    names, options = named_attacks(request.attacks)
    chosen = {
        "target": name, "profile": request.profile, "adversary": request.adversary, "attacks": names,
        "attack_options": merged(options, _attack_options(request.assignments)), "encoder": encoder or ran.encoder,
        "device": request.device or ran.device,
        "style_size": ran.style_size if "style_size" in options_of(ran.method) else None,
    }  # fmt: skip
    return RunConfig.of({**ran.document(), **chosen}, where="run")


def _attack_options(assignments: Sequence[str]) -> Mapping[str, Any]:
    given = parse_assignments(assignments)
    foreign = sorted(set(given) - {"attacks"})
    if foreign:
        raise UsageError(f"--set {foreign[0]}=... cannot change a finished run; only attacks.NAME.OPTION can be set.")
    found: Mapping[str, Any] = given.get("attacks", {})
    return found


def _target(record: Record, named: str | None) -> str:
    """The name of the target: `named`, or the only one with the run's method and options.

    Raises UsageError if no target or several targets fit, or if the run released none of the target's artifacts."""
    config = record.config
    kinds = {row.kind for row in record.transcript.rows}
    if named is None:
        known = targets()
        fitting = [name for name, target in known.items() if target.method == config.method and _fits(config, target)]
        fitting = [name for name in fitting if name != config.method] or fitting  # a variant before the method itself
        if len(fitting) != 1:
            also = "fedavg attacks its models" if MODELS[0] in kinds else "see `fdgsec list targets`"
            raise UsageError(
                f"no single target is {config.method} with the options of this run; name one with --target ({also})."
            )
        named = fitting[0]
    target = target_named(named)
    if target.method == config.method and not _fits(config, target):
        raise UsageError(f"{named} is {target.method} with {dict(target.options)}; this run had other options.")
    method = attacked_method(replace(config, target=named))
    released = method.released_kinds
    if target.method != config.method and released != {MODELS[0]}:
        raise UsageError(
            f"{named} is of {target.method}; this run is of {config.method} (--target fedavg reads its models)."
        )
    if not released & kinds or (method.needs_training and not config.rounds):
        raise UsageError(
            f"{named} releases {', '.join(sorted(released))}; this run trained for {config.rounds} rounds and "
            f"released {', '.join(sorted(kinds)) or 'nothing'}."
        )
    return named


def _fits(config: RunConfig, target: Target) -> bool:
    """Whether the run has this target's values of the options that distinguish targets of the same method."""
    apart = {option for other in targets().values() if other.method == target.method for option in other.options}
    base = replace(config, local="", local_options={})
    meant = method_of(replace(base, options=dict(target.options)))
    ran = method_of(base)
    return all(getattr(ran, option) == getattr(meant, option) for option in apart)


def _shared_model(recorded: Recorded) -> GlobalModel | None:
    """The run's model, with the weights of which the clients shared styles last."""
    if recorded.model is not None and recorded.config.rounds and follows_model(recorded.method):
        return last_global_model(recorded.record.transcript, recorded.model)
    return recorded.model


def _attack_setting(
    recorded: Recorded,
    request: RecordedRequest,
    model: GlobalModel | None,
    style_view: StyleView,
    *,
    progress: Progressive,
) -> tuple[AttackSetting, list[str]]:
    """The attacks' shared inputs, and notes on what could not be reproduced."""
    config, record = recorded.config, recorded.record
    defense_stack = defense_stack_of(config, recorded.method)
    found = reproduce_states(recorded, defense_stack)
    observed = FederationRun(transcript=record.transcript, states=found.states)
    attack_context = attack_context_of(
        config,
        recorded.world,
        recorded.roles,
        recorded.method,
        recorded.clients,
        observed,
        model,
        style_view,
        defense_stack,
        progress,
    )
    questions = RecordedQuestions(recorded=recorded, challenger=attack_context.challenger, reproduced=found)
    notes = [*recorded.notes, *dict.fromkeys(reason for reason in found.reasons.values() if reason)]
    if record.report.get("environment", {}).get("code_sha256") != code_sha256():
        notes.append("another version of fdgsec wrote the run: simulations use the current version of its method")
    return AttackSetting.of(attack_context, questions=questions, seed=request.seed), notes


def _report(recorded: Recorded, setting: AttackSetting, *, started: float, notes: Sequence[str]) -> AttackReport:
    """The report without its attacks; accuracy and guarantees are those that the run reported."""
    config, said = recorded.config, recorded.record.report
    artifacts, traffic = artifact_rows(recorded.record.transcript.rows)
    summary = recorded.roles.summary()
    roles = {**recorded.record.counts, **{role: summary[role] for role in ("held_out", "auxiliary")}}
    return AttackReport(
        target=config.target, method=config.method_name, preset=config.preset,
        dataset=dataset_document(recorded.world.dataset, roles, config),
        encoder=setting.knowledge.encoder, backbone=config.backbone if config.rounds else None, seed=config.seed,
        profile=config.profile, reused=True, defenses=said["defenses"], guarantees=said["guarantees"],
        accuracy=said["accuracy"], attacks=[], artifacts=artifacts, model_traffic=traffic,
        transcript_sha256=recorded.record.transcript.sha256,
        environment={**environment(), "attack_seed": setting.seed, "notes": "; ".join(notes)},
        seconds=time.monotonic() - started,
    )  # fmt: skip
