"""The verb `attack`: run (or reuse) a target, run every applicable attack with its controls, and write the report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from fdgsec.data.roles import Roles
from fdgsec.experiments.attack.attack_context import attack_context_of
from fdgsec.experiments.attack.attack_setting import AttackSetting, Outcome
from fdgsec.experiments.attack.current_styles import follows_model, last_global_model, prepare_style_view
from fdgsec.experiments.attack.kept_outcomes import KeptOutcomes, is_own
from fdgsec.experiments.attack.loop import (
    attack_named,
    attacks_of,
    corrected,
    planned_rows,
    reason_to_skip,
    run_attacks,
)
from fdgsec.experiments.attack.target_control import (
    LARGER,
    SIDE,
    control_settings,
    failed_control,
    single_steps_of_another,
    target_control,
    with_target_controls,
)
from fdgsec.experiments.attack.unread_releases import unread_kinds
from fdgsec.experiments.attack.written_report import write_report
from fdgsec.experiments.report.accuracy import accuracy_document
from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.experiments.run_config import Keep, RunConfig, on_stated_threads
from fdgsec.experiments.setup.defenses import defense_documents, defense_stack_of
from fdgsec.experiments.setup.run_federation import Federation, FederationRun, RunRequest, federate, observe
from fdgsec.experiments.setup.run_inputs import (
    World,
    artifact_rows,
    attackable,
    attacked_clients,
    attacked_method,
    load_world,
    method_of,
    model_of,
    roles_of,
)
from fdgsec.experiments.setup.style_view import StyleView
from fdgsec.experiments.train import dataset_document
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Method
from fdgsec.federation.run_folder import (
    check_replaceable,
    environment,
    load_run,
    reserved,
    run_key,
    save_run,
    stored_run,
    unreported,
)
from fdgsec.federation.wire import Transcript
from fdgsec.metrics.measurement import Control
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime.cache_files import cache_root, write_atomic
from fdgsec.runtime.checked_files import computed_anew
from fdgsec.runtime.disk_room import ROOM, check_room, system_line
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.file_locks import locked
from fdgsec.runtime.progress import Progressive, warn
from fdgsec.runtime.registry import is_bundled
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.attack import Attack, ReadsModels

STATISTICS_BYTES = 2 * 512 * 8
"""Bytes of one image's stored style statistics: mean and spread of 512 channels, the most of any encoder."""


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """The accuracy and the guarantees of a run, which are stored beside its transcript."""

    accuracy: Mapping[str, object] | None
    guarantees: Sequence[Mapping[str, object]]

    @classmethod
    def of(cls, stored: Mapping[str, object]) -> "_Facts":
        accuracy, guarantees = stored["accuracy"], stored["guarantees"]
        assert accuracy is None or isinstance(accuracy, dict)
        assert isinstance(guarantees, list)
        return cls(accuracy=accuracy, guarantees=guarantees)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inputs:
    """What a run and its attacks are made of."""

    config: RunConfig
    world: World
    roles: Roles
    clients: Sequence[Client]
    method: Method
    model: GlobalModel | None
    defense_stack: DefenseStack


class EngineMismatchError(FdgsecError):
    """A federation on another engine wrote a different transcript than this process with the same settings (exit 1)."""


@on_stated_threads
def attack(
    config: RunConfig,
    *,
    data_root: Path | None,
    out: Path | None,
    fresh: bool,
    progress: Progressive,
    federation: Federation | None = None,
    kept_for: str = "",
    workers: int = 1,
) -> AttackReport:
    """Attack `config.target` and return the report; with `out`, also write the run directory.

    With a `federation`, the run is repeated there, and the transcript of its server is attacked. Finished attacks are
    kept as they finish, and used again by the next call with the same settings (and `kept_for`) unless it is `fresh`.
    `workers` processes share out the attacks, with the same results.
    Raises UsageError, DataError and MissingResourceError before anything is written."""
    if out is not None:
        check_replaceable(out)
    with reserved(out), computed_anew(fresh):
        started = time.monotonic()
        attacked = _attacked(
            config, data_root=data_root, fresh=fresh, progress=progress, federation=federation, kept_for=kept_for,
            out=out, workers=workers,
        )  # fmt: skip
        report = _report(attacked, progress, started=started)
        if out is not None:
            write_report(report, out, config=attacked.inputs.config, transcript=attacked.observed.transcript)
        unreported(attacked.stored).unlink(missing_ok=True)
    return report


