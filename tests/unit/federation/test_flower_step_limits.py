"""What a node says no to: a step twice, another run than was announced, and texts and sizes that are nobody's business."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Message, RecordDict

from fdgsec.experiments.flower import apps
from fdgsec.experiments.flower.jobs import Job
from fdgsec.experiments.run_config import RunConfig, resolve_settings
from fdgsec.experiments.setup.run_inputs import method_of, model_of
from fdgsec.federation.engines.flower.codec import (
    packed_introduction,
    packed_request,
    packed_whoami,
    read_introduction,
    read_reply,
)
from fdgsec.federation.engines.flower.handler import Member, answer
from fdgsec.federation.engines.flower.step_limits import (
    RefusedError,
    StepLimits,
    key_in,
    noise_key,
    pin_settings,
    run_secret,
)
from fdgsec.federation.engines.state import NEVER, FileStates, StateMark, StateMismatchError
from fdgsec.federation.method import Clock, Step, StepRequest
from fdgsec.runtime.errors import DataError, DatasetNotFoundError, FdgsecError, UsageError
from tests.support.paper_grid import PaperGrid

ALL = ("client:0", "client:1", "client:2")


def settings(method: str = "ccst", **given: object) -> RunConfig:
    small = {"dataset": "shapes", "rounds": 2, "per_domain": 24, "image_size": 32, **given}
    return resolve_settings(small, preset=None, defaults={"method": method})


def step_limits(folder: Path, method: str = "ccst", **given: object) -> StepLimits:
    asked = {"name": "client:1", "rounds": 2, "clients": 3, **given}
    return StepLimits(folder=folder, method=method_of(settings(method)), **asked)  # type: ignore[arg-type]


def clock(number: int = 0, rounds: int = 2, participants: tuple[str, ...] = ALL) -> Clock:
    return Clock(round=number, rounds=rounds, participants=participants)


def member(folder: Path, *, config: RunConfig | None = None) -> Member:
    """Node 102's client, made as its node makes it."""
    job = Job(config=config or settings(), purpose="train", clients=3)
    return apps.member_of(job.settings(), PaperGrid.of(folder, 3).contexts[102])


def asked_to_share() -> Message:
    job = Job(config=settings(rounds=0), purpose="train", clients=3)
    request = StepRequest(clock=clock(rounds=0), model=None, inbox={})
    content = packed_request("share", request, settings=job.settings(), known=NEVER, model=None, held="")
    return Message(content=content, dst_node_id=102, message_type="query.fdgsec")


def test_a_step_is_done_once_a_round(tmp_path: Path):
    given = step_limits(tmp_path)
    given.admit("share", clock())
    given.admit("fit", clock())
    given.admit("fit", clock(1))

    for step, number in (("share", 0), ("fit", 0), ("fit", 1)):
        with pytest.raises(RefusedError, match=rf"client:1 was asked to {step} in round {number} a second time"):
            step_limits(tmp_path).admit(step, clock(number))  # type: ignore[arg-type]  # another process, the same files


def test_clients_of_one_node_answer_each_for_themselves(tmp_path: Path):
    for name in ALL:
        step_limits(tmp_path, name=name).admit("fit", clock())


@pytest.mark.parametrize(
    "asked",
    [
        clock(0, rounds=3), clock(2), clock(-1), clock(0, rounds=0),
    ],
)  # fmt: skip
def test_rounds_are_the_runs(asked: Clock, tmp_path: Path):
    with pytest.raises(RefusedError, match="the run has 2 rounds"):
        step_limits(tmp_path).admit("fit", asked)


@pytest.mark.parametrize(
    "named",
    [("client:0", "client:2"), (*ALL, "client:3"), ("client:1", "client:1"), (), ("client:1", "server")],
)
def test_participants_are_of_the_run_and_the_client_among_them(named: tuple[str, ...], tmp_path: Path):
    with pytest.raises(RefusedError, match="participants"):
        step_limits(tmp_path).admit("share", clock(participants=named))


@pytest.mark.parametrize(
    ("method", "step", "number"),
    [("ccst", "share", 1), ("fedavg", "share", 0), ("fedavg", "review", 0), ("ccst", "review", 1)],
)
def test_a_method_is_asked_for_nothing_that_it_does_not_do(method: str, step: Step, number: int, tmp_path: Path):
    with pytest.raises(RefusedError, match=f"asked to {step} in round {number}, which this run does not"):
        step_limits(tmp_path, method).admit(step, clock(number))


