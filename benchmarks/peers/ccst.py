"""Style statistics and stylization in the code of CCST's authors, beside fdgsec's.

Statistics: the authors' side is the whole of style_transfer/AdaIN/mean_std_computation_effcientMem.py, run once per
repeat: VGG-19 to ReLU 4_1 on all images, and the mean and std of each channel over all of their pixels. fdgsec's is
`image_moments`, then pooled, which gives the statistics of each image too. Stylization: the authors' side is
`style_transfer` of style_transfer/AdaIN/CCST_OverallStyleTransfer.py on every batch, fdgsec's is `CCST.generate`. Both
sides have the same uint8 images in memory, the same style, and pytorch-AdaIN's networks with the same random weights;
both convert to float inside the measured time. Bare is the forward pass of the encoder, for stylization also the
decoder's.

Not like for like. For the authors: no image is read from a JPEG or PNG file and none is written (their second script
writes one JPEG per image and style); fdgsec rounds its pictures to 8 bits, and takes moments in float64. Against them:
their first script keeps the graph of every batch, because it has no torch.no_grad(), as published; it copies VGG's
weights into the network once per repeat, and writes a small text file. Batches: the authors' of the given size,
fdgsec's statistics of 16 images, as always.

What is replaced while their files run, in memory only: cjm_util's loader by batches in memory, cjm_util's list of files
by an empty one, the files of VGG and decoder by random weights. CCST_OverallStyleTransfer.py stylizes when it is
imported: it gets no batches then, and its function is called afterwards. `net` is pytorch-AdaIN's, which CCST's
repository leaves to the user; `function` is CCST's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.method_speed import silent
from benchmarks.peers.adain_networks import Pair, passes, probe
from benchmarks.peers.clones import Clone, Script, isolation, stub, working_in
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.formats import FORMATS, fastest
from benchmarks.training_speed import CPU, Job, Setting, images_of
from fdgsec.data.domains import as_float
from fdgsec.methods.ccst import CCST
from fdgsec.nn.styles.image_moments import block_of, image_moments
from fdgsec.nn.training.precision import FLOAT, STYLIZATION, precision_of

OPTION, REPOSITORY, COMMIT = "--ccst", "JeremyCJM/CCST", "112f35c3f75951916663115bb2528eb29b47b495"
ADAIN_OPTION, ADAIN_REPOSITORY = "--adain", "naoto0804/pytorch-AdaIN"
ADAIN_COMMIT = "4a5eef64d2a0ab5e1737ffbb345d9e72d2f1adc9"
NETWORK = "VGG-19"
FOLDER = "style_transfer/AdaIN"
STATISTICS, TRANSFER = f"{FOLDER}/mean_std_computation_effcientMem.py", f"{FOLDER}/CCST_OverallStyleTransfer.py"
TARGET, SOURCES = "sketch", ("art_painting", "cartoon", "photo")
"""Of PACS: the second script reads the style of each other domain when it is imported."""


@dataclass(frozen=True)
class Batches:
    """uint8 images, handed out in float batches with names, as their loader does."""

    pixels: Tensor
    batch: int

    def __len__(self) -> int:
        return len(self.pixels.split(self.batch))

    def __iter__(self) -> Iterator[tuple[Tensor, list[str]]]:
        for part in self.pixels.split(self.batch):
            yield as_float(part), ["image.png"] * len(part)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Their two scripts, and the modules that these import."""

    clone: Clone
    modules: Mapping[str, ModuleType]
    pair: Pair

    @classmethod
    def of(cls, clone: Clone, adain: Clone) -> "Peer":
        """Import `function` and `net`. Raises UsageError where a file or a name is missing."""
        for file in (STATISTICS, TRANSFER, f"{FOLDER}/function.py"):
            clone.file(file)
        adain.file("net.py")
        with isolation(clone, search=[FOLDER], stubs={}):
            function = import_module("function")
        with isolation(adain, search=["."], stubs={"function": function}):
            net = import_module("net")
        pair = Pair.of(adain, net, file="net.py")
        return cls(clone=clone, modules={"function": function, "net": net}, pair=pair)

    def run(self, script: Script, batches: Batches | tuple[()], scratch: Path) -> ModuleType:
        """Run a script on these batches."""
        arguments = ["--dataset", "pacs", "--target", TARGET]
        helper = stub("cjm_util.data_helper", get_train_dataloader=lambda _: batches)
        stubs = {
            **self.modules, "cjm_util": stub("cjm_util", data_helper=helper), "cjm_util.data_helper": helper,
            "cjm_util.ImageLoader": stub("cjm_util.ImageLoader", _dataset_info=lambda _: ([], [])),
        }  # fmt: skip
        with working_in(scratch), patch.object(torch, "load", self.pair.load):
            return script.run(arguments=arguments, search=[FOLDER], stubs=stubs)

    def statistics(self, batches: Batches, scratch: Path) -> Job:
        """The whole first script."""
        script = Script.of(self.clone, STATISTICS)
        return silent(partial(self.run, script, batches, scratch))

    def stylization(self, batches: Batches, style: Tensor, scratch: Path) -> Job:
        """Their function on every batch; `style` is (2, 1, C, 1, 1), mean and std."""
        folder = scratch / "style_stats" / "pacs"
        folder.mkdir(parents=True, exist_ok=True)
        for source in SOURCES:
            np.save(folder / f"{source}_mean_std.npy", style.numpy())
        module = self.run(Script.of(self.clone, TRANSFER), (), scratch)
        transfer = self.clone.function(module, "style_transfer", file=TRANSFER)
        vgg, decoder = (self.clone.network(module, name, file=TRANSFER) for name in ("vgg", "decoder"))

        def job() -> None:
            with torch.no_grad():
                for images, _ in batches:
                    transfer(vgg, decoder, images, list(style), 1.0)

        return job