def _report(attacked: "_Attacked", progress: Progressive, *, started: float) -> AttackReport:
    """The report of a run and its attacks, with p-values corrected."""
    config, observed = attacked.inputs.config, attacked.observed
    side = attacked.inputs.world.dataset.image_size[0]
    results = target_controlled(corrected(attacked.outcomes), config, progress, image_size=side)
    artifacts, traffic = artifact_rows(observed.transcript.rows)
    return AttackReport(
        target=config.target, method=config.method, preset=config.preset,
        dataset=dataset_document(attacked.inputs.world.dataset, attacked.inputs.roles.summary(), config),
        encoder=attacked.encoder, backbone=config.backbone if config.rounds else None, seed=config.seed,
        profile=config.profile, reused=attacked.reused, defenses=defense_documents(config),
        guarantees=attacked.facts.guarantees, accuracy=attacked.facts.accuracy, attacks=results, artifacts=artifacts,
        model_traffic=traffic, transcript_sha256=observed.transcript.sha256, environment=environment(),
        unread_kinds=unread_kinds(
            observed.transcript, ADVERSARIES[config.adversary], attacks_of(config), results
        ),
        seconds=time.monotonic() - started,
    )  # fmt: skip


def target_controlled(
    results: Sequence[AttackResult], config: RunConfig, progress: Progressive, *, image_size: int
) -> Sequence[AttackResult]:
    """The results with their controls through the target, where the target's method or the attack is a plug-in's.

    Swatches have the run's `image_size`: what a method shares may depend on it.

    Those of fdgsec's own methods and attacks stand in docs/attacks.md."""
    own = is_bundled(attacked_method(config))
    named = [
        result.name
        for result in results
        if any(row.judged for row in result.measurements)
        and not (own and is_bundled(attack_named(result.name, config)))
    ]
    return with_target_controls(results, through_target(config, named, progress, image_size=image_size))


def through_target(
    config: RunConfig, attacks: Sequence[str], progress: Progressive, *, image_size: int = SIDE
) -> Mapping[str, Control]:
    """Run the controls of `attacks` through the target of `config`; one that cannot run has failed, with the reason.

    So has one that ends in an error of the plug-in, which was written for other images. Where more images or steps may
    decide (LARGER), a failed control is run once more."""
    method = attacked_method(config)
    reasons = {name: single_steps_of_another(method, name) for name in attacks}
    controls = {name: failed_control(reason) for name, reason in reasons.items() if reason}
    named = [name for name in attacks if name not in controls]
    for settings in control_settings(config, named, image_size=image_size):
        controls |= _controls(settings, progress)
    failed = [name for name in named if name in LARGER and not controls[name].passed]
    for settings in control_settings(config, failed, image_size=image_size, setups=LARGER):
        controls |= _controls(settings, progress)
    return controls


def _controls(settings: RunConfig, progress: Progressive) -> Mapping[str, Control]:
    """The controls of the attacks that `settings` names."""
    try:
        attacked = _attacked(settings, data_root=None, fresh=False, progress=progress, controls=False)
    except Exception as error:
        if system_line(error):  # a full disk says nothing about the attack
            raise
        reason = str(error) if isinstance(error, FdgsecError) else f"{type(error).__name__}: {error}"
        return dict.fromkeys(settings.attacks, failed_control(reason))
    unreported(attacked.stored).unlink(missing_ok=True)
    return {outcome.result.name: target_control(outcome.result) for outcome in attacked.outcomes}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Attacked:
    """A run and how its attacks ended, before p-values are corrected; `stored` is the run's folder in the cache."""

    stored: Path
    inputs: _Inputs
    encoder: str
    observed: FederationRun
    facts: _Facts
    reused: bool
    outcomes: Sequence[Outcome]


