"""A local epoch of StableFDG in its authors' code, beside fdgsec's.

The authors' side is `Vanilla2.forward_backward_fed` of trainers/vanilla2.py on every batch, with `SimpleNet` and the
trainer of Dassl's engine/trainer.py and the ResNet-18 of modeling/backbone/resnet.py, called as
`TrainerX_fed.run_epoch` calls it for one client: the model is copied, an optimizer built, the class-balanced batch
drawn once. A step is one forward pass of that batch, with one image per class, one of the batch, which may double on
its way, and the backward pass. fdgsec's is `StableFDG.fit` with the options of the preset stablefdg-released, which
follow that code: in the first row with its second pass (`singletons="released"`), in the second row with the paper's
rule (appendix G), further images only for samples that are alone in their class. Both have the same images, labels and
batches of 32 (half of 32 is a constant of their code), and SGD at 1e-3 with momentum .9 and a weight decay of 5e-4.
Bare is the pass of each batch, enlarged as in the epoch, without the second pass (`benchmarks.passes.enlarged`).

Whether a batch takes received styles and after which stage it doubles is random, and decides about the work. All sides
have the same outcomes, those of `Coins`: in eight batches every outcome of the three coins of exploration once, which
is the expectation. With fewer batches more of them double than expected.

Not like for like. For the authors: their loader hands out normalized float images in memory without augmentation, where
fdgsec reads uint8, translates, mirrors and converts; their maps are summed and divided by 49, which is a mean for
images of 224 px only. Against them: they print a line per step, and train in float32, contiguous, as published, fdgsec
in the format of its table. Each side has random weights of its own, and draws its own styles.

What is replaced while their modules are imported, in memory only: the packages of Dassl by ones that have nothing but
the modules named here, their registries by decorators that do nothing, its accuracy by one that ranks nothing, its
functions for optimizers by torch's SGD, torch.utils.tensorboard and tqdm by nothing, `random` in the two modules that
toss coins by `Coins`. `Vanilla2` is made without its constructor, which reads a dataset. `run_epoch` itself is not run:
it collects styles of 30 clients, and on Python 3.11 or later its assignment of styles never ends."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Literal
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from benchmarks.method_speed import Subject, subject_of
from benchmarks.passes import Bare, Passage, enlarged
from benchmarks.peers.clones import Clone, isolation, package, stub, working_in
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.formats import FORMATS
from benchmarks.peers.images_in_memory import ImagesInMemory
from benchmarks.peers.training_passes import TrainingPasses
from benchmarks.training_speed import CLASSES, CPU, Job, Setting, images_of
from fdgsec.data.domains import as_float
from fdgsec.methods.stablefdg import LocalLearning, StableFDG
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

OPTION, REPOSITORY, COMMIT = "--stablefdg", "savertm/StableFDG_github", "fc4048e1c21b702967a65f2246e5e5018e199b76"
FOLDER, LIBRARY = "StableFDG/Federated Domin Generalization/Image Classification", "Dassl.pytorch"
STEP, ENGINE = f"{FOLDER}/trainers/vanilla2.py", f"{LIBRARY}/dassl/engine/trainer.py"
NETWORKS, BASE = (f"{LIBRARY}/dassl/modeling/backbone/{name}.py" for name in ("resnet", "backbone"))
OPERATIONS = {"AFH": "cross_attn", "style_insert": "style_insert", "OMA": "oma", "MixStyle": "mixstyle"}
TOSSING = ("style_insert", "oma")
BACKBONE, THEIR_BACKBONE = "resnet18", "resnet18_OMA_ms_l123"
BATCH = 32
RULES: Sequence[Literal["extra", "released"]] = ("extra", "released")
STYLES = torch.full((128,), 0.5), torch.full((128,), 0.1)
"""A received distribution of styles: mean and std of the means and stds of stage 1's 64 channels."""
Record = dict[str, Tensor]


@dataclass(kw_only=True, eq=False)
class Coins:
    """What happens in each of `steps` batches: whether styles are shifted, and explored after stages 1, 2 and 3.

    The outcomes for exploration are all of three coins in turn; styles are shifted in every batch where their number is
    odd."""

    steps: int
    tossed: int = 0
    outcomes: Sequence[bool] = field(init=False)

    def __post_init__(self) -> None:
        batches = list(product((True, False), repeat=3))
        turns = [batches[step % len(batches)] for step in range(self.steps)]
        self.outcomes = [coin for turn in turns for coin in (sum(turn) % 2 == 1, *turn)]

    def toss(self) -> bool:
        """The next outcome. Raises UsageError behind the last one."""
        if self.tossed == len(self.outcomes):
            raise UsageError(f"StableFDG tosses 4 coins per batch; more than {self.tossed} in {self.steps} batches.")
        self.tossed += 1
        return self.outcomes[self.tossed - 1]

    def random(self) -> float:
        """The next outcome as a number that is above 1/2 where it does not happen, for their `random.random`."""
        return 0.0 if self.toss() else 1.0

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Begin with the first coin, also in fdgsec's steps. Raises UsageError where some were not tossed."""

        def occurs(learning: LocalLearning) -> bool:  # noqa: ARG001
            return self.toss()

        self.tossed = 0
        with patch.object(LocalLearning, "_occurs", occurs):
            yield
        if self.tossed != len(self.outcomes):
            raise UsageError(
                f"StableFDG tosses 4 coins per batch; only {self.tossed} in {self.steps} batches. Expected a clone of "
                f"{REPOSITORY} at {COMMIT}."
            )


