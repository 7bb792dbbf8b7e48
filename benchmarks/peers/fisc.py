"""The local epoch of FISC (PARDON) in its authors' code, beside fdgsec's.

The authors' side is `DGClient.contrastive_fit` of src/client.py with the ResNet-50 of src/models.py, after
`update_model`, as in every round: 5 forward passes per batch and one backward pass, and each batch is stylized anew.
fdgsec's is `FISC.fit`: 2 forward passes and one backward pass; all images are stylized in the first round and kept.
Both have the same images, labels and batch size, ResNet-50 with the authors' additional linear layer, batch norm in
evaluation mode, Adam at 3e-5, and AdaIN with the same random weights. Bare is the two passes that eqs. (5) to (7) need
(`benchmarks.passes.views`), in the first round also one pass through encoder and decoder.

Not like for like. For the authors: their loader hands out float images in memory, where fdgsec reads uint8, crops,
mirrors and converts; their pictures are not rounded to 8 bits. Against them: they write the optimizer's state and a PNG
of eight pictures of each batch to the disk, copy the network once more than needed, and collect garbage after each
batch, all of which their code does in every epoch. fdgsec trains in the format of its table (bfloat16 on some
processors), the authors in float32, and each side draws its own negatives.

What is replaced while their modules are imported, in memory only: wilds' loader by torch's with the same batch size
and no worker (theirs has 32), wandb.log, termcolor and tqdm by functions that do nothing, the files of VGG and decoder
by random weights, ResNet-50's pretrained weights by random ones, nn.DataParallel by the network itself, the device by
"cpu". FINCH and the server are not run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.method_speed import silent, subject_of
from benchmarks.peers.adain_networks import Pair, passes, probe
from benchmarks.peers.clones import Clone, isolation, stub, working_in
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.formats import FORMATS, fastest
from benchmarks.peers.images_in_memory import ImagesInMemory
from benchmarks.peers.training_passes import TrainingPasses
from benchmarks.peers.untrained_networks import without_weights
from benchmarks.training_speed import CLASSES, CPU, Job, Setting, images_of
from fdgsec.data.domains import as_float
from fdgsec.methods.fisc import AT_ONCE, FISC
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.nn.training.precision import STYLIZATION, precision_of
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream

OPTION, REPOSITORY, COMMIT = "--fisc", "judydnguyen/PARDON-FedDG", "5df532c22b6d96ea14fe12c27c330cd2d5ca020b"
CLIENT, MODELS, NETWORKS = "src/client.py", "src/models.py", "src/adain_net.py"
BACKBONE = "resnet50"
WIDTH = 512  # channels of a style
Record = tuple[Tensor, Tensor, Tensor]


class Records(ImagesInMemory[Record]):
    """Images with their labels, and metadata that nothing reads."""

    def __getitem__(self, index: int) -> Record:
        return self.images[index], self.labels[index], torch.zeros(1)


def train_loader(
    loader: str, dataset: Dataset[Record], *, batch_size: int, uniform_over_groups: None, grouper: None,  # noqa: ARG001
    distinct_groups: bool, n_groups_per_batch: int, num_workers: int,  # noqa: ARG001
) -> DataLoader[Record]:  # fmt: skip
    """What wilds' standard loader is: torch's, shuffled, in order of drawing; here without worker processes."""
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=stream(0, "world", "loader"))


def progress(batches: Iterable[Record]) -> Iterable[Record]:
    """What tqdm returns, without a bar."""
    return batches


def log(values: object) -> None:
    """Ignore what wandb would log."""


def colored(text: str, color: str) -> str:  # noqa: ARG001
    """The text as it is."""
    return text


def losses(outputs: Tensor, labels: Tensor, *, return_dict: bool) -> Tensor:  # noqa: ARG001
    """The loss of each record, as wilds' ElementwiseLoss computes it."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def itself(network: nn.Module) -> nn.Module:
    """What nn.DataParallel is on one device."""
    return network