def _attacked(
    config: RunConfig,
    *,
    data_root: Path | None,
    fresh: bool,
    progress: Progressive,
    federation: Federation | None = None,
    controls: bool = True,
    kept_for: str = "",
    out: Path | None = None,
    workers: int = 1,
) -> _Attacked:
    """Run, or reuse, the target, and run all attacks that are not finished, with their positive and negative
    `controls`."""
    attacks = attacks_of(config)
    inputs = _inputs_of(config, attacks, data_root=data_root, progress=progress)
    _check_room(inputs, out)
    config, world, clients = inputs.config, inputs.world, inputs.clients
    method, model, defense_stack = inputs.method, inputs.model, inputs.defense_stack
    style_view = prepare_style_view(config, world, method, model, fresh=fresh, progress=progress)
    weights = [encoder_named(style_view.encoder).fingerprint, *([model.state.sha256] if model else [])]
    stored = _stored_target(config, world, weights)
    own = is_own(config, method, style_view.encoder)
    observed, facts, reused = _target_run(inputs, stored=stored if own else None, fresh=fresh, progress=progress)
    if federation is not None:
        progress.update("federation", 0, 1)
        elsewhere = federation(_request_of(inputs, progress))
        observed = replace(observed, transcript=_check_same_transcript(elsewhere.transcript, observed.transcript))
    if model is not None and config.rounds and follows_model(method):
        model = last_global_model(observed.transcript, model)
        style_view = prepare_style_view(config, world, method, model, fresh=fresh, progress=progress)
    attack_context = attack_context_of(
        config, world, inputs.roles, method, clients, observed, model, style_view, defense_stack, progress
    )
    setting = replace(AttackSetting.of(attack_context), controls=controls)
    finished = KeptOutcomes.of(
        config, images=world.dataset.content_sha256, weights=weights, transcript=observed.transcript.sha256,
        controls=controls, kept_for=kept_for, fresh=fresh,
    )  # fmt: skip
    outcomes = run_attacks(attacks, setting, progress, finished=finished if own else None, workers=workers)
    return _Attacked(
        stored=stored, inputs=inputs, encoder=style_view.encoder, observed=observed, facts=facts, reused=reused,
        outcomes=outcomes,
    )  # fmt: skip


def _check_room(inputs: _Inputs, out: Path | None) -> None:
    """Raise NoRoomError where a disk has no room for the statistics of all images and the models that are kept."""
    rounds = {"models=all": inputs.config.rounds, "models=last": 1}.get(inputs.config.keep, 0)
    tensors = () if inputs.model is None else inputs.model.state.tensors().values()
    models = rounds * (len(inputs.clients) + 1) * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    statistics = STATISTICS_BYTES * len(inputs.world.dataset)
    check_room(cache_root(), needed=ROOM + statistics + models, option="FDGSEC_CACHE")
    if out is not None:
        check_room(out.absolute().parent, needed=ROOM + models, option="--out")


def _kept(config: RunConfig, attacks: Sequence[Attack]) -> Keep:
    """The payloads to keep: the most that the user or an attack asks for; they are part of the run's key."""
    releases = attacked_method(config).released_kinds if config.rounds else frozenset[str]()
    able = [attack.keeps for attack in attacks if isinstance(attack, ReadsModels) and attack.reads & releases]
    if config.rounds and follows_model(attacked_method(config)):
        able.append("models=last")  # the styles are those of this model's layers
    return max({config.keep, *able}, key=get_args(Keep).index)


def _stored_target(config: RunConfig, world: World, weights: Sequence[str]) -> Path:
    """The folder of the run in the cache, whether it exists or not."""
    decisive = replace(config, attacks=(), attack_options={}, adversary="server")
    return stored_run(run_key(decisive.sha256, world.dataset.content_sha256, *weights))


def _target_run(
    inputs: _Inputs, *, stored: Path | None, fresh: bool, progress: Progressive
) -> tuple[FederationRun, _Facts, bool]:
    """The run with its facts, and whether it was reused: a report was made of it before.

    It is made once for all processes, and kept in the folder `stored`; without one it is made every time."""
    if stored is None:
        return *_made_run(inputs, progress), False
    with locked(stored, what="the run in", waiting=warn):
        known = None if fresh else load_run(stored)
        if known is not None:
            transcript, states, found = known
            reused = not unreported(stored).exists()
            return FederationRun(transcript=transcript, states=states), _Facts.of(found), reused
        observed, facts = _made_run(inputs, progress)
        kept = {name: {k: v for k, v in state.items() if k == SHARED_ROWS} for name, state in observed.states.items()}
        write_atomic(unreported(stored), "")
        save_run(stored, observed.transcript, kept, {"accuracy": facts.accuracy, "guarantees": observed.guarantees})
    return observed, facts, False


