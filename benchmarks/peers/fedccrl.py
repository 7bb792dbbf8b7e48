"""The local epoch of FedCCRL in its authors' code, beside fdgsec's.

The authors' side is `FedCCRLClient.train` of algorithm/client/fedccrl.py with the MobileNetV3-Large of model/models.py,
after `load_model_weights` and `download_statistic_pool`, as in every round: 3 forward passes per batch and one backward
pass. fdgsec's is `FedCCRL.fit`, as many passes, with the options that follow that code (`include_self`,
`overflow="wrapped"`) and an optimizer that is kept. Both have the same images, labels and batch size, the same pool,
no augmentation but the views, and Adam at 1e-3 with a weight decay of 1e-4. Bare is the three passes of eqs. (3) and
(5) of FedAlign's paper (`benchmarks.passes.views`).

Not like for like. For the authors: their loader hands out normalized float images in memory, where fdgsec reads uint8
and converts; their client keeps its network, where fdgsec's builds one, loads and returns the optimizer's moments and
returns the model. Against them: their loader picks single images and stacks them, and they train contiguous, as
published, fdgsec in the format of its table. The epoch starts from other random weights on each side, and each side
draws its own views: AugMix draws from 1 to 3 operations for each of 3 chains, so that single epochs differ.

What is replaced while their modules are imported, in memory only: `utils.tools`, of which the epoch needs a device (the
CPU) and the time of its line in the log; the log; MobileNet's pretrained weights by random ones; torch.device by "cpu"
in algorithm/client/fedavg.py. The server and the statistics that a client sends are not run."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch.utils.data import TensorDataset

from benchmarks.method_speed import silent, subject_of
from benchmarks.peers.clones import Clone, isolation, stub, working_in
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.formats import FORMATS
from benchmarks.peers.training_passes import TrainingPasses
from benchmarks.peers.untrained_networks import without_weights
from benchmarks.training_speed import CPU, Job, Setting, images_of
from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.style_banks import artifact_in
from fdgsec.methods.fedccrl import EPS, FedCCRL
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.nn.training.training_plan import TrainingPlan

OPTION, REPOSITORY, COMMIT = "--fedccrl", "sunnyinAI/FedCCRL", "50a4b26ab611906a6b1d9622279776f0ec3edfc1"
CLIENT, CLASS = "algorithm/client/fedccrl.py", "FedCCRLClient"
AVERAGING, MODELS = "algorithm/client/fedavg.py", "model/models.py"
FILES = (AVERAGING, MODELS, "utils/optimizers_shcedulers.py")
BACKBONE = "mobilenet_v3_large"
OPTIONS = {
    "model": "mobile3l", "dataset": "pacs", "optimizer": "adam", "num_epochs": 1, "round": 10, "use_cuda": False,
    "p": 1.0, "epsilon": EPS, "r": 0.1, "t": 0.1, "lambda1": 0.1, "lambda2": 0.1,
}  # fmt: skip
"""What their command line sets besides the plan; PACS has as many classes as the images here."""
RATIO = 1.0
"""Of a client's images whose statistics are shared here; the others have few images, and FedAlign makes 7 clusters."""


class OnCpu:
    """The module torch with no device but the CPU."""

    def __getattr__(self, name: str) -> object:
        found: object = getattr(torch, name)
        return found

    def device(self, name: object) -> torch.device:  # noqa: ARG002
        """The CPU, whichever device is named."""
        return CPU


def the_cpu(use_cuda: bool) -> torch.device:  # noqa: ARG001
    """The device to train on."""
    return CPU


def no_time() -> str:
    """A time for the log, which nobody reads."""
    return ""


def log(text: str) -> None:
    """Ignore a line of their log."""


