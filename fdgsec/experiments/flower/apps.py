"""The two Flower apps: `server` runs a job, `client` takes part in one."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fdgsec.data.catalog import load_dataset
from fdgsec.experiments.flower.jobs import RUN, Job, Purpose, Status, save_trained, settings_read
from fdgsec.experiments.run_config import RunConfig, defense_of, defense_text
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_federation import RoundSettings, run_rounds
from fdgsec.experiments.setup.run_inputs import (
    attacked_clients,
    blueprint_of,
    division_of,
    load_world,
    method_of,
    model_of,
    roles_of,
    with_validation,
)
from fdgsec.experiments.train import split_sources
from fdgsec.federation.defense import Defense, mechanism_on
from fdgsec.federation.engines.flower.admission import Terms, assemble
from fdgsec.federation.engines.flower.codec import Introduction, printable
from fdgsec.federation.engines.flower.environment import BINDINGS
from fdgsec.federation.engines.flower.grid import GridEngine, Stage
from fdgsec.federation.engines.flower.handler import Member, answer
from fdgsec.federation.engines.flower.step_limits import (
    FROM_SEED,
    StepLimits,
    admit_run,
    key_in,
    noise_key,
    pin_settings,
)
from fdgsec.federation.method import Client
from fdgsec.federation.run_folder import code_sha256
from fdgsec.runtime.errors import DataError, FdgsecError, UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.secret_streams import new_key
from fdgsec.runtime.threads import limited_threads
from fdgsec.runtime.untrusted_text import parse_json
from fdgsec.runtime.version import __version__

SIMULATION = "FDGSEC_SIMULATION"
"""The environment variable with the job's folder for simulated nodes; deployed nodes do not use it."""

SEEN_SINGLY = (
    "secure aggregation and shuffling are not part of this deployment: the server would see every upload; leave the "
    "defense out, or use --engine local."
)

LONGEST_ERROR = 5000
"""Characters of an error of the server app, which may quote nodes."""

server = ServerApp()
client = ClientApp()


@server.main()
def _serve(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["job"]))
    status = Status(folder=folder)
    status.note(status="running")
    try:
        job = Job.read(folder)
        with limited_threads(job.config.threads):
            _run_job(job, grid, folder, status)
    except FdgsecError as error:
        status.note(status="failed", exit_code=error.exit_code, error=printable(str(error), LONGEST_ERROR))
        raise
    except BaseException as error:
        status.note(status="failed", exit_code=1, error=f"{type(error).__name__}: {error}")
        raise
    status.note(status="done", exit_code=0)


def _run_job(job: Job, grid: Grid, folder: Path, status: Status) -> None:
    config = job.config
    method = method_of(config)
    defense_stack = defense_stack_of(config, method)
    if job.deployed and defense_stack.policies:
        raise UsageError(SEEN_SINGLY)
    bindings = os.environ.get(BINDINGS)
    terms = Terms(
        clients=job.clients, fdgsec=__version__, code_sha256=code_sha256(),
        bindings=Path(bindings) if bindings else None,
    )  # fmt: skip
    least = math.ceil(job.quorum * job.clients - 1e-9)
    assembly = assemble(grid, settings=job.settings(), terms=terms, least=least, wait=job.wait)
    found = assembly.nodes
    clients = {told.name: asdict(told) for told in found.values()}
    status.note(rounds=config.rounds, clients=clients, refused=list(assembly.refused))
    classes = len(next(iter(found.values())).classes)
    needed = config.rounds or method.shares == "every"
    engine = GridEngine(
        grid=grid, nodes={told.name: node for node, told in found.items()}, settings=job.settings(),
        timeout=job.timeout, on_stage=lambda stage: _record_stage(status, stage),
    )  # fmt: skip
    settings = RoundSettings.of(config)
    if job.deployed:  # nodes know the run's seed
        settings = replace(settings, key=new_key(), reproducible=any(told.reproducible for told in found.values()))
    trained = run_rounds(
        method, engine, model_of(config, method, classes) if needed else None, settings,
        defense_stack=defense_stack, quorum=job.quorum, checked=True, 
        on_failure=lambda failure: status.add("failures", asdict(replace(failure, reason=printable(failure.reason)))),
    )  # fmt: skip
    save_trained(trained, folder / RUN)


