"""Local epoch of each method against the network passes that its equations need: `python -m benchmarks.method_speed`.

"fit" is the whole of one client's `fit`: the network is built, the state loaded, images are read, cropped and mirrored,
the method's losses and styles computed, the update copied out. "bare" is the passes of benchmarks/passes.py alone, on
float batches in memory, with the same network, batch, layout, precision and optimizer. Both alternate in one process; a
ratio is of two neighboring runs. Seconds are processor seconds (time.process_time) of this process, which other
processes hardly affect. The target is a ratio of at most 1.15.

"no ops" is the same `fit` without the method's operations on images or maps, where an option disables them: what
remains above 1 is the loop's. Measured once, outside `fit`: what is computed once and remembered (stylized images), and
what is shared.

StableFDG's batch grows at random, so its bare passes are those of the very steps that `fit` takes: a dry run records
how many records reach each stage. `forward` counts the forward passes per step in the dry run, for all methods."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from benchmarks.method_cases import CASES, PLAN, Observed
from benchmarks.passes import Bare, exploration_shares, passage_of, watch
from benchmarks.training_speed import (
    CLASSES,
    CPU,
    Job,
    Setting,
    Timing,
    images_of,
    interleaved,
    processor_name,
    setting_of,
)
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import MemoryStates
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Reply, State, Step, StepRequest
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.run_folder import environment
from fdgsec.federation.wire import Upload, Wire
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.precision import precision_of
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_key, simulated_stream

TARGET = 1.15
MEASURED = "client:0"
OTHERS, FEW = 2, 16  # the other clients, and the images that each has
VALIDATION = 16


@dataclass(frozen=True, kw_only=True)
class Listening:
    """A local engine that records the measured client's requests, and the processor seconds of its shares."""

    engine: LocalEngine
    asked: dict[Step, list[StepRequest]] = field(default_factory=dict)
    sharing: list[float] = field(default_factory=list)

    def clients(self) -> Sequence[str]:
        """All members."""
        return self.engine.clients()

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Ask the clients one after the other."""
        replies: dict[str, Reply] = {}
        for name, request in requests.items():
            started = time.process_time()
            replies.update(self.engine.ask(step, {name: request})[0])
            if name == MEASURED:
                self.asked.setdefault(step, []).append(request)
                self.sharing.extend([time.process_time() - started] if step == "share" else [])
        return replies, {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Watched(GlobalModel):
    """A global model whose networks record the number of records per forward pass."""

    seen: list[dict[str, int]]

    def module(self, *, layout: torch.memory_format = torch.contiguous_format) -> Classifier:
        """Build the network, load the state, and register the hooks."""
        network = super().module(layout=layout)
        watch(network, self.seen)
        return network


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """One client of a method in its second round: all arguments of one `fit`."""

    method: FedAvg
    client: Client
    request: StepRequest
    state: State
    shares: Sequence[float]
    once: float

    def fit(self, *, model: GlobalModel | None = None, method: FedAvg | None = None) -> dict[str, float]:
        """Train one epoch, the same one every time; return the metrics."""
        assert self.request.model is not None
        update, _ = (method or self.method).fit(
            self.client, model=model or self.request.model, inbox=self.request.inbox, state=self.state,
            clock=self.request.clock, rng=stream(0, "world", "fit"),
        )  # fmt: skip
        return dict(update.metrics)

    def observed(self) -> tuple[Observed, float]:
        """A dry run: what a bare epoch depends on, and the number of forward passes per step."""
        assert self.request.model is not None
        seen: list[dict[str, int]] = []
        given = self.request.model
        watched = Watched(blueprint=given.blueprint, state=given.state, seen=seen)
        steps = int(self.fit(model=watched)["steps"])
        passages = [passage_of(sizes) for sizes in seen]
        held = 0 if self.client.validation is None else len(self.client.validation)
        return Observed(steps=steps, passages=passages, validation=held), len(seen) / steps


def clients_of(setting: Setting) -> list[Client]:
    """The measured client, whose images fill whole batches, and others with few images."""
    data = images_of(setting)
    held = data.subset(torch.arange(min(VALIDATION, len(data))))
    few = data.subset(torch.arange(min(FEW, len(data))))
    others = [Client(name=f"client:{1 + number}", data=few, validation=few) for number in range(OTHERS)]
    return [Client(name=MEASURED, data=data, validation=held), *others]


def subject_of(method: FedAvg, setting: Setting) -> Subject:
    """Run two rounds of one step each, and keep the measured client's request of the second."""
    plan = Blueprint(backbone=setting.backbone, classes=CLASSES, remodel=method.remodel)
    start = ModelState(state=detached(plan.network(stream(0, "world", "initialisation"))))
    members, states = clients_of(setting), MemoryStates()
    short = replace(method, plan=replace(method.plan, steps=1))
    listening = Listening(engine=LocalEngine(members=members, method=short, seed=0, states=states))
    RoundLoop(method=short, engine=listening, wire=Wire(secret=_secret), key=simulated_key(0), rounds=2).run(
        GlobalModel(blueprint=plan, state=start)
    )
    first, second = listening.asked["fit"]
    started = time.process_time()
    method.training_set(members[0], inbox=first.inbox, state={}, rng=stream(0, "world", "once"))
    once = time.process_time() - started
    return Subject(
        method=method,
        client=members[0],
        request=second,
        state=states.read(MEASURED),
        shares=listening.sharing,
        once=once,
    )