def stubs() -> dict[str, ModuleType]:
    """The modules that their code imports and the measured epoch does not need."""
    return {
        "wilds": stub("wilds"), "wilds.common": stub("wilds.common"),
        "wilds.common.data_loaders": stub("wilds.common.data_loaders", get_train_loader=train_loader),
        "wandb": stub("wandb", log=log), "termcolor": stub("termcolor", colored=colored),
        "tqdm": stub("tqdm"), "tqdm.auto": stub("tqdm.auto", tqdm=progress),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Their modules, and AdaIN's networks in them."""

    clone: Clone
    client: ModuleType
    networks: ModuleType
    pair: Pair

    @classmethod
    def of(cls, clone: Clone, scratch: Path) -> "Peer":
        """Import them. Raises UsageError where a file or a name is missing."""
        for file in (CLIENT, MODELS, NETWORKS):
            clone.file(file)
        with isolation(clone, search=["."], stubs=stubs()), working_in(scratch):
            pair = Pair.of(clone, import_module("src.adain_net"), file=NETWORKS)
            with patch.object(torch, "load", pair.load):
                client = import_module("src.client")
            return cls(clone=clone, client=client, networks=import_module("src.models"), pair=pair)

    def epoch(self, setting: Setting, plan: TrainingPlan, scratch: Path) -> Job:
        """One round of a client: the model is received, and trained for an epoch."""
        data = images_of(setting)
        records = Records(Normalization()(as_float(data.pixels())), data.labels)
        bundle = SimpleNamespace(grouper=None, loss=SimpleNamespace(compute=losses))
        options = {
            "n_groups_per_batch": 1, "local_epochs": 1, "batch_size": setting.batch, "optimizer": "torch.optim.Adam",
            "optimizer_config": {"lr": plan.learning_rate}, "hparam1": 1.0, "param_1": 0.5, "infoNCET": 0.02,
            "output_size": setting.image_size, "num_rounds": 50, "dataset": "random", "split_scheme": "random",
        }  # fmt: skip
        with working_in(scratch), patch.object(nn, "DataParallel", itself), without_weights(BACKBONE):
            member = self.clone.function(self.client, "DGClient", file=CLIENT)(0, "cpu", records, bundle, options)
            featurizer = self.clone.function(self.networks, "ResNet", file=MODELS)((3, None, None))
            width = self.clone.attribute(featurizer, "n_outputs", file=MODELS)
            classifier = self.clone.function(self.networks, "Classifier", file=MODELS)(width, CLASSES)
            self.clone.function(member, "setup_model", file=CLIENT)(featurizer, classifier)
        update = self.clone.function(member, "update_model", file=CLIENT)
        train = self.clone.function(member, "contrastive_fit", file=CLIENT)
        network = self.clone.network(member, "model", file=CLIENT)
        received = {name: value.clone() for name, value in network.state_dict().items()}
        style = torch.zeros(1, WIDTH, 1, 1), torch.ones(1, WIDTH, 1, 1)

        def job() -> None:
            with working_in(scratch):
                update(received)
                train(metadata=style)

        return job


def plan_of(setting: Setting) -> TrainingPlan:
    """What both sides train with: the authors' optimizer and learning rate, and batch norm that does not train."""
    return TrainingPlan(batch_size=setting.batch, optimizer="adam", learning_rate=3e-5, freeze_norm=True)


def compared(clone: Clone, setting: Setting, *, scratch: Path) -> Comparison:
    """The jobs of both sides, of a round after the first and of the first."""
    peer = Peer.of(clone, scratch)
    encoder = peer.pair.encoder()
    plan = plan_of(setting)
    theirs = peer.epoch(setting, plan, scratch)
    subject = subject_of(FISC(plan=plan, encoder=encoder.name, extra_layer=True), setting)
    model = subject.request.model
    assert model is not None
    first = replace(subject, state={})

    training = TrainingPasses.of_views(model, plan, setting, count=2)
    images = as_float(subject.client.data.pixels())
    transfer = partial(passes, [encoder.encoder, encoder.decoder], images, block=AT_ONCE)
    best = training.fastest(), fastest(probe([encoder.encoder, encoder.decoder], images))
    return Comparison(
        network=setting.backbone, pixels=setting.image_size, images=setting.batch * setting.steps,
        jobs={
            "peer": theirs, "later": silent(subject.fit), "first": silent(first.fit),
            "bare": training.job(),
            "bare transfer": transfer(precision=precision_of(CPU, STYLIZATION)),
            "limit": training.job(FORMATS[best[0]]),
            "limit transfer": transfer(precision=FORMATS[best[1]]),
        },
        rows=[
            Row(
                name="fisc", peer=["peer"], ours=["later"], bare=["bare"], limit=["limit"], limit_format=best[0],
            ),
            Row(
                name="fisc, first round", peer=["peer"], ours=["first"], bare=["bare", "bare transfer"],
                limit=["limit", "limit transfer"], limit_format=f"{best[0]}; {best[1]}",
            ),
        ],
    )  # fmt: skip