class Records(ImagesInMemory[Record]):
    """Images as their datasets hand them out."""

    def __getitem__(self, index: int) -> Record:
        return {"img": self.images[index], "label": self.labels[index], "domain": torch.tensor(0)}

    def balanced(self) -> Record:
        """A batch of one image of each class."""
        rows = [int((self.labels == label).nonzero()[0]) for label in torch.unique(self.labels)]
        batch: Record = default_collate([self[row] for row in rows])
        return batch


def itself(made: object) -> object:
    """What is registered, as it is."""
    return made


def register() -> Callable[[object], object]:
    """A decorator that does nothing."""
    return itself


def accuracy(output: Tensor, labels: Tensor) -> list[Tensor]:
    """Per cent of records whose label has the largest output."""
    return [(output.argmax(1) == labels).float().mean() * 100]


def stubs(clone: Clone) -> dict[str, ModuleType]:
    """The packages of their library, with nothing in them yet, and the modules that an epoch does not need."""
    library, registry = clone.folder / LIBRARY / "dassl", stub("registry", register=register)
    unused = {
        "dassl.data": ["DataManager"], "dassl.evaluation": ["build_evaluator"],
        "dassl.optim": ["build_optimizer", "build_lr_scheduler"],
        "dassl.utils": [
            "MetricMeter", "AverageMeter", "tolist_if_not", "count_num_param", "load_checkpoint", "save_checkpoint",
            "mkdir_if_missing", "resume_from_checkpoint", "load_pretrained_weights",
        ],
        "torch.utils.tensorboard": ["SummaryWriter"], "tqdm": ["tqdm"],
    }  # fmt: skip
    made = [
        package("dassl", library),
        package("dassl.engine", library / "engine", TRAINER_REGISTRY=registry, build_trainer=None),
        package("dassl.modeling", library / "modeling", build_head=None),
        package("dassl.modeling.backbone", library / "modeling/backbone"),
        package("dassl.modeling.ops", library / "modeling/ops", random_efdmix=None, crossdomain_efdmix=None),
        stub("dassl.modeling.backbone.build", BACKBONE_REGISTRY=registry),
        stub("dassl.metrics", compute_accuracy=accuracy),
        *(stub(name, **dict.fromkeys(members)) for name, members in unused.items()),
    ]
    return {module.__name__: module for module in made}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Their trainer with an untrained network in it."""

    clone: Clone
    trainer: object
    network: nn.Module

    @classmethod
    def of(cls, clone: Clone, scratch: Path, *, coins: Coins) -> "Peer":
        """Import their modules and let `coins` decide. Raises UsageError where a file or a name is missing."""
        operations = {name: f"{LIBRARY}/dassl/modeling/ops/{name}.py" for name in OPERATIONS.values()}
        for file in (STEP, ENGINE, NETWORKS, BASE, *operations.values()):
            clone.file(file)
        modules = stubs(clone)
        with isolation(clone, search=[LIBRARY, FOLDER], stubs=modules), working_in(scratch):
            for name, module in OPERATIONS.items():
                found = import_module(f"dassl.modeling.ops.{module}")
                if module in TOSSING:
                    vars(found)["random"] = coins
                member = clone.function(found, name, file=operations[module])
                setattr(modules["dassl.modeling.ops"], name, member)
            networks = import_module("dassl.modeling.backbone.resnet")
            build = clone.function(networks, THEIR_BACKBONE, file=NETWORKS)
            vars(modules["dassl.modeling"])["build_backbone"] = partial(built, build)
            engine = import_module("dassl.engine.trainer")
            for name in ("TrainerX", "TrainerX_fed"):
                setattr(modules["dassl.engine"], name, clone.function(engine, name, file=ENGINE))
            step = import_module("trainers.vanilla2")
            config = configuration()
            network = clone.function(engine, "SimpleNet", file=ENGINE)(config, config.MODEL, CLASSES)
        assert isinstance(network, nn.Module)
        return cls(clone=clone, trainer=trainer_of(clone, engine, step, config), network=network)

    def epoch(self, setting: Setting, plan: TrainingPlan, scratch: Path, *, coins: Coins) -> Job:
        """What a client does in an epoch: copy the model, and train the copy on every batch."""
        data = images_of(setting)
        records = Records(Normalization()(as_float(data.pixels())), data.labels)
        loader = DataLoader(
            records, batch_size=setting.batch, shuffle=True, drop_last=True, generator=stream(0, "world", "loader")
        )
        add = self.clone.function(self.trainer, "register_model", file=ENGINE)
        mode = self.clone.function(self.trainer, "set_model_mode", file=ENGINE)
        train = self.clone.function(self.trainer, "forward_backward_fed", file=STEP)

        def job() -> None:
            with working_in(scratch), coins.epoch():
                network = deepcopy(self.network)
                add("local_model", network, optimizer_of(network.parameters(), plan), None)
                mode("train")
                balanced = records.balanced()
                for batch in loader:
                    print(train(batch, balanced, network, list(STYLES)))

        return job


def built(build: Callable[..., object], name: str, *, verbose: bool, pretrained: bool) -> object:  # noqa: ARG001
    """Their network; the only one is known by its name."""
    return build(pretrained=pretrained)


def configuration() -> SimpleNamespace:
    """What an epoch reads of their configuration."""
    return SimpleNamespace(
        VERBOSE=False, DATASET={"NAME": "PACS"},
        MODEL=SimpleNamespace(
            BACKBONE=SimpleNamespace(NAME=THEIR_BACKBONE, PRETRAINED=False),
            HEAD=SimpleNamespace(NAME="", HIDDEN_LAYERS=()),
        ),
        TRAINER=SimpleNamespace(STABLEFDG=SimpleNamespace(EXPLORATION_LEVEL=3.0, OVERSAMPLING_SIZE=BATCH)),
    )  # fmt: skip


def trainer_of(clone: Clone, engine: ModuleType, step: ModuleType, config: SimpleNamespace) -> object:
    """Their trainer without data and without a model. Raises UsageError where a class is missing."""
    kind = clone.function(step, "Vanilla2", file=STEP)
    assert isinstance(kind, type)
    trainer: object = object.__new__(kind)
    base = clone.function(engine, "TrainerBase", file=ENGINE)
    clone.function(base, "__init__", file=ENGINE)(trainer)
    vars(trainer).update(cfg=config, device=CPU)
    return trainer


def plan_of(setting: Setting) -> TrainingPlan:
    """The preset's plan for one epoch."""
    return TrainingPlan(
        batch_size=setting.batch, learning_rate=1e-3, momentum=0.9, weight_decay=5e-4, crop=None, translate=0.5
    )