def _made_run(inputs: _Inputs, progress: Progressive) -> tuple[FederationRun, _Facts]:
    """Run the target, and measure the accuracy of what it trains."""
    config, model, accuracy = inputs.config, inputs.model, None
    if config.rounds and model is not None:
        observed = federate(_request_of(inputs, progress))
        accuracy = {**accuracy_document(observed.final, inputs.world.unseen(), {}), "round": observed.kept_round}
    else:
        observed = observe(
            inputs.method, inputs.clients, seed=config.seed, name="run", model=model,
            defense_stack=inputs.defense_stack, delta=config.delta,
        )  # fmt: skip
    return observed, _Facts(accuracy=accuracy, guarantees=observed.guarantees)


def _request_of(inputs: _Inputs, progress: Progressive) -> RunRequest:
    return RunRequest(
        method=inputs.method, members=inputs.clients, model=inputs.model, config=inputs.config,
        defense_stack=inputs.defense_stack, progress=progress,
    )  # fmt: skip


def _check_same_transcript(elsewhere: Transcript, here: Transcript) -> Transcript:
    """The transcript of the federation, which must equal that of this process byte for byte.

    Only clients know which images their releases contain. The run in this process provides that truth, which is valid
    only if both transcripts are equal. Raises EngineMismatchError otherwise."""
    if elsewhere.sha256 != here.sha256:
        pairs = zip(elsewhere.rows, here.rows, strict=False)
        first = next((f"{a.stage} of {a.sender} in round {a.round}" for a, b in pairs if a != b), "its length")
        raise EngineMismatchError(
            f"the federation's transcript differs from that of this process (first difference: {first}); causes are "
            "another machine or version, other images, or nodes with keys of their own. Run `fdgsec train` there, then "
            "`fdgsec attack --run DIR`."
        )
    return elsewhere


def check_attacks(config: RunConfig) -> None:
    """Raise UsageError for an attack that the settings name and that cannot read what the target releases."""
    config = attackable(config)
    kinds, adversary = attacked_method(config).released_kinds, ADVERSARIES[config.adversary]
    for attack in attacks_of(config) if config.attacks else ():
        reason = reason_to_skip(attack, config.target, kinds, adversary)
        if reason:
            raise UsageError(f"attack {attack.name} cannot run on {config.target}: {reason}.")


@on_stated_threads
def dry_run(config: RunConfig, *, data_root: Path | None, progress: Progressive) -> list[tuple[str, str]]:
    """Each attack and whether it would run, or the reason why not, decided as in the run: data are loaded.

    Only single steps are trained. One client's release is compared with what attacks take it for, and small exchanges
    show what the adversary would see. Raises what `attack` raises."""
    attacks = attacks_of(config)
    inputs = _inputs_of(config, attacks, data_root=data_root, progress=progress)
    style_view = StyleView.of(inputs.config, inputs.world.dataset, inputs.method, inputs.model)
    attack_context = attack_context_of(
        inputs.config, inputs.world, inputs.roles, inputs.method, inputs.clients,
        FederationRun(transcript=Transcript()), inputs.model, style_view, inputs.defense_stack, progress,
    )  # fmt: skip
    return planned_rows(attacks, AttackSetting.of(attack_context))


def _inputs_of(
    config: RunConfig, attacks: Sequence[Attack], *, data_root: Path | None, progress: Progressive
) -> _Inputs:
    """Build the inputs. Raises UsageError for a target that releases nothing without training where no round trains."""
    config = attackable(config)
    config = replace(config, keep=_kept(config, attacks))
    method = method_of(config)
    world = load_world(config, data_root=data_root, progress=progress)
    roles = roles_of(world, config)
    clients = attacked_clients(world, roles, config, method)
    method.check(len(clients))
    needed = config.rounds or method.shares == "every"  # styles of every round are those of the current model
    model = model_of(config, method, len(world.dataset.class_names)) if needed else None
    return _Inputs(
        config=config, world=world, roles=roles, clients=clients, method=method, model=model,
        defense_stack=defense_stack_of(config, method),
    )  # fmt: skip
