import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fdgsec.attacks.style_inversion import inverter_cache, kept_networks
from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.inverter import Schedule
from fdgsec.attacks.style_inversion.kept_networks import FOLDER, MODULES, PACKAGES, kept_network
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import computed_anew
from fdgsec.threats.answers import Reconstructions
from tests.support.quadrants import DOMAINS, SERVER, child_rng, image_rows, victims
from tests.support.short_inversion import BriefInversion

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("own_cache")


class Network(nn.Module):
    def __init__(self, filled: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last)
        nn.init.constant_(self.weight.weight, filled)


def kept(filled: float, **decided_by: object) -> float:
    """The weight of a network that is trained to `filled`, or of the one that was kept."""
    found = kept_network(lambda _: Network(filled), Network, device=CPU, keeps=True, **decided_by)
    assert not found.training
    assert found.weight.weight.is_contiguous(memory_format=torch.channels_last)
    return float(found.weight.weight.detach().flatten()[0])


def everything() -> dict[str, object]:
    return {
        "images": torch.arange(12.0).reshape(3, 4), "schedule": Schedule(steps=3), "rng": child_rng(), "loss": "mse",
        "start": Network(0.5),
    }  # fmt: skip


def test_a_kept_network_is_not_trained_again():
    assert kept(1.0, **everything()) == 1.0
    assert kept(2.0, **everything()) == 1.0


@pytest.mark.parametrize(
    "changed",
    [
        {"images": torch.arange(12.0).reshape(4, 3)},
        {"images": torch.arange(12.0).reshape(3, 4).double()},
        {"images": torch.arange(1.0, 13.0).reshape(3, 4)},
        {"schedule": Schedule(steps=4)},
        {"rng": child_rng(1)},
        {"loss": "gan"},
        {"start": Network(0.25)},
        {"start": None},
        {"more": 1},
    ],
    ids=["shape", "dtype", "content", "schedule", "stream", "loss", "start", "no start", "more"],
)
def test_a_network_is_trained_again_where_anything_differs_that_decides_it(changed: dict[str, object]):
    kept(1.0, **everything())

    assert kept(2.0, **(everything() | changed)) == 2.0


@pytest.mark.parametrize("changed", ["source_sha256", "module_sha256", "numerics_of"])
def test_a_network_is_trained_again_by_other_code_and_on_another_machine(changed: str, monkeypatch: pytest.MonkeyPatch):
    kept(1.0, **everything())
    monkeypatch.setattr(kept_networks, changed, lambda *_: "another")

    assert kept(2.0, **everything()) == 2.0


def test_the_key_covers_every_module_of_fdgsec_that_training_runs():
    """But for those that make its data, whose content is in the key, other inverters, and what stores and shows."""
    data = {"attacks.style_inversion.training_images", "data.domains", "threats.adversary"}
    others = {
        f"attacks.style_inversion.{name}" for name in ("class_guided", "recognition", "retrieval", "style_residuals")
    }
    around = {
        f"runtime.{name}"
        for name in ("cache_files", "checked_files", "errors", "progress", "source_hash", "tensor_files", "threads")
    }
    secret = {"runtime.secret_streams"}  # a defense's noise, which is in the data
    used = {
        str(node.module)
        for module in MODULES
        for node in ast.walk(ast.parse(inspect.getsource(import_module(module))))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fdgsec.")
    }
    packages = tuple(f"{package}." for package in PACKAGES)

    uncovered = {name for name in used if name not in MODULES and not name.startswith(packages)}

    assert {name.removeprefix("fdgsec.") for name in uncovered} == data | others | around | secret


def test_a_damaged_network_is_trained_again(capsys: pytest.CaptureFixture[str]):
    kept(1.0, **everything())
    (path,) = (cache_root() / FOLDER).iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    assert kept(2.0, **everything()) == 2.0
    assert "its seal does not hold" in capsys.readouterr().err


def test_what_a_stopped_process_left_is_removed_once_the_network_is_found():
    kept(1.0, **everything())
    (path,) = (cache_root() / FOLDER).iterdir()
    path.with_suffix(".halfway").write_bytes(b"left by a process that was stopped after this network was finished")

    assert kept(2.0, **everything()) == 1.0
    assert list((cache_root() / FOLDER).iterdir()) == [path]


def test_another_networks_weights_are_no_network():
    kept_network(lambda _: nn.Linear(2, 2), lambda: nn.Linear(2, 2), device=CPU, keeps=True, **everything())

    assert kept(2.0, **everything()) == 2.0