def method_of(plan: TrainingPlan, *, singletons: Literal["released", "extra"]) -> StableFDG:
    """StableFDG as in its authors' code, as far as steps of training go."""
    return StableFDG(
        plan=plan, spread="std", selection="centroids", attention_bias=True, unused_parameters=True,
        singletons=singletons,
    )  # fmt: skip


def compared(clone: Clone, setting: Setting, *, scratch: Path) -> Comparison:
    """The jobs of both sides; fdgsec's with the second pass over one image per class, and without it."""
    if setting.batch != BATCH:
        raise UsageError(f"{OPTION}: the authors' code takes batches of {BATCH}; got --batch {setting.batch}.")
    plan, coins = plan_of(setting), Coins(steps=setting.steps)
    peer = Peer.of(clone, scratch, coins=coins)
    paper, released = (subject_of(method_of(plan, singletons=rule), setting) for rule in RULES)
    with coins.epoch():
        seen, _ = paper.observed()
    model = paper.request.model
    assert model is not None
    passes = TrainingPasses(
        model=model, plan=plan, image_size=setting.image_size,
        epoch=lambda bare: partial(enlarged, bare, passages=seen.passages), step=single,
    )  # fmt: skip
    best = passes.fastest()
    rows = {"stablefdg": "with second pass", "stablefdg, one pass": "one pass"}
    return Comparison(
        network=setting.backbone, pixels=setting.image_size, images=setting.batch * setting.steps,
        jobs={
            "peer": peer.epoch(setting, plan, scratch, coins=coins),
            "with second pass": partial(fitted, released, coins), "one pass": partial(fitted, paper, coins),
            "bare": passes.job(), "limit": passes.job(FORMATS[best]),
        },
        rows=[
            Row(name=name, peer=["peer"], ours=[job], bare=["bare"], limit=["limit"], limit_format=best)
            for name, job in rows.items()
        ],
    )  # fmt: skip


def fitted(subject: Subject, coins: Coins) -> None:
    """An epoch of fdgsec's."""
    with coins.epoch():
        subject.fit()


def single(bare: Bare) -> Job:
    """A pass of a batch that does not grow."""
    return partial(enlarged, bare, passages=[Passage(records=len(bare.images))])
