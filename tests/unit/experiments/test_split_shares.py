"""Settings of the split: shares for validation, for tests on the sources, and of the unseen domain."""

from dataclasses import replace

import pytest

from fdgsec.experiments.bench.protocols import protocol_named
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import World, load_world
from fdgsec.experiments.train import split_sources, unseen_images
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress

PLAIN = RunConfig(method="fedavg", dataset="shapes", target_domain="sketch", image_size=16, per_domain=70)


@pytest.fixture(scope="module")
def world() -> World:
    return load_world(PLAIN, data_root=None, progress=NoProgress())


def test_a_tenth_is_for_validation_and_the_whole_unseen_domain_for_testing_where_nothing_is_said(world: World):
    clients, measured = split_sources(world, PLAIN)

    assert [(len(client.data), len(client.validation or ())) for client in clients] == [(63, 7)] * 3
    assert {len(images) for images in measured.values()} == {7}
    assert len(unseen_images(world, PLAIN)) == 70


def test_four_to_one_and_a_fifth_of_the_target_as_in_ccst(world: World):
    config = replace(PLAIN, validation_share=0.2, target_share=0.2)

    clients, _ = split_sources(world, config)
    tested = unseen_images(world, config)

    assert [(len(client.data), len(client.validation or ())) for client in clients] == [(56, 14)] * 3
    assert len(tested) == 14
    assert tested.labels.bincount().tolist() == [2] * 7  # a fifth of each class
    assert set(tested.ids) <= set(world.unseen().ids)
    assert unseen_images(world, replace(config, seed=1)).ids != tested.ids


def test_images_for_tests_on_the_sources_are_neither_trained_on_nor_validated_on(world: World):
    config = replace(PLAIN, validation_share=0.1, source_test_share=0.1)

    clients, measured = split_sources(world, config)

    tested = {name for images in measured.values() for name in images.ids}
    used = {
        name for client in clients for part in (client.data, client.validation) if part is not None for name in part.ids
    }
    assert [(len(client.data), len(client.validation or ())) for client in clients] == [(56, 7)] * 3
    assert len(tested) == 21
    assert not tested & used
    assert tested | used == set(world.seen().ids)


@pytest.mark.parametrize(
    "shares",
    [
        {"validation_share": 1.0},
        {"validation_share": -0.1},
        {"validation_share": 0.5, "source_test_share": 0.5},
        {"target_share": 0.0},
        {"target_share": 1.5},
    ],
    ids=str,
)
def test_shares_that_leave_nothing_are_refused(world: World, shares: dict[str, float]):
    with pytest.raises(UsageError, match="must lie in"):
        split_sources(world, replace(PLAIN, **shares))  # type: ignore[arg-type]


def test_the_protocols_have_the_papers_shares():
    def shares(name: str, dataset: str) -> tuple[float, float, float]:
        config = protocol_named(name).config("fedavg", (None, "any"), 0, {"dataset": dataset})
        return config.validation_share, config.source_test_share, config.target_share

    assert shares("ccst", "pacs") == (0.1, 0.0, 1.0)
    assert shares("ccst", "office-home") == shares("ccst-three-epochs", "camelyon17") == (0.2, 0.0, 0.2)
    assert shares("fisc-ltdo", "pacs") == shares("fisc-lodo", "office-home") == (0.1, 0.1, 1.0)


def test_settings_of_the_split_change_no_stored_name_where_they_are_as_before():
    shares = {"validation_share": 0.1, "source_test_share": 0.0, "target_share": 1.0}

    assert replace(PLAIN, **shares).sha256 == PLAIN.sha256  # type: ignore[arg-type]
    assert replace(PLAIN, target_share=0.2).sha256 != PLAIN.sha256