def test_a_method_that_shares_and_reviews_each_round_may(tmp_path: Path):
    step_limits(tmp_path / "share", "stablefdg").admit("share", clock(1))
    step_limits(tmp_path / "review", "feddag").admit("review", clock(1))


def test_without_rounds_a_client_only_shares(tmp_path: Path):
    given = step_limits(tmp_path, rounds=0)
    given.admit("share", clock(rounds=0))

    with pytest.raises(RefusedError, match="asked to fit"):
        given.admit("fit", clock(rounds=0))


def test_a_states_name_says_nothing_of_its_content(tmp_path: Path):
    mark, other = StateMark(version=3, sha256="a" * 64), StateMark(version=3, sha256="b" * 64)
    here, there = step_limits(tmp_path / "one"), step_limits(tmp_path / "two")

    assert here.veiled(NEVER) == NEVER
    assert here.veiled(mark) == here.veiled(mark)
    assert here.veiled(mark).version == 3
    assert len({each.sha256 for each in (mark, here.veiled(mark), there.veiled(mark), here.veiled(other))}) == 4
    assert here.veiled(mark) != replace(here, name="client:2").veiled(mark)  # equal states of two clients


def test_no_two_runs_share_noise_and_one_run_keeps_its_own(tmp_path: Path):
    one, two = tmp_path / "run-1", tmp_path / "run-2"

    here, there = key_in(tmp_path / "a.key"), key_in(tmp_path / "b.key")
    keys = [noise_key(one, here), noise_key(two, here), noise_key(one, there)]

    assert len(set(keys)) == 3
    assert noise_key(one, here) == keys[0]
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("content", ["", "12345", "xy" * 32, "00" * 31])
def test_a_file_without_a_key_is_refused_and_never_replaced(tmp_path: Path, content: str):
    (tmp_path / "mine.key").write_text(content)

    with pytest.raises(UsageError, match="holds no key of 32 bytes in hexadecimal"):
        key_in(tmp_path / "mine.key")
    assert (tmp_path / "mine.key").read_text() == content


def test_a_run_keeps_the_settings_of_its_first_message(tmp_path: Path):
    """A server that announced one more round each time would get noise for fewer than there are."""
    pin_settings(tmp_path / "run-1", "rounds = 1")
    pin_settings(tmp_path / "run-1", "rounds = 1")
    pin_settings(tmp_path / "run-2", "rounds = 2")

    with pytest.raises(RefusedError, match="other settings than this run began with"):
        pin_settings(tmp_path / "run-1", "rounds = 2")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    key_in(tmp_path / "mine.key")
    (tmp_path / "mine.key").chmod(0o640)

    with pytest.raises(UsageError, match="chmod 600"):
        key_in(tmp_path / "mine.key")


def test_a_runs_secret_is_the_nodes_alone_and_drawn_once(tmp_path: Path):
    found = {run_secret(tmp_path / "run") for _ in range(3)}

    assert len(found) == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.secret"]  # no drafts remain
    assert (tmp_path / "run" / "run.secret").stat().st_mode & 0o777 == 0o600


def test_an_answered_message_that_comes_again_gets_no_second_answer(tmp_path: Path):
    context = PaperGrid.of(tmp_path, 3).contexts[102]

    def replied() -> RecordDict:
        return answer(asked_to_share(), context, apps.member_of).content

    assert read_reply(replied())[0].artifacts
    with pytest.raises(FdgsecError, match="client:1 was asked to share in round 0 a second time"):
        read_reply(replied())