def stubs() -> dict[str, ModuleType]:
    """The module that their client imports and of which the epoch needs next to nothing."""
    tools = stub("utils.tools", get_best_device=the_cpu, local_time=no_time, trainable_params=None)
    return {"utils.tools": tools}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The module of their client, from `file`, and whether importing it turned autograd's anomaly detection on."""

    clone: Clone
    file: str
    client: ModuleType
    detecting: bool

    @classmethod
    def of(cls, clone: Clone, scratch: Path, *, file: str = CLIENT) -> "Peer":
        """Import it. Raises UsageError where a file is missing."""
        for name in (file, *FILES):
            clone.file(name)
        with (
            isolation(clone, search=["."], stubs=stubs()), working_in(scratch),
            torch.autograd.set_detect_anomaly(torch.is_anomaly_enabled()),
        ):  # fmt: skip
            client = import_module(file.removesuffix(".py").replace("/", "."))
            vars(import_module("algorithm.client.fedavg"))["torch"] = OnCpu()
            return cls(clone=clone, file=file, client=client, detecting=torch.is_anomaly_enabled())

    def member(self, name: str, options: Mapping[str, object], setting: Setting, scratch: Path) -> object:
        """Their client of the class `name`, with the images of `setting`, as it is when it receives a pool."""
        data = images_of(setting)
        images = TensorDataset(Normalization()(as_float(data.pixels())), data.labels)
        with working_in(scratch), without_weights(BACKBONE):
            build = self.clone.function(self.client, name, file=self.file)
            member = build(SimpleNamespace(**options), images, 0, SimpleNamespace(log=log))
        self.clone.function(member, "move2new_device", file=AVERAGING)()
        return member

    def epoch(self, member: object, pool: StyleBank, scratch: Path, *, detecting: bool) -> Job:
        """One round of a client: it receives the model and the pool, and trains for an epoch."""
        load = self.clone.function(member, "load_model_weights", file=AVERAGING)
        download = self.clone.function(member, "download_statistic_pool", file=self.file)
        train = self.clone.function(member, "train", file=self.file)
        network = self.clone.network(member, "classification_model", file=AVERAGING)
        received = {name: value.clone() for name, value in network.state_dict().items()}
        rows = {"mean": pool.mean[..., None, None], "std": pool.std[..., None, None]}

        def job() -> None:
            with working_in(scratch), torch.autograd.set_detect_anomaly(detecting):
                load(received)
                download({name: [values[:0], values] for name, values in rows.items()})  # none of its own
                train()

        return job


def plan_of(setting: Setting) -> TrainingPlan:
    """What both sides train with: the authors' optimizer, and images as they are."""
    return TrainingPlan(
        batch_size=setting.batch, optimizer="adam", learning_rate=1e-3, weight_decay=1e-4, schedule="cosine-epoch",
        crop=None, flip=0.0,
    )  # fmt: skip


def options_of(plan: TrainingPlan) -> dict[str, object]:
    """Their command line for this plan."""
    chosen = {"batch_size": plan.batch_size, "lr": plan.learning_rate, "weight_decay": plan.weight_decay}
    return {**OPTIONS, **chosen}


def compared(clone: Clone, setting: Setting, *, scratch: Path) -> Comparison:
    """The jobs of both sides."""
    peer, plan = Peer.of(clone, scratch), plan_of(setting)
    member = peer.member(CLASS, options_of(plan), setting, scratch)
    method = FedCCRL(plan=plan, upload_ratio=RATIO, include_self=True, overflow="wrapped", keep_optimizer=True)
    subject = subject_of(method, setting)
    pool = artifact_in(subject.request.inbox, "pool", StyleBank, of=subject.client.name)
    assert subject.request.model is not None
    passes = TrainingPasses.of_views(subject.request.model, plan, setting, count=3)
    best = passes.fastest()
    return Comparison(
        network=setting.backbone, pixels=setting.image_size, images=setting.batch * setting.steps,
        jobs={
            "peer": peer.epoch(member, pool, scratch, detecting=peer.detecting), "ours": silent(subject.fit),
            "bare": passes.job(), "limit": passes.job(FORMATS[best]),
        },
        rows=[Row(name="fedccrl", peer=["peer"], ours=["ours"], bare=["bare"], limit=["limit"], limit_format=best)],
    )  # fmt: skip