def _secret(upload: Upload, number: int) -> SecretStream:
    return simulated_stream(0, "defense", upload.round, number)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratios(timings: Mapping[str, Timing], over: str, under: str) -> list[float]:
    """The quotients of neighboring runs."""
    return [a / b for a, b in zip(timings[over].processor, timings[under].processor, strict=True)]


def measure(name: str, setting: Setting, *, repeats: int) -> dict[str, object]:
    """Time one method's epoch against its bare passes."""
    case = CASES[name]
    subject = subject_of(case.method, setting)
    seen, forward = subject.observed()
    model = subject.request.model
    assert model is not None
    bare = Bare.of(model.module(), PLAN, image_size=setting.image_size)
    jobs = {"fit": silent(subject.fit), "bare": case.bare(bare, seen), "build": silent(model.module)}
    if case.plainer is not None:
        jobs["plainer"] = silent(partial(subject.fit, method=case.plainer))
    timings = interleaved(jobs, repeats=repeats)
    found = ratios(timings, "fit", "bare")
    return {
        "method": name, **asdict(setting), **asdict(precision_of(CPU, setting.backbone)), "needs": case.needs,
        "steps_of_fit": seen.steps, "forward_per_step": forward,
        "passages": [asdict(passage) for passage in seen.passages] if name == "stablefdg" else None,
        **{f"{job}_processor_seconds": spread(timing.processor) for job, timing in timings.items()},
        "ratio": spread(found), "ratios": found, "met": statistics.median(found) <= TARGET,
        "ratio_without_operations": spread(ratios(timings, "plainer", "bare")) if case.plainer is not None else None,
        "build_share": spread(ratios(timings, "build", "fit")),
        "once_processor_seconds": subject.once, "share_processor_seconds": list(subject.shares),
        "shares": case.method.shares,
    }  # fmt: skip


def silent(act: Callable[[], object]) -> Job:
    """A job that leaves out what `act` returns."""

    def job() -> None:
        act()

    return job


HEADINGS = (
    f"{'method':<14} {'network':<14} {'px':>3} {'steps':>5} {'forward':>7} {'fit s':>6} {'fit / bare':>10} "
    f"{'range':<12} {'':<5} {'no ops':>6} {'build':>6} {'once s':>6} {'share s':>7}"
)


def line(row: Mapping[str, object]) -> str:
    """One line of the table."""
    ratio, build, fit = (_medians(row, key) for key in ("ratio", "build_share", "fit_processor_seconds"))
    plainer = row["ratio_without_operations"]
    without = "-" if plainer is None else f"{_medians(row, 'ratio_without_operations')['median']:.2f}"
    shares = cast("list[float]", row["share_processor_seconds"])
    return (
        f"{row['method']:<14} {row['backbone']:<14} {row['image_size']:>3} {row['steps_of_fit']:>5} "
        f"{row['forward_per_step']:>7.1f} {fit['median']:>6.2f} {ratio['median']:>10.3f} "
        f"{ratio['least']:.2f} .. {ratio['most']:.2f} {'ok' if row['met'] else 'above':<5} "
        f"{without:>6} {build['median']:>6.1%} "
        f"{row['once_processor_seconds']:>6.2f} {'-' if not shares else format(shares[0], '.2f'):>7}"
    )


def _medians(row: Mapping[str, object], key: str) -> dict[str, float]:
    return cast("dict[str, float]", row[key])


def main() -> None:
    """Measure, print, and write JSON where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--networks",
        nargs="+",
        default=["tiny:64:8", "squeezenet1_0:64:3"],
        help="network:pixels:batches",
    )
    parser.add_argument("--methods", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    print("processor seconds of one client's epoch; its ratio to the bare passes that the method needs")
    print(HEADINGS)
    for text in given.networks:
        for name in given.methods:
            rows.append(measure(name, setting_of(text, batch=PLAN.batch_size, steps=4), repeats=given.repeats))
            print(line(rows[-1]), flush=True)
    if given.out is not None:
        expected = exploration_shares(StableFDG().explore_at, StableFDG().probability)
        document = {
            "environment": surroundings(), "repeats": given.repeats, "target": TARGET, "methods": rows,
            "stablefdg_expected_shares": {str(place): share for place, share in expected.items()},
        }  # fmt: skip
        write_atomic(given.out, json.dumps(document, indent=1) + "\n")


def surroundings() -> dict[str, object]:
    """The environment of the measurements."""
    heap = os.environ.get("GLIBC_TUNABLES", "")
    return {**environment(), "processor": processor_name(), "glibc_tunables": heap, "load": os.getloadavg()[0]}


if __name__ == "__main__":
    main()