def _record_stage(status: Status, stage: Stage) -> None:
    status.note(round=stage.round)
    status.add("stages", asdict(stage))


@client.query("fdgsec")
def _take_part(message: Message, context: Context) -> Message:
    return answer(message, context, member_of)


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The configuration of a node: its client number, the number of clients, its images and its state folder.

    `own_data` says that all images under `data_root` are this client's; otherwise it holds its part of the dataset.
    `required` are defenses without which it joins no run; where one of them is a mechanism, the node sends nothing that
    none covers, except in the stages `uncovered`. It takes part in at most `runs` runs. `secret` is the file with the
    key of its noise, or FROM_SEED; only a simulated node may leave it empty, which means the same."""

    partition: int
    clients: int
    data_root: Path | None
    state: Path
    own_data: bool = False
    simulated: bool = False
    required: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    runs: int | None = None
    secret: str = FROM_SEED

    @classmethod
    def of(cls, context: Context) -> "NodeConfig":
        """Read a node's own configuration. Raises UsageError."""
        told = context.node_config
        if "partition-id" not in told or "num-partitions" not in told:
            raise UsageError("a node needs partition-id and num-partitions in its --node-config; use `fdgsec join`.")
        simulated = os.environ.get(SIMULATION)
        state = str(told.get("state", "")) or (f"{simulated}/state" if simulated else "")
        if not state:
            raise UsageError(
                "a node needs a folder for its state: set state in its --node-config, or use `fdgsec join`."
            )
        secret = str(told.get("secret", "")) or (FROM_SEED if simulated else "")
        if not secret:
            raise UsageError(
                f"a node needs a key for its noise: set secret in its --node-config to a file (or to {FROM_SEED}, for "
                "noise from the run's seed, which the server knows), or use `fdgsec join`."
            )
        root = str(told.get("data-root", ""))
        return cls(
            partition=int(told["partition-id"]), clients=int(told["num-partitions"]),
            data_root=Path(root) if root else None, state=Path(state) / f"run-{context.run_id}",
            own_data=bool(told.get("own-data", False)),
            simulated=bool(simulated), required=_names(told, "require-defenses"), uncovered=_names(told, "uncovered"),
            runs=int(told["runs"]) if "runs" in told else None, secret=secret,
        )  # fmt: skip


def _names(told: Mapping[str, object], option: str) -> tuple[str, ...]:
    """A list of texts in a node's configuration. Raises UsageError."""
    found = parse_json(str(told.get(option, "[]")), source=f"{option} of --node-config", error=UsageError)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"{option} of --node-config must be a list of texts; got {found!r}.")
    return tuple(found)


def member_of(settings: str, context: Context) -> Member:
    """This node's client for the run that `settings` describe. Raises FdgsecError."""
    return _member(settings, NodeConfig.of(context))


