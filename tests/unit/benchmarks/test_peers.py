import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.peers import ccst, stablefdg
from benchmarks.peers.__main__ import BACKBONES, REPOSITORIES, main, table
from benchmarks.peers.clones import Clone, Script, isolation, stub
from benchmarks.peers.comparison import HEAD, Comparison, Row, line, numbers
from benchmarks.training_speed import Setting, Timing
from fdgsec.methods.stablefdg import LocalLearning
from fdgsec.nn.styles.image_styles import forget_encoders
from fdgsec.runtime.errors import UsageError

NETWORKS = """
from fdgsec.nn.networks.adain_codec import vgg_decoder, vgg_encoder

vgg, decoder = vgg_encoder(), vgg_decoder()
"""
CLIENT = """
import torch
import wandb
from wilds.common.data_loaders import get_train_loader

import src.adain_net as net

net.vgg.load_state_dict(torch.load("weights/vgg.pth", weights_only=True))


class DGClient:
    def __init__(self, number, device, dataset, bundle, options):
        self.loader = get_train_loader(
            "standard", dataset, batch_size=options["batch_size"], uniform_over_groups=None, grouper=bundle.grouper,
            distinct_groups=False, n_groups_per_batch=options["n_groups_per_batch"], num_workers=32,
        )
        self.compute = bundle.loss.compute

    def setup_model(self, body, head):
        self.model = torch.nn.DataParallel(torch.nn.Sequential(body, head))

    def update_model(self, state):
        self.model.load_state_dict(state)

    def contrastive_fit(self, metadata):
        for images, labels, _ in self.loader:
            self.compute(self.model(images), labels, return_dict=False).mean().backward()
        wandb.log({"mean": metadata[0].mean().item()})
        open("written", "w").close()
        print("done")
"""
MODELS = """
import torch


class ResNet(torch.nn.Module):
    n_outputs = 3

    def __init__(self, shape):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(3))

    def forward(self, images):
        return images.mean((2, 3)) + self.shift


Classifier = torch.nn.Linear
"""
FUNCTION = """
def restyled(content, style):
    mean, std = style
    return content * std + mean
"""
NET = "from function import restyled\n" + NETWORKS
STATISTICS = """
import sys

import torch
from cjm_util import data_helper

import net

net.vgg.load_state_dict(torch.load("vgg.pth", weights_only=True))
assert "--target" in sys.argv
total = 0
for images, _ in data_helper.get_train_dataloader(None):
    total += net.vgg(images).sum()
open("written", "w").close()
"""
TRANSFER = """
import numpy as np
from cjm_util import data_helper
from cjm_util.ImageLoader import _dataset_info

from function import restyled
from net import decoder, vgg

style = np.load("style_stats/pacs/photo_mean_std.npy")
for _ in data_helper.get_train_dataloader(None):
    raise RuntimeError("this file is imported without images")


def style_transfer(vgg, decoder, content, style, alpha):
    return decoder(restyled(vgg(content), style))
"""
AVERAGING = """
import torch
from torch.utils.data import DataLoader

from model.models import network
from utils.optimizers_shcedulers import get_optimizer
from utils.tools import get_best_device, local_time


class FedAvgClient:
    def __init__(self, args, dataset, client_id, logger):
        self.args, self.client_id, self.logger = args, client_id, logger
        self.loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
        self.classification_model = network()
        self.optimizer = get_optimizer(self.classification_model, args.optimizer, args.lr)

    def load_model_weights(self, state):
        self.classification_model.load_state_dict(state)

    def move2new_device(self):
        assert get_best_device(self.args.use_cuda) == torch.device("cuda:2")
        self.classification_model.to(torch.device("cuda:2"))
"""
VIEWS = """
import torch
from algorithm.client.fedavg import FedAvgClient
from utils.tools import local_time


class FedCCRLClient(FedAvgClient):
    def download_statistic_pool(self, pool):
        for values in pool.values():
            assert len(values.pop(self.client_id)) == 0
        self.pool = torch.cat([torch.cat(pool["mean"]), torch.cat(pool["std"])], 1)

    def train(self):
        assert self.pool.shape == (2 * 16, 6, 1, 1)
        assert torch.is_anomaly_enabled() in DETECTING
        for images, labels in self.loader:
            torch.nn.functional.cross_entropy(self.classification_model(images), labels).backward()
            self.optimizer.step()
        self.logger.log(local_time())
        open("written", "w").close()


DETECTING = [False]
"""
ALIGNED = """
import torch

torch.autograd.set_detect_anomaly(True)
""" + VIEWS.replace("FedCCRLClient", "FedAlignClient").replace("[False]", "[True, False]")
VIEWED = {
    "algorithm/client/fedavg.py": AVERAGING,
    "model/models.py": """
import torch
from torchvision import models


def network():
    body = models.mobilenet_v3_large(weights="from the net")
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 7))
""",
    "utils/optimizers_shcedulers.py": """
from torch import optim


def get_optimizer(model, name, rate):
    return {"adam": optim.Adam}[name](model.parameters(), lr=rate)
""",
}
TRAINER = """
import torch
from dassl.engine import TRAINER_REGISTRY, TrainerX_fed
from dassl.metrics import compute_accuracy


@TRAINER_REGISTRY.register()
class Vanilla2(TrainerX_fed):
    def __init__(self, config):
        raise RuntimeError("this reads a dataset")

    def forward_backward_fed(self, batch, balanced, network, style):
        assert balanced["label"].tolist() == sorted(set(balanced["label"].tolist()))
        output = network(batch["img"].to(self.device), style)
        loss = torch.nn.functional.cross_entropy(output, batch["label"])
        loss.backward()
        self.optimizers["local_model"].step()
        return compute_accuracy(output, batch["label"])[0].item()
"""
ENGINE = """
import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from dassl.data import DataManager
from dassl.engine import build_trainer
from dassl.modeling import build_backbone, build_head
from dassl.optim import build_optimizer
from dassl.utils import AverageMeter


class SimpleNet(torch.nn.Module):
    def __init__(self, config, model, classes):
        super().__init__()
        self.backbone = build_backbone(
            model.BACKBONE.NAME, verbose=config.VERBOSE, pretrained=model.BACKBONE.PRETRAINED
        )
        self.classifier = torch.nn.Linear(self.backbone.out_features, classes)

    def forward(self, images, style):
        return self.classifier(self.backbone(images, style))


class TrainerBase:
    def __init__(self):
        self.networks, self.optimizers = {}, {}

    def register_model(self, name, network, optimizer, schedule):
        self.networks[name], self.optimizers[name] = network, optimizer

    def set_model_mode(self, mode):
        for network in self.networks.values():
            network.train(mode == "train")


class TrainerX(TrainerBase):
    pass


class TrainerX_fed(TrainerBase):
    pass
"""
RESNET = """
from dassl.modeling.ops import AFH, style_insert

from .backbone import Backbone
from .build import BACKBONE_REGISTRY


@BACKBONE_REGISTRY.register()
def resnet18_OMA_ms_l123(pretrained):
    from dassl.modeling.ops import OMA, MixStyle

    assert not pretrained
    return Backbone(style_insert, OMA)
"""
BASE = """
import torch


class Backbone(torch.nn.Module):
    out_features = 3

    def __init__(self, shift, explore):
        super().__init__()
        self.scale, self.shift, self.explore = torch.nn.Parameter(torch.ones(3)), shift, explore

    def forward(self, images, style):
        shifted = self.shift(images, style)
        return (shifted + sum(map(self.explore, (1, 2, 3)))).mean((2, 3)) * self.scale
"""
OPERATIONS = {
    "cross_attn": "AFH = type(None)",
    "mixstyle": "MixStyle = type(None)",
    "oma": "import random\n\n\ndef OMA(stage):\n    return 0 if random.random() > 0.5 else stage",
    "style_insert": """
import random


def style_insert(maps, style):
    return maps if random.random() > 0.5 else maps + style[0].mean()
""",
}
LIBRARY, IMAGES = "Dassl.pytorch/dassl", "StableFDG/Federated Domin Generalization/Image Classification"
FILES = {
    "--fisc": {"src/adain_net.py": NETWORKS, "src/client.py": CLIENT, "src/models.py": MODELS},
    "--ccst": {
        "style_transfer/AdaIN/function.py": FUNCTION,
        "style_transfer/AdaIN/mean_std_computation_effcientMem.py": STATISTICS,
        "style_transfer/AdaIN/CCST_OverallStyleTransfer.py": TRANSFER,
    },
    "--adain": {"net.py": NET},
    "--fedccrl": {"algorithm/client/fedccrl.py": VIEWS, **VIEWED},
    "--fedalign": {"algorithm/client/fedalign.py": ALIGNED, **VIEWED},
    "--stablefdg": {
        f"{IMAGES}/trainers/vanilla2.py": TRAINER, f"{LIBRARY}/engine/trainer.py": ENGINE,
        f"{LIBRARY}/modeling/backbone/resnet.py": RESNET, f"{LIBRARY}/modeling/backbone/backbone.py": BASE,
        **{f"{LIBRARY}/modeling/ops/{name}.py": text for name, text in OPERATIONS.items()},
    },
}  # fmt: skip
SETTINGS = dict.fromkeys(BACKBONES, Setting(backbone="tiny", image_size=32, batch=32, steps=1))


