"""A finished training run, read back from its folder: settings, data, clients, final model, transcript."""

from dataclasses import dataclass
from pathlib import Path

from fdgsec.experiments.attack_run.read_finished_run import check_division
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import World, load_world, method_of, model_of
from fdgsec.experiments.train import MODEL, split_sources
from fdgsec.federation.artifacts import ModelState, decode
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method
from fdgsec.federation.wire import Transcript
from fdgsec.runtime.checked_files import check_sums
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from fdgsec.runtime.untrusted_text import read_json_object


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A run of `fdgsec train --out`: its kept model and transcript, and its data and clients, reconstructed."""

    config: RunConfig
    world: World
    method: Method
    clients: tuple[Client, ...]
    model: GlobalModel
    transcript: Transcript

    def updates(self) -> dict[str, GlobalModel]:
        """The clients' models of the last round, by name. Raises UsageError if the transcript does not hold them."""
        found = {
            message.sender: self.model.with_state(message.artifact.tensors())
            for message in self.transcript.messages()
            if message.stage == "update"
            and isinstance(message.artifact, ModelState)
            and message.round == self.config.rounds - 1
            and message.artifact.tensors().keys() == self.model.state.tensors().keys()
        }
        if not found:
            raise UsageError("this run kept no client models; train it again with --keep models=last.")
        return found

    def inbox(self, client: str) -> Inbox:
        """What `client` received before round 0: the exchange, reproduced from the same random streams.

        Raises UsageError for a method that does not share once."""
        if self.method.shares != "once":
            raise UsageError(f"{self.config.method} transfers no style before it trains; ccst and fisc do.")
        seed, names = self.config.seed, tuple(member.name for member in self.clients)
        clock = Clock(round=0, rounds=self.config.rounds, participants=names)
        shared = {}
        for member in self.clients:
            rng = stream(seed, "world", "share", 0, member.name)
            shared[member.name], _ = self.method.share(member, model=None, state={}, clock=clock, rng=rng)
        secret = simulated_stream(seed, "combine", 0)
        return self.method.combine(shared, server={}, clock=clock, rng=secret)[0][client]


def finished(run: Path, *, data_root: Path | None, progress: Progressive) -> Finished:
    """Read a run that `fdgsec train` wrote. Raises UsageError for a folder without one, DataError for a broken one."""
    if not (run / "config.json").is_file() or not (run / MODEL).is_file():
        raise UsageError(f"{run} holds no trained run (config.json, {MODEL}); `fdgsec train --out {run}` writes one.")
    check_sums(run)
    config = RunConfig.of(read_json_object(run / "config.json"), where=f"{run}/config.json")
    method = method_of(config)
    world = load_world(config, data_root=data_root, progress=progress)
    check_division(read_json_object(run / "report.json"), config)
    clients, _ = split_sources(world, config)
    state = decode((run / MODEL).read_bytes(), source=str(run / MODEL))
    fresh = model_of(config, method, len(world.dataset.class_names))
    if state.tensors().keys() != fresh.state.tensors().keys():
        raise DataError(f"{run / MODEL} is not the network that {config.method} trains with {config.backbone}.")
    return Finished(
        config=config, world=world, method=method, clients=tuple(clients),
        model=fresh.with_state(state.tensors()), transcript=Transcript.load(run),
    )  # fmt: skip