def compared(clone: Clone, adain: Clone, setting: Setting, *, scratch: Path) -> Comparison:
    """The jobs of both sides."""
    peer = Peer.of(clone, adain)
    encoder = peer.pair.encoder()
    pixels = images_of(setting).pixels()
    batches = Batches(pixels, setting.batch)
    mean, std = torch.zeros(encoder.channels), torch.ones(encoder.channels)
    style = torch.stack([mean, std]).view(2, 1, -1, 1, 1)
    method = CCST(encoder=encoder.name)

    def statistics() -> None:
        image_moments(encoder, pixels).pooled().style(unbiased=False)

    def stylization() -> None:
        for part in pixels.split(setting.batch):
            method.generate(part, mean, std)

    images = as_float(pixels)
    encoding = partial(passes, [encoder.encoder], images, block=block_of(encoder.device))
    drawing = partial(passes, [encoder.encoder, encoder.decoder], images, block=setting.batch)
    best = fastest(probe([encoder.encoder], images)), fastest(probe([encoder.encoder, encoder.decoder], images))
    return Comparison(
        network=NETWORK, pixels=setting.image_size, images=len(pixels),
        jobs={
            "their statistics": peer.statistics(batches, scratch), "our statistics": statistics,
            "bare statistics": encoding(precision=FLOAT),
            "fastest statistics": encoding(precision=FORMATS[best[0]]),
            "their pictures": peer.stylization(batches, style, scratch), "our pictures": stylization,
            "bare pictures": drawing(precision=precision_of(CPU, STYLIZATION)),
            "fastest pictures": drawing(precision=FORMATS[best[1]]),
        },
        rows=[
            Row(
                name="ccst-statistics", peer=["their statistics"], ours=["our statistics"], bare=["bare statistics"],
                limit=["fastest statistics"], limit_format=best[0],
            ),
            Row(
                name="ccst-stylization", peer=["their pictures"], ours=["our pictures"], bare=["bare pictures"],
                limit=["fastest pictures"], limit_format=best[1],
            ),
        ],
    )  # fmt: skip