@pytest.fixture
def clones(tmp_path: Path) -> Iterator[dict[str, Clone]]:
    yield {option: written(tmp_path, option) for option in FILES}
    forget_encoders()


def written(folder: Path, option: str) -> Clone:
    repository, commit = REPOSITORIES[option]
    root = folder / option.removeprefix("--")
    for name, text in FILES[option].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Clone(option=option, repository=repository, commit=commit, folder=root)


def together(option: str) -> tuple[str, ...]:
    return ("--ccst", "--adain") if option in ("--ccst", "--adain") else (option,)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.medium
def test_every_clone_gives_its_rows_and_is_left_as_it_was(
    clones: dict[str, Clone], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, modules, before = list(sys.path), set(sys.modules), listing(tmp_path)

    rows = table(clones, SETTINGS, repeats=2)

    assert [row["job"] for row in rows] == [
        "fisc", "fisc, first round", "ccst-statistics", "ccst-stylization", "fedccrl", "fedalign",
        "fedalign, no anomaly detection", "stablefdg", "stablefdg, one pass",
    ]  # fmt: skip
    assert all(row["images"] == 32 and row["pixels"] == 32 for row in rows)
    assert capsys.readouterr().out.splitlines() == [*HEAD.splitlines(), *map(line, rows)]
    assert sys.path == path
    left = {name.partition(".")[0] for name in set(sys.modules) - modules}
    assert not left & {"src", "net", "function", "wilds", "algorithm", "model", "utils", "dassl", "trainers"}
    assert not torch.is_anomaly_enabled()
    assert listing(tmp_path) == before


@pytest.mark.medium
def test_only_rows_of_given_clones_are_measured(clones: dict[str, Clone]):
    named = {option: clones[option] for option in ("--ccst", "--adain")}

    rows = table(named, SETTINGS, repeats=1)

    assert [row["job"] for row in rows] == ["ccst-statistics", "ccst-stylization"]


def test_a_side_is_the_sum_of_its_jobs_and_quotients_are_those_of_neighboring_runs():
    seconds = {"peer": [6.0, 8.0, 9.0], "ours": [1.0, 2.0, 2.0], "more": [1.0, 2.0, 1.0], "least": [1.0, 1.0, 2.0]}
    timings = {name: Timing(processor=values, wall=values) for name, values in seconds.items()}
    row = Row(name="job", peer=["peer"], ours=["ours", "more"], bare=["ours"], limit=["least"], limit_format="float32")
    comparison = Comparison(network="tiny", pixels=8, images=4, jobs={}, rows=[row])

    found = numbers(comparison, row, timings)

    assert found["processor_seconds"] == {
        "peer": {"median": 8.0, "least": 6.0, "most": 9.0}, "ours": {"median": 3.0, "least": 2.0, "most": 4.0},
        "bare": {"median": 2.0, "least": 1.0, "most": 2.0}, "limit": {"median": 1.0, "least": 1.0, "most": 2.0},
    }  # fmt: skip
    assert found["quotients"] == {
        "peer/ours": {"median": 3.0, "least": 2.0, "most": 3.0},
        "peer/limit": {"median": 6.0, "least": 4.5, "most": 8.0},
        "ours/bare": {"median": 2.0, "least": 1.5, "most": 2.0},
    }
    assert line(found) == (
        "| job | tiny | 8 | 4 | 8.00 [6.00, 9.00] | 3.00 [2.00, 4.00] | 2.00 [1.00, 2.00] | 1.00 [1.00, 2.00] | "
        "3.00 [2.00, 3.00] | 6.00 [4.50, 8.00] | 2.00 [1.50, 2.00] | float32 |"
    )


@pytest.mark.parametrize(("option", "file"), [(option, file) for option, files in FILES.items() for file in files])
def test_a_missing_file_is_named_with_the_repository(clones: dict[str, Clone], tmp_path: Path, option: str, file: str):
    (clones[option].folder / file).unlink()

    with pytest.raises(UsageError, match=f"has no {file}; expected a clone of {REPOSITORIES[option][0]} at"):
        table({each: clones[each] for each in together(option)}, SETTINGS, repeats=1)


@pytest.mark.parametrize(
    ("option", "file", "name"),
    [
        ("--fisc", "src/client.py", "DGClient"),
        ("--fisc", "src/client.py", "DGClient.contrastive_fit"),
        ("--fisc", "src/models.py", "Classifier"),
        ("--fisc", "src/adain_net.py", "decoder"),
        ("--ccst", "style_transfer/AdaIN/CCST_OverallStyleTransfer.py", "style_transfer"),
        ("--adain", "net.py", "vgg"),
        ("--fedccrl", "algorithm/client/fedccrl.py", "FedCCRLClient"),
        ("--fedccrl", "algorithm/client/fedccrl.py", "FedCCRLClient.train"),
        ("--fedccrl", "algorithm/client/fedavg.py", "FedAvgClient.load_model_weights"),
        ("--fedalign", "algorithm/client/fedalign.py", "FedAlignClient"),
        ("--stablefdg", f"{IMAGES}/trainers/vanilla2.py", "Vanilla2.forward_backward_fed"),
        ("--stablefdg", f"{LIBRARY}/engine/trainer.py", "SimpleNet"),
        ("--stablefdg", f"{LIBRARY}/modeling/ops/oma.py", "OMA"),
    ],
)
def test_a_missing_name_is_named_with_its_file(clones: dict[str, Clone], option: str, file: str, name: str):
    path = clones[option].folder / file
    path.write_text(f"{path.read_text()}\ndel {name}\n")

    with pytest.raises(UsageError, match=f"^{file} of {option} .* defines no {name.split('.')[-1]}; expected a clone"):
        table({each: clones[each] for each in together(option)}, SETTINGS, repeats=1)


def test_an_import_that_fails_says_what_is_missing_and_leaves_nothing(clones: dict[str, Clone]):
    clone = clones["--adain"]
    (clone.folder / "broken.py").write_text("import net_of_nobody")
    path, modules = list(sys.path), set(sys.modules)

    with pytest.raises(UsageError, match=r"--adain .* cannot be imported: No module named 'net_of_nobody'"):
        Script.of(clone, "broken.py").run(arguments=[], search=["."], stubs={})

    assert sys.path == path
    assert set(sys.modules) == modules


def test_a_module_of_the_same_name_is_hidden_meanwhile_and_then_back(clones: dict[str, Clone]):
    own = ModuleType("function")
    sys.modules["function"] = own
    try:
        with isolation(clones["--ccst"], search=[ccst.FOLDER], stubs={"net": stub("net", value=1)}):
            assert sys.modules.get("function") is not own
            assert sys.modules["net"].value == 1
        assert sys.modules["function"] is own
        assert "net" not in sys.modules
    finally:
        del sys.modules["function"]


def test_without_a_path_the_command_says_what_to_clone(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main([])

    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert all(f"{option}: {name} at {commit}" in said for option, (name, commit) in REPOSITORIES.items())


def test_ccst_is_refused_without_its_networks(clones: dict[str, Clone], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["--ccst", str(clones["--ccst"].folder)])

    assert stopped.value.code == 2
    assert "--ccst and --adain go together" in capsys.readouterr().err


def test_a_stub_inside_an_installed_package_leaves_the_package_alone(clones: dict[str, Clone]):
    with isolation(clones["--adain"], search=["."], stubs={"json.decoder": stub("json.decoder", value=1)}):
        assert sys.modules["json.decoder"].value == 1
        assert sys.modules["json"] is json

    assert not hasattr(sys.modules["json.decoder"], "value")


def test_eight_batches_have_every_outcome_of_exploration_once_and_half_of_them_shift_styles():
    batches = torch.tensor(stablefdg.Coins(steps=8).outcomes).view(8, 4)

    assert sorted(batches[:, 1:].tolist()) == sorted([a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1))
    assert batches[:, 0].sum() == 4


def test_both_sides_get_the_same_outcomes_in_every_epoch():
    coins = stablefdg.Coins(steps=2)
    learning = object.__new__(LocalLearning)

    with coins.epoch():
        theirs = [coins.random() <= 0.5 for _ in range(8)]
    with coins.epoch():
        ours = [learning._occurs() for _ in range(8)]

    assert theirs == ours == list(coins.outcomes)


@pytest.mark.parametrize(("count", "match"), [(3, "only 3 in 1 batches"), (5, "more than 4 in 1 batches")])
def test_a_code_that_tosses_another_number_of_coins_is_refused(count: int, match: str):
    coins = stablefdg.Coins(steps=1)

    with pytest.raises(UsageError, match=match), coins.epoch():
        list(map(float, (coins.random() for _ in range(count))))


def test_stablefdg_is_refused_with_other_batches_than_its_code_takes(clones: dict[str, Clone]):
    settings = {"--stablefdg": Setting(backbone="tiny", image_size=32, batch=4, steps=2)}

    with pytest.raises(UsageError, match="--stablefdg: the authors' code takes batches of 32; got --batch 4"):
        table({"--stablefdg": clones["--stablefdg"]}, settings, repeats=1)