def test_nothing_is_read_where_everything_is_computed_anew():
    kept(1.0, **everything())
    with computed_anew(fresh=False):
        assert kept(2.0, **everything()) == 1.0
    with computed_anew():
        assert kept(2.0, **everything()) == 2.0

    assert kept(3.0, **everything()) == 2.0


def test_what_was_trained_by_changed_code_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(kept_networks, "is_unchanged", lambda _package: False)
        kept(1.0, **everything())

    assert kept(2.0, **everything()) == 2.0


def test_a_full_disk_loses_nothing_but_the_kept_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_given: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_networks, "remember", full)

    assert kept(1.0, **everything()) == 1.0
    assert "cannot be kept" in capsys.readouterr().err


@dataclass(frozen=True)
class Holding:
    held: object


@pytest.mark.parametrize("middle", [(0.0, 1e-9), (0.0, -0.0)], ids=["little", "sign"])
def test_a_value_deep_inside_decides_too(middle: tuple[float, float]):
    one, other = (torch.zeros(3000, dtype=torch.float64).index_fill(0, torch.tensor([1500]), value) for value in middle)

    kept(1.0, more=Holding(held=(one, "a")))

    assert kept(2.0, more=Holding(held=(other, "a"))) == 2.0
    assert kept(3.0, more=Holding(held=(one, "b"))) == 3.0


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"])
def test_a_network_is_trained_again_where_sums_are_taken_otherwise(name: str, monkeypatch: pytest.MonkeyPatch):
    kept(1.0, **everything())
    monkeypatch.setenv(name, "default")

    assert kept(2.0, **everything()) == 2.0


def test_tensors_of_16_bits_are_described_too():
    assert kept(1.0, more=torch.ones(2, dtype=torch.bfloat16)) == 1.0
    assert kept(2.0, more=torch.ones(2, dtype=torch.float16)) == 2.0


@pytest.mark.parametrize("loss", ["mse", "baseline"])
def test_an_attack_from_elsewhere_keeps_nothing(loss: str, own_cache: Path):
    """A subclass may train by a loss of its own, which the key does not cover."""
    made = BriefInversion(losses=("mse",), size=8).inverter_cache(SERVER, child_rng())

    assert not made.keeps
    assert StyleInversion().inverter_cache(SERVER, child_rng()).keeps
    kept_network(lambda _: Network(1.0), Network, device=CPU, keeps=made.keeps, loss=loss)
    assert not (own_cache / FOLDER).exists()


@pytest.mark.parametrize(
    "undescribed", [lambda: 1, object(), [1], np.zeros(3000)], ids=["function", "object", "list", "array"]
)
def test_what_no_other_process_would_describe_alike_is_refused(undescribed: object):
    with pytest.raises(TypeError, match="no description"):
        kept(1.0, more=undescribed)


@pytest.mark.parametrize("loss", ["mse", "gan"])
@pytest.mark.medium
def test_a_stopped_attack_goes_on_after_the_last_network(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The prior that was trained is not trained again, and all pictures are those of an undisturbed attack."""
    cases = [image_rows(victims(domain), DOMAINS[domain]) for domain in range(2)]
    attack = BriefInversion(losses=(loss,), size=16)
    name = "fit_generator" if loss == "mse" else "train_conditional"
    monkeypatch.setattr("fdgsec.attacks.style_inversion.attack.is_bundled", lambda _attack: True)
    monkeypatch.setattr("fdgsec.runtime.threads.os.cpu_count", lambda: 1)
    monkeypatch.setattr("fdgsec.runtime.threads.os.sched_getaffinity", lambda _process: {0}, raising=False)
    train: Callable[..., object] = getattr(inverter_cache, name)
    trained = list[int]()

    def drawn(most: int) -> list[Reconstructions]:
        def once(*given: object, **more: object) -> object:
            if len(trained) >= most:
                raise KeyboardInterrupt
            trained.append(1)
            return train(*given, **more)

        monkeypatch.setattr(inverter_cache, name, once)
        answers = attack.run(cases, SERVER, child_rng(1))
        return [answer for answer in answers if isinstance(answer, Reconstructions)]

    undisturbed = drawn(1000)
    every = len(trained)
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "another"))
    trained.clear()
    with pytest.raises(KeyboardInterrupt):
        drawn(1)
    resumed = drawn(1000)

    assert len(trained) == every > 1
    assert len(resumed) == len(undisturbed)
    assert all(torch.equal(one.images, other.images) for one, other in zip(resumed, undisturbed, strict=True))
    for one, other in zip(resumed, undisturbed, strict=True):
        assert all(torch.equal(one.controls[control], other.controls[control]) for control in one.controls)