@lru_cache(maxsize=16)
def _member(settings: str, node: NodeConfig) -> Member:
    if node.runs is not None:
        admit_run(node.state, node.runs)
    pin_settings(node.state, settings)
    purpose, config = settings_read(settings)
    config = replace(config, defenses=own_first(node, config.defenses))
    method = method_of(config)
    defense_stack = defense_stack_of(config, method)
    if defense_stack.policies and not node.simulated:
        raise UsageError(SEEN_SINGLY)
    covered = any(mechanism_on(defense_of(text)) for text in node.required)
    if node.secret != FROM_SEED:
        defense_stack = replace(defense_stack, key=noise_key(node.state, key_in(Path(node.secret))))
    with limited_threads(config.threads):
        local, classes = _local_client(purpose, config, node)
    sizes = (
        (0, 0)
        if defense_stack.defenses
        else (len(local.data), 0 if local.validation is None else len(local.validation))
    )
    introduction = Introduction(  # with a defense, sizes are not reported
        name=local.name, clients=node.clients, training=sizes[0], validation=sizes[1], classes=classes,
        fdgsec=__version__, code_sha256=code_sha256(), torch=torch.__version__, threads=config.threads,
        reproducible=node.secret == FROM_SEED,
    )  # fmt: skip
    step_limits = StepLimits(
        folder=node.state, name=local.name, method=method, rounds=config.rounds, clients=node.clients
    )
    return Member(
        client=local, method=method, defense_stack=defense_stack, blueprint=blueprint_of(config, method, len(classes)),
        seed=config.seed, threads=config.threads, folder=node.state, step_limits=step_limits, introduction=introduction,
        uncovered=frozenset(node.uncovered) if covered else None,
    )  # fmt: skip


def own_first(node: NodeConfig, listed: Sequence[Defense]) -> tuple[Defense, ...]:
    """The defenses that the node's owner requires, in the owner's order, then what else the server lists.

    Raises UsageError where the server does not list a required one, so that it would not know what it receives, or
    lists another mechanism beside them, which would release the records a second time or in place of the owner's."""
    own = [defense_of(text) for text in node.required]
    lacking = [text for text, defense in zip(node.required, own, strict=True) if defense not in listed]
    if lacking:
        raise UsageError(f"client:{node.partition} takes part in no run without --defense {lacking[0]}.")
    unbounded = [text for text, defense in zip(node.required, own, strict=True) if _without_epsilon(defense)]
    if unbounded:
        raise UsageError(
            f"client:{node.partition} cannot require {unbounded[0]}: the server chooses steps and rounds, and with "
            "them what a noise multiplier costs; require an epsilon."
        )
    added = [defense for defense in listed if defense not in own]
    foreign = [defense for defense in added if own and mechanism_on(defense)]
    if foreign:
        raise UsageError(
            f"client:{node.partition} takes part in no run with {defense_text(foreign[0])}, which its owner does not "
            "require: beside the required defenses a server may only list post-processing."
        )
    return (*own, *added)


def _without_epsilon(defense: Defense) -> bool:
    return bool(mechanism_on(defense)) and getattr(defense, "noise_multiplier", None) is not None


def _local_client(purpose: Purpose, config: RunConfig, node: NodeConfig) -> tuple[Client, tuple[str, ...]]:
    """This node's client with its own images or its part of the node's dataset, and the class names."""
    name = f"client:{node.partition}"
    if node.own_data and purpose == "attack":
        raise UsageError(f"{name} holds its own images; train first, then `fdgsec attack --run DIR`.")
    if node.own_data and config.roles == "aside":
        raise UsageError(f"{name} holds its own images, which --roles aside cannot split; leave it out.")
    if node.own_data:
        images = load_dataset(
            config.dataset, data_root=node.data_root, image_size=config.image_size, allow_partial=True, seed=config.seed
        )
        client = Client(name=name, data=images)
        divided = with_validation(client, seed=config.seed, division=division_of(config.defenses))
        return divided, tuple(images.class_names)
    world = load_world(config, data_root=node.data_root, progress=NoProgress())
    try:
        if purpose == "train":
            clients, _ = split_sources(world, config)
        else:
            clients = attacked_clients(world, roles_of(world, config), config, method_of(config))
    except UsageError as error:
        raise DataError(str(error)) from error  # it may count images, which the server is not told
    known = {each.name: each for each in clients}
    if name not in known or len(known) != node.clients:
        raise UsageError(
            f"{name} of {node.clients} is not among the {len(known)} clients of this run; join with --of {len(known)}."
        )
    return known[name], tuple(world.dataset.class_names)
