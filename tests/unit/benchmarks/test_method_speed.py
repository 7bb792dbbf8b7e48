from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import FULL, QUICK, TUNED, surroundings
from benchmarks.passes import (
    Adversary,
    Bare,
    Passage,
    adversarial,
    enlarged,
    episodes,
    exploration_shares,
    passage_of,
    views,
    watch,
)
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.methods.feddg import Episode
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream

PLAN = TrainingPlan(batch_size=6, learning_rate=0.1)


def network() -> Classifier:
    return build_classifier("tiny", 3, rng=stream(0, "world", "network"))


def bare_of(model: Classifier) -> tuple[Bare, list[dict[str, int]]]:
    seen: list[dict[str, int]] = []
    watch(model, seen)
    return Bare.of(model, PLAN, image_size=16), seen


def test_a_passage_says_where_records_joined():
    alike = {"stem": 4, "stage1": 4, "stage2": 4, "neck": 4}

    assert passage_of(alike) == Passage(records=4)
    assert passage_of({**alike, "stage2": 7, "neck": 7}) == Passage(records=4, place="stage1", joined=3)


@pytest.mark.parametrize("sizes", [{"stem": 4, "stage1": 3}, {"stem": 2, "stage1": 3, "neck": 4}])
def test_records_that_leave_or_join_twice_are_refused(sizes: dict[str, int]):
    with pytest.raises(ValueError, match="one place only"):
        passage_of(sizes)


def test_of_three_places_that_fire_half_the_time_only_the_first_counts():
    shares = exploration_shares(("stage1", "stage2", "stage3"), 0.5)

    assert shares == {"stage1": 0.5, "stage2": 0.25, "stage3": 0.125, None: 0.125}


def test_passes_in_evaluation_mode_are_not_counted():
    model, seen = network(), list[dict[str, int]]()
    watch(model, seen)

    model.eval()(torch.rand(2, 3, 16, 16))

    assert seen == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_views_make_as_many_passes_and_take_one_step(count: int):
    bare, seen = bare_of(network())
    before = bare.network.head.weight.detach().clone()

    views(bare, count=count, steps=2)

    assert [passage_of(sizes) for sizes in seen] == [Passage(records=6)] * 2 * count
    assert not torch.equal(bare.network.head.weight, before)


def test_an_enlarged_pass_grows_where_it_is_told_to():
    model = StableFDG().remodel(network(), stream(0, "world", "attention"))
    bare, seen = bare_of(model)
    wanted = [
        Passage(records=6),
        Passage(records=6, place="stage2", joined=5),
        Passage(records=8, place="stage1", joined=8),
    ]

    enlarged(bare, passages=wanted)

    assert [passage_of(sizes) for sizes in seen] == wanted


def test_feddag_needs_one_pass_of_the_teacher_and_two_of_the_student_for_a_step():
    bare, seen = bare_of(network())
    adversary = Adversary.of(bare.network, PLAN)
    before = adversary.generator.draw.weight.detach().clone()

    adversarial(bare, adversary, steps=1, validation=bare.images)

    assert len(seen) == 3
    assert not torch.equal(adversary.generator.draw.weight, before)
    assert bare.network.training


def test_a_bare_episode_steps_as_feddg_does_where_mixing_changes_nothing():
    bare, seen = bare_of(network())
    twin = network().train()
    optimizer = torch.optim.SGD(twin.parameters(), lr=PLAN.learning_rate)
    bank = Amplitudes(values=amplitudes(bare.images[:1].contiguous()), owner=torch.tensor([1]))
    episode = Episode(
        bank=bank, foreign=torch.tensor([0]), low_frequency=0.1, least_window=1, ratios=(1.0,), meta_step=1e-3,
        clip_value=100.0, meta_gradient="first-order", rng=stream(0, "world", "episode"),
    )  # fmt: skip

    episodes(bare, steps=1)
    episode(Batch(images=bare.images, labels=bare.labels, records=torch.arange(6)), twin).mean().backward()
    optimizer.step()

    assert len(seen) == 2
    for mine, other in zip(bare.network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)  # float32, gradients summed in another order


def test_every_part_is_a_script_and_has_a_quick_form():
    folder = Path(__file__).parents[3] / "benchmarks"

    assert list(FULL) == list(QUICK) == ["training", "methods", "metrics", "memory"]
    assert all((folder / command[0]).exists() for command in [*FULL.values(), *QUICK.values()])


def test_the_heap_of_a_part_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")

    assert surroundings(threads=1, heap="tuned")["GLIBC_TUNABLES"] == TUNED
    assert "GLIBC_TUNABLES" not in surroundings(threads=1, heap="default")
