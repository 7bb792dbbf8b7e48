"""What a server tries on a node by settings, models and repetition, and what the node answers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Context, Message

from fdgsec.experiments.flower import apps
from fdgsec.experiments.flower.jobs import Job
from fdgsec.experiments.run_config import RunConfig, resolve_settings
from fdgsec.experiments.setup.run_inputs import method_of, model_of
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.flower.codec import packed_request, packed_whoami, read_introduction, read_reply
from fdgsec.federation.engines.flower.grid import VERB
from fdgsec.federation.engines.flower.handler import answer
from fdgsec.federation.engines.flower.step_limits import RefusedError, admit_run
from fdgsec.federation.engines.state import NEVER
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Clock, Reply, Step, StepRequest
from fdgsec.runtime.errors import FdgsecError
from tests.support.hostile import altered, first_is
from tests.support.paper_grid import PaperGrid
from tests.support.small_pacs import SMALL, write

ALL = ("client:0", "client:1", "client:2")
PRIVATE = "private-styles:epsilon=4,delta=1e-5"
TRAINED = "dp-sgd:epsilon=8"


def settings(method: str = "ccst", **given: object) -> RunConfig:
    small = {"dataset": "shapes", "rounds": 1, "per_domain": 24, "image_size": 32, "norm": "group", **given}
    return resolve_settings(small, preset=None, defaults={"method": method})


def node(folder: Path, given: Mapping[str, str | int | bool] | None = None, *, run: int = 7) -> Context:
    """Node 102, which is client:1, in one run."""
    config = {"secret": str(folder / "secret.key"), "state": str(folder / "state"), **(given or {})}
    context = PaperGrid.of(folder, 3, node_config=config).contexts[102]
    context.run_id = run
    return context


def told(config: RunConfig, context: Context) -> None:
    """Ask who the node is. Raises FdgsecError with its refusal."""
    content = packed_whoami(Job(config=config, purpose="train", clients=3).settings())
    asked = Message(content=content, dst_node_id=102, message_type=VERB)
    read_introduction(answer(asked, context, apps.member_of).content)


def replied(
    step: Step, config: RunConfig, context: Context, model: GlobalModel | None = None, number: int = 0
) -> Reply:
    """Ask for a step of one round. Raises FdgsecError with its refusal."""
    clock = Clock(round=number, rounds=config.rounds, participants=ALL)
    content = packed_request(
        step, StepRequest(clock=clock, model=model, inbox={}), known=NEVER, held="",
        settings=Job(config=config, purpose="train", clients=3).settings(),
        model=None if model is None else model.state.encode(),
    )  # fmt: skip
    asked = Message(content=content, dst_node_id=102, message_type=VERB)
    return read_reply(answer(asked, context, apps.member_of).content)[0]


def model(config: RunConfig, change: Callable[[torch.Tensor], torch.Tensor] = lambda value: value) -> GlobalModel:
    """The first model of a run, its first layer changed as a server may that writes its own bytes."""
    honest = model_of(config, method_of(config), 7)
    first = next(iter(honest.state.state))
    made = altered(first, change)(honest.state)
    assert isinstance(made, ModelState)
    return GlobalModel(blueprint=honest.blueprint, state=made)


@pytest.mark.parametrize("name", ["dataset", "encoder", "backbone", "method", "local", "preset", "target"])
@pytest.mark.parametrize("place", ["{}/secret.toml", "../secret.toml", "pacs/../../secret.toml"])
def test_no_setting_opens_a_file_of_the_servers_choice(name: str, place: str, tmp_path: Path):
    """Names are looked up in lists; a preset is resolved where the run is started."""
    (tmp_path / "secret.toml").write_text("[run]\nrounds = 'the patient'\n")
    config = RunConfig.of({**settings().document(), name: place.format(tmp_path)}, where="run")

    if name in ("preset", "target", "backbone"):
        assert replied("share", config, node(tmp_path)).artifacts
    else:
        with pytest.raises(FdgsecError, match="unknown") as caught:
            replied("share", config, node(tmp_path))
        assert "the patient" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("changes", [{"data_root": "/"}, {"own_data": False}, {"secret": "run"}, {"required": []}])
def test_a_nodes_own_settings_are_none_of_the_runs(changes: dict[str, object], tmp_path: Path):
    document = {"purpose": "train", "config": {**settings().document(), **changes}}
    asked = Message(content=packed_whoami(json.dumps(document, default=list)), dst_node_id=102, message_type=VERB)

    with pytest.raises(FdgsecError, match="unknown option of run"):
        read_introduction(answer(asked, node(tmp_path), apps.member_of).content)


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ((), "takes part in no run without --defense private-styles:epsilon=4"),
        (("private-styles:epsilon=400",), "takes part in no run without --defense private-styles:epsilon=4"),
        (("private-styles:epsilon=4,delta=0.9",), "takes part in no run without --defense private-styles:epsilon=4"),
        ((PRIVATE, "private-styles:epsilon=inf,clip=1e9"), "takes part in no run with private-styles"),
        (("dp-fedavg:epsilon=1e6", PRIVATE), "takes part in no run with dp-fedavg"),
    ],
)
def test_a_server_switches_no_required_defense_off_and_stacks_none_on_it(
    listed: tuple[str, ...], reason: str, tmp_path: Path
):
    with pytest.raises(FdgsecError, match=reason):
        told(settings(defenses=listed), node(tmp_path, {"require-defenses": json.dumps([PRIVATE])}))


@pytest.mark.parametrize(
    ("required", "method", "step", "sent"),
    [(TRAINED, "ccst", "share", "style in the share"), (PRIVATE, "stablefdg", "fit", "model in the update")],
)
def test_no_choice_of_method_makes_a_node_send_what_its_defenses_do_not_cover(
    required: str, method: str, step: Step, sent: str, tmp_path: Path
):
    """DP-SGD says nothing of styles, and private-styles nothing of models."""
    config = settings(method, defenses=(required,))
    owner: dict[str, str | int | bool] = {"require-defenses": json.dumps([required])}
    stage = "update" if step == "fit" else step

    with pytest.raises(FdgsecError, match=f"client:1 does not send its {sent}"):
        replied(step, config, node(tmp_path / "strict", owner), model(config))
    assert replied(
        step, config, node(tmp_path / "lax", {"uncovered": json.dumps([stage]), **owner}), model(config)
    ).artifacts


@pytest.mark.parametrize(
    ("required", "method", "step"),
    [
        (TRAINED, "fedavg", "fit"), ("dp-fedavg:epsilon=8", "fedavg", "fit"), (PRIVATE, "ccst", "share"),
    ],
)  # fmt: skip
@pytest.mark.medium
def test_what_the_owners_defenses_cover_is_sent(required: str, method: str, step: Step, tmp_path: Path):
    config = settings(method, defenses=(required,))

    assert replied(step, config, node(tmp_path, {"require-defenses": json.dumps([required])}), model(config)).artifacts


def test_a_server_chooses_none_of_an_owners_own_images(tmp_path: Path):
    """A cap of one image would make each mean the style of that image."""
    own: dict[str, str | int | bool] = {"own-data": True, "data-root": str(write(tmp_path / "pacs", SMALL))}
    capped = {"per_domain": 1, "per_class": 1, "target_domain": "photo"}
    sizes = []
    for run, caps in ((1, {}), (2, capped)):
        config = settings(dataset="pacs", image_size=8, allow_partial=True, **{"per_domain": None, **caps})
        told = Job(config=config, purpose="train", clients=3).settings()
        sizes.append(len(apps.member_of(told, node(tmp_path, own, run=run)).client.data))

    assert sizes[0] == sizes[1] > 1


def test_a_method_without_use_for_a_required_defense_is_refused(tmp_path: Path):
    with pytest.raises(FdgsecError, match="private-styles has nothing to protect"):
        told(settings("fedavg", defenses=(PRIVATE,)), node(tmp_path, {"require-defenses": json.dumps([PRIVATE])}))


def test_a_node_counts_on_no_policy_that_its_server_would_have_to_keep(tmp_path: Path):
    with pytest.raises(FdgsecError, match="the server would see every upload"):
        told(settings("fedavg", defenses=("secure-aggregation",)), node(tmp_path))


def test_noise_depends_on_the_nodes_key_and_run_not_on_the_seed(tmp_path: Path):
    config = settings(rounds=0, defenses=(PRIVATE,))
    styles = [
        replied("share", config, node(folder, run=run)).artifacts["style"].encode()
        for folder, run in ((tmp_path / "a", 1), (tmp_path / "a", 2), (tmp_path / "b", 1))
    ]

    assert len(set(styles)) == 3


def test_a_node_takes_part_in_as_many_runs_as_its_owner_allows(tmp_path: Path):
    """Each run draws new noise: the mean over many would tell what one does not."""
    config = settings(rounds=0, defenses=(PRIVATE,))
    for run in (1, 2, 1):
        told(config, node(tmp_path, {"runs": 2}, run=run))

    with pytest.raises(FdgsecError, match="taken part in 2 runs, and its owner allows no more"):
        told(config, node(tmp_path, {"runs": 2}, run=3))
    with pytest.raises(RefusedError):
        admit_run(tmp_path / "state" / "run-4", 2)


def test_more_rounds_cost_more_noise_and_none_may_be_added_later(tmp_path: Path):
    """The guarantee is calibrated for the rounds of the first message, however many they are."""
    few, many = (settings("stablefdg", rounds=rounds, defenses=(PRIVATE,)) for rounds in (1, 100))
    once, often = (
        replied("share", config, node(tmp_path / str(config.rounds)), model(config)) for config in (few, many)
    )
    assert multiplier(often) == pytest.approx(10 * multiplier(once))

    with pytest.raises(FdgsecError, match="other settings than this run began with"):
        replied("share", many, node(tmp_path / "1"), model(many))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_not_accepted(number: float, tmp_path: Path):
    config = settings("stablefdg")

    with pytest.raises(FdgsecError, match="1 values that are not finite; nothing was accepted"):
        replied("share", config, node(tmp_path), model(config, first_is(number)))


def test_a_model_of_another_shape_trains_nothing(tmp_path: Path):
    config = settings("fedavg")

    with pytest.raises(FdgsecError, match=r"RuntimeError \(the node's log says more\)"):
        replied("fit", config, node(tmp_path), model(config, lambda value: value[:1]))


def test_a_steered_encoder_gets_as_much_noise_for_what_an_image_changes(tmp_path: Path):
    """StableFDG's encoder is the server's model: its weights enlarge the clip bound and the noise alike."""
    config = settings("stablefdg", defenses=(PRIVATE,))
    honest, steered = (
        replied("share", config, node(tmp_path / name), model(config, change))
        for name, change in (("honest", lambda value: value), ("steered", lambda value: value * 1e6))
    )

    assert multiplier(steered) == pytest.approx(multiplier(honest))


def multiplier(reply: Reply) -> float:
    """The noise of a style in units of what one image changes in it."""
    (uses,) = reply.uses.values()
    use = next(iter(uses or ()))
    return use.noise / use.sensitivity["replace-one"]


def test_a_failure_tells_one_bit_a_run_and_not_why(tmp_path: Path):
    """A server can make a step fail, perhaps on certain images alone: no noise covers that."""
    config = settings("stablefdg", rounds=3, defenses=(PRIVATE,))
    steered = model(config, lambda value: value[:1])  # a layer that does not fit

    with pytest.raises(FdgsecError, match=r"^client:1 failed in share \(the node's log says more\).$"):
        replied("share", config, node(tmp_path), steered)
    with pytest.raises(FdgsecError, match="takes no further part in this run: an earlier step failed"):
        replied("share", config, node(tmp_path), model(config), number=1)
