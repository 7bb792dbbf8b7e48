"""Trainings of style inversion that are stopped in the middle and go on to the same weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fdgsec.attacks.style_inversion import halfway as module
from fdgsec.attacks.style_inversion import inverter, inverter_gan
from fdgsec.attacks.style_inversion.halfway import Halfway, Moment
from fdgsec.attacks.style_inversion.inverter import Schedule, fit_generator, fit_linear
from fdgsec.attacks.style_inversion.inverter_gan import AdversarialOptions, fit_baseline, train_conditional
from fdgsec.metrics.image_similarity import mse
from fdgsec.runtime.checked_files import SEAL_BYTES, computed_anew, remember
from tests.support.quadrants import child_rng
from tests.unit.attacks.test_style_inversion_gan import TINY, colored

pytestmark = pytest.mark.usefixtures("own_cache")

CONTEST = AdversarialOptions(steps=8, batch=4, latent=4, lessons=3)
Training = Callable[[Halfway], nn.Module]


def conditional(halfway: Halfway) -> nn.Module:
    training = colored()
    linear, unseen = fit_linear(training)
    return train_conditional(
        training, linear, unseen, shape=TINY, perceptual=mse, contest=CONTEST, rng=child_rng(), halfway=halfway
    )


def unconditional(halfway: Halfway) -> nn.Module:
    images = torch.rand(24, 3, TINY.size, TINY.size, generator=child_rng(1))
    return fit_baseline(images, shape=TINY, contest=CONTEST, rng=child_rng(), halfway=halfway).generator


def regression(halfway: Halfway) -> nn.Module:
    training = colored()
    linear, unseen = fit_linear(training)
    schedule = Schedule(steps=8, batch=4, check=3)
    return fit_generator(
        training, linear, unseen, shape=TINY, loss=mse, schedule=schedule, rng=child_rng(), halfway=halfway
    ).generator


def weights(network: nn.Module) -> Tensor:
    return torch.cat([value.flatten().double() for value in network.state_dict().values()])


def stopping(monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Stop training in its step number `after`; gives the steps that were begun."""
    begun = list[int]()

    for where in (inverter, inverter_gan):
        update = where.update_average

        def counted(*given: object, update: Callable[..., None] = update) -> None:
            if len(begun) == after:
                raise KeyboardInterrupt
            begun.append(1)
            update(*given)

        monkeypatch.setattr(where, "update_average", counted)
    return begun


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the moment after every step."""
    monkeypatch.setattr(module, "EVERY", 0.0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("train", [conditional, unconditional, regression])
@pytest.mark.parametrize("after", [0, 1, 5, 7])
def test_a_stopped_training_goes_on_to_the_same_weights(train: Training, after: int, tmp_path: Path):
    undisturbed = weights(train(Halfway()))
    kept = Halfway(path=tmp_path / "network.halfway", key="key")
    with pytest.MonkeyPatch.context() as patched:
        stopping(patched, after)
        with pytest.raises(KeyboardInterrupt):
            train(kept)
    with pytest.MonkeyPatch.context() as patched:
        begun = stopping(patched, 100)
        resumed = weights(train(Halfway(path=kept.path, key="key")))

    assert torch.equal(resumed, undisturbed)
    assert len(begun) == 8 - after


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("key", ["key", "another"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_moment_of_another_training_or_a_damaged_one_begins_anew(key: str, damaged: bool, tmp_path: Path):
    path = tmp_path / "network.halfway"
    with pytest.MonkeyPatch.context() as patched:
        stopping(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            unconditional(Halfway(path=path, key="key"))
    if damaged:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patched:
        begun = stopping(patched, 100)
        again = weights(unconditional(Halfway(path=path, key=key)))

    assert len(begun) == (3 if key == "key" and not damaged else 8)
    assert torch.equal(again, weights(unconditional(Halfway())))


@pytest.mark.usefixtures("always")
def test_nothing_is_read_where_everything_is_computed_anew(tmp_path: Path):
    path = tmp_path / "network.halfway"
    with pytest.MonkeyPatch.context() as patched:
        stopping(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            unconditional(Halfway(path=path, key="key"))
    with pytest.MonkeyPatch.context() as patched, computed_anew():
        begun = stopping(patched, 100)
        unconditional(Halfway(path=path, key="key"))

    assert len(begun) == 8


def test_a_moment_is_kept_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    halfway = Halfway(path=tmp_path / "network.halfway", key="key")
    moment = Moment(networks={"a": nn.Linear(2, 2)}, optimizers={}, rng=child_rng())
    written = list[int]()
    monkeypatch.setattr(Halfway, "_keep", lambda _self, _moment, step: written.append(step))

    for _ in halfway.steps(10, "training", moment):
        now[0] += 25.0

    assert written == [3, 6, 9]


@pytest.mark.usefixtures("always")
def test_a_full_disk_is_said_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_given: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "remember", full)

    trained = unconditional(Halfway(path=tmp_path / "network.halfway", key="key"))

    assert torch.equal(weights(trained), weights(unconditional(Halfway())))
    assert capsys.readouterr().err.count("cannot be kept") == 1


@pytest.mark.usefixtures("always")
def test_a_disk_that_was_full_once_is_written_again_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written, halfway = list[Path](), Halfway(path=tmp_path / "network.halfway", key="key")

    def full_once(path: Path, content: bytes, *, key: str) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        remember(path, content, key=key)

    monkeypatch.setattr(module, "remember", full_once)
    unconditional(halfway)
    assert len(written) == 7
    assert list(tmp_path.glob("*.halfway"))

    halfway.forget()
    assert not list(tmp_path.glob("*.halfway"))


def test_what_cannot_be_removed_stops_nothing(tmp_path: Path):
    Halfway(path=tmp_path, key="key").forget()

    assert tmp_path.is_dir()


def stored_moment(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    path = folder / "network.halfway"
    with pytest.MonkeyPatch.context() as patched:
        stopping(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            unconditional(Halfway(path=path, key="key"))
    return path, load(path.read_bytes()[:-SEAL_BYTES])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.update({"/rng": torch.zeros(3, dtype=torch.uint8)}),
        lambda stored: stored.update(step=torch.tensor(99)),
        lambda stored: stored.update(step=torch.tensor([1, 2])),
        lambda stored: [stored.pop(name) for name in list(stored) if name.endswith("exp_avg")],
        lambda stored: stored.update({"drawing/optimizer.99.step": torch.zeros(())}),
        lambda stored: [
            stored.update({name: value.double()}) for name, value in stored.items() if "/optimizer" in name
        ],
        lambda stored: stored.update({"stranger/weight": torch.zeros(2)}),
        lambda stored: stored.pop("/numbers"),
    ],
)
def test_a_moment_that_is_not_whole_begins_anew(
    change: Callable[[dict[str, Tensor]], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, stored = stored_moment(tmp_path)
    change(stored)
    remember(path, save(stored), key="key")
    with pytest.MonkeyPatch.context() as patched:
        begun = stopping(patched, 100)
        again = weights(unconditional(Halfway(path=path, key="key")))

    assert len(begun) == 8
    assert torch.equal(again, weights(unconditional(Halfway())))
    assert "it is computed anew: it holds" in capsys.readouterr().err


def test_another_networks_training_changes_nothing():
    small, large = nn.Linear(2, 2), nn.Linear(3, 3)
    moment, other = (Moment(networks={"a": one}, optimizers={}, rng=child_rng()) for one in (small, large))
    before = weights(large)

    with pytest.raises(module.DataError, match="another network"):
        other.restore(moment.tensors())
    assert torch.equal(weights(large), before)