OF_WARD = r"PACS not found in \(a path of the node\): no \(a path of the node\)\."
OF_QUOTED = r"cannot read \(a path of the node\), \(a path of the node\) and \(a path of the node\)\."


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UsageError("client:1 takes part in no such run."), "client:1 takes part in no such run."),
        (DataError("ward-7/patient.png is no image."), r"DataError \(the node's log says more\)"),
        (ValueError("0.25 of ward-7/patient.png"), r"ValueError \(the node's log says more\)"),
        (
            StateMismatchError("version 2, but /srv/node 7/state/client-1.2.safetensors is missing."),
            r"version 2, but \(a path of the node\) is missing.",
        ),
        (DatasetNotFoundError("PACS not found in /srv/ward 7: no /srv/ward 7/photo."), OF_WARD),
        (UsageError("cannot read '/mnt/jane doe.key', ../x.key and C:\\node\\y."), OF_QUOTED),
    ],
)
def test_what_went_wrong_is_told_without_names_of_data(
    error: Exception, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def workplace(settings: str, context: object) -> Member:
        raise error

    context = PaperGrid.of(tmp_path, 3, node_config={"data-root": "/srv/ward 7", "state": "/srv/node 7"}).contexts[102]
    with pytest.raises(FdgsecError, match=f"^{told}$"):
        read_reply(answer(asked_to_share(), context, workplace).content)
    assert str(error) in capsys.readouterr().err


def test_no_error_of_a_real_node_names_a_folder_of_its_machine(tmp_path: Path):
    """Datasets that are missing, keys that are none, states that were altered: whatever a server can ask for."""
    place = tmp_path / "jane doe" / "ward 7"
    place.mkdir(parents=True)
    (place / "other.key").write_text("no key")
    reasons = []
    for number, (changes, config) in enumerate([
        ({"data-root": str(place)}, settings(dataset="pacs")), ({"secret": str(place / "other.key")}, settings()),
        ({"secret": str(place)}, settings()),
        ({"own-data": True, "data-root": str(place)}, settings(dataset="digits-dg")),
    ]):  # fmt: skip
        context = PaperGrid.of(place / str(number), 3, node_config=changes).contexts[102]
        whoami = Message(
            content=packed_whoami(Job(config=config, purpose="train", clients=3).settings()), dst_node_id=102,
            message_type="query.fdgsec",
        )  # fmt: skip
        with pytest.raises(FdgsecError) as caught:
            read_introduction(answer(whoami, context, apps.member_of).content)
        reasons.append(str(caught.value))

    assert not [word for word in ("/", "jane", "doe", "ward", "tmp") if any(word in reason for reason in reasons)]
    assert "(a path of the node)" in reasons[0]


def test_a_partition_that_is_impossible_tells_no_number_of_images(tmp_path: Path):
    config = settings(partition="dirichlet", clients=50_000, defenses=("style-noise:p=0.1,scale=0.5",))
    content = packed_whoami(Job(config=config, purpose="train", clients=3).settings())
    asked = Message(content=content, dst_node_id=102, message_type="query.fdgsec")

    with pytest.raises(FdgsecError, match=r"^DataError \(the node's log says more\)$"):
        read_introduction(answer(asked, PaperGrid.of(tmp_path, 3).contexts[102], apps.member_of).content)


def test_a_server_cannot_test_guesses_of_a_states_content(tmp_path: Path):
    """What a node says of a state that the server names wrongly holds no hash of its content."""
    context = PaperGrid.of(tmp_path, 3).contexts[102]
    client = apps.member_of(Job(config=settings(), purpose="train", clients=3).settings(), context)
    states = FileStates(folder=client.folder / "state")
    states.write("client:1", {"stylized": torch.ones(3)})
    model = model_of(settings(), method_of(settings()), 7)
    content = packed_request(
        "fit", StepRequest(clock=clock(), model=model, inbox={}), model=model.state.encode(), held="",
        settings=Job(config=settings(), purpose="train", clients=3).settings(), known=StateMark(version=1, sha256="0"),
    )  # fmt: skip
    asked = Message(content=content, dst_node_id=102, message_type="query.fdgsec")

    with pytest.raises(FdgsecError, match="holds another version 1 of its state") as caught:
        read_reply(answer(asked, context, apps.member_of).content)
    assert states.mark("client:1").sha256[:8] not in str(caught.value)


def test_a_client_with_a_defense_does_not_say_how_many_images_it_holds(tmp_path: Path):
    plain = member(tmp_path / "plain").introduction
    defended = member(tmp_path / "defended", config=settings(defenses=("style-noise:p=0.1,scale=0.5",))).introduction

    assert plain.training == 22
    assert plain.validation == 2
    assert (defended.training, defended.validation) == (0, 0)
    assert read_introduction(packed_introduction(defended)) == defended
