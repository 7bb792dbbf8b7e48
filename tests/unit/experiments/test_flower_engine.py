"""The Flower engine without Flower's processes: the same driver, the same bytes, and every kind of bad answer named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fdgsec.experiments.flower import apps
from fdgsec.experiments.flower.jobs import FlowerFederation, Job, JobFailedError, Status, load_trained, settings_read
from fdgsec.experiments.run_config import RunConfig, defense_of, resolve_settings
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.guarantees import SIMULATED
from fdgsec.experiments.setup.run_federation import FederationRun, RunRequest, federate
from fdgsec.experiments.setup.run_inputs import blueprint_of, load_world, method_of, model_of
from fdgsec.experiments.train import split_sources
from fdgsec.federation.engines.flower.codec import WireFormatError, read_reply, read_request
from fdgsec.federation.engines.flower.grid import VERB
from fdgsec.federation.engines.flower.step_limits import key_in, noise_key
from fdgsec.federation.round_loop import ClientFailedError
from fdgsec.federation.wire import Transcript
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.secret_streams import new_key
from tests.support.paper_grid import Fault, PaperGrid, error_reply
from tests.support.spelled_keys import spellings


def settings(method: str, **given: object) -> RunConfig:
    small = {"dataset": "shapes", "rounds": 2, "per_domain": 24, "image_size": 32, "keep": "models=all", **given}
    return resolve_settings(small, preset=None, defaults={"method": method})


def on_paper(
    config: RunConfig,
    folder: Path,
    *,
    fault: Fault | None = None,
    nodes: int | None = None,
    changed: Callable[[PaperGrid], None] = lambda _: None,
    **options: object,
) -> tuple[FederationRun, PaperGrid]:
    method = method_of(config)
    clients, _ = split_sources(load_world(config, data_root=None, progress=NoProgress()), config)
    grid = PaperGrid.of(folder / "nodes", nodes or len(clients), fault=fault)
    changed(grid)

    def runner(job_folder: Path, job: Job) -> None:
        status = Status(folder=job_folder)
        try:
            apps._run_job(Job.read(job_folder), grid.grid, job_folder, status)
        except UsageError as error:
            status.note(status="failed", exit_code=error.exit_code, error=str(error))
            return
        except ClientFailedError as error:
            status.note(status="failed", exit_code=error.exit_code, error=str(error))
            return
        status.note(status="done", exit_code=0)

    federation = FlowerFederation(runner=runner, **{"deployed": False, "wait": 1.0, **options})  # type: ignore[arg-type]
    return federation(RunRequest(method=method, members=clients, model=None, config=config)), grid


def in_process(config: RunConfig) -> FederationRun:
    method = method_of(config)
    world = load_world(config, data_root=None, progress=NoProgress())
    clients, _ = split_sources(world, config)
    model = model_of(config, method, len(world.dataset.class_names))
    stack = defense_stack_of(config, method)
    return federate(RunRequest(method=method, members=clients, model=model, config=config, defense_stack=stack))


@pytest.mark.parametrize("name", ["ccst", "fisc", "stablefdg", "feddag", "fedalign", "feddg-ga", "fedbn", "fpl"])
@pytest.mark.medium
def test_a_federation_on_flower_is_the_one_in_this_process_byte_for_byte(name: str, tmp_path: Path):
    config = settings(name)

    local, (remote, _) = in_process(config), on_paper(config, tmp_path)

    assert remote.transcript.rows == local.transcript.rows
    assert remote.transcript.sha256 == local.transcript.sha256
    assert remote.final.state.sha256 == local.final.state.sha256
    assert list(remote.final.state.state) == list(local.final.state.state)
    assert remote.kept_round == local.kept_round
    assert remote.curve == local.curve


@pytest.mark.parametrize(
    ("name", "first", "later"),
    [
        ("fedavg", ["fit"], ["fit"]),
        ("ccst", ["share", "fit"], ["fit"]),
        ("fisc", ["share", "fit"], ["fit"]),
        ("stablefdg", ["share", "fit"], ["share", "fit"]),
        ("fedalign", ["share", "fit"], ["share", "fit"]),
        ("feddag", ["fit", "review"], ["fit", "review"]),
        ("feddg-ga", ["fit", "review"], ["fit", "review"]),
    ],
)
@pytest.mark.medium
def test_a_round_takes_at_most_two_message_stages(name: str, first: list[str], later: list[str], tmp_path: Path):
    remote, grid = on_paper(settings(name), tmp_path)

    assert remote.federation is not None
    stages = [(stage["round"], stage["step"]) for stage in remote.federation["stages"]]

    assert stages == [(0, step) for step in first] + [(1, step) for step in later]
    assert len(grid.messages) == 3 * (1 + len(stages))  # one more in which nodes say who they are


@pytest.mark.medium
def test_a_model_travels_once_a_round_however_many_steps_read_it(tmp_path: Path):
    _, grid = on_paper(settings("stablefdg", rounds=1), tmp_path)

    slots = [sorted(message.content["artifacts"]) for message in grid.messages]

    assert slots[:3] == [[], [], []]
    assert slots[3:6] == [["model"], ["model"], ["model"]]
    assert all("model" not in names for names in slots[6:9])


@pytest.mark.medium
def test_defenses_act_at_the_node_and_cost_the_run_what_they_cost_here(tmp_path: Path):
    config = settings("ccst", rounds=0, defenses=("private-styles:epsilon=4,delta=1e-5",))

    local, (remote, _) = in_process(config), on_paper(config, tmp_path)

    assert remote.transcript.sha256 == local.transcript.sha256
    assert remote.guarantees == json.loads(json.dumps(local.guarantees))
    assert remote.guarantees
    assert (remote.federation or {})["guarantees"] == remote.guarantees


MANY: dict[str, object] = {"count": 10**30}


@pytest.mark.parametrize(
    "lie",
    [{"unit": "client"}, {"sensitivity": {}}, MANY, {"mechanism": "laplace", "count": 10**15}],
    ids=str,
)
@pytest.mark.medium
def test_no_node_ends_a_run_by_what_it_says_of_its_noise(lie: dict[str, object], tmp_path: Path):
    config = settings("ccst", rounds=0, defenses=("private-styles:epsilon=4,delta=1e-5",))

    def fault(reply: Message) -> Message:
        uses = json.loads(str(reply.content["fdgsec"]["uses"]))
        return changed(reply, uses=json.dumps({slot: [{**uses[slot][0], **lie}] for slot in uses}))

    remote, _ = on_paper(config, tmp_path, fault=only_from(102, fault))

    (run,) = remote.guarantees
    none = "none follows from what the clients say of their noise" in str(run["assumptions"])
    assert none is (run["epsilon"] is None) is (lie != MANY)  # many releases compose, to an epsilon without worth


@pytest.mark.medium
def test_a_node_with_a_secret_of_its_own_sends_other_noise_each_federation(tmp_path: Path):
    config = settings("ccst", rounds=0, defenses=("style-noise:p=0.1,scale=0.5",))
    local = in_process(config)
    method = method_of(config)
    found = []
    for name in ("one", "two"):
        grid = PaperGrid.of(tmp_path / name, 3, node_config={"secret": str(tmp_path / f"{name}.seed")})
        job = Job(config=config, purpose="train", clients=3, deployed=True, wait=1.0)
        apps._run_job(job, grid.grid, tmp_path / name, Status(folder=tmp_path / name))
        found.append(Transcript.load(tmp_path / name / "run").sha256)

    assert method.shares == "once"
    assert len({*found, local.transcript.sha256}) == 3


@pytest.mark.parametrize("reproducible", [(), (101,), (101, 102, 103)], ids=str)
def test_a_guarantee_says_where_a_node_draws_its_noise_from_the_seed(reproducible: tuple[int, ...], tmp_path: Path):
    grid = PaperGrid.of(tmp_path, 3, node_config={"secret": str(tmp_path / "secret.key")})
    for node in reproducible:
        grid.contexts[node].node_config["secret"] = "run"
    config = settings("ccst", rounds=0, defenses=("private-styles:epsilon=4,delta=1e-5",))
    apps._run_job(Job(config=config, purpose="train", clients=3), grid.grid, tmp_path, Status(folder=tmp_path))

    found = load_trained(tmp_path / "run", blueprint_of(config, method_of(config), 7)).guarantees
    assert found
    assert all((SIMULATED in each["assumptions"]) == bool(reproducible) for each in found)  # type: ignore[operator]


def test_a_deployed_node_without_a_key_for_its_noise_takes_part_in_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    context = PaperGrid.of(tmp_path, 3, node_config={"secret": ""}).contexts[101]

    monkeypatch.delenv(apps.SIMULATION, raising=False)
    with pytest.raises(UsageError, match="a node needs a key for its noise"):
        apps.NodeConfig.of(context)
    monkeypatch.setenv(apps.SIMULATION, str(tmp_path))
    assert apps.NodeConfig.of(context).secret == "run"


def test_a_node_takes_part_in_nothing_that_lacks_the_defense_its_owner_demands(tmp_path: Path):
    grid = PaperGrid.of(tmp_path, 3, node_config={"require-defenses": '["private-styles:epsilon=4,delta=1e-5"]'})
    job = Job(config=settings("ccst", rounds=0), purpose="train", clients=3, wait=0.1)

    with pytest.raises(ClientFailedError, match="takes part in no run without --defense private-styles:epsilon=4"):
        apps._run_job(job, grid.grid, tmp_path, Status(folder=tmp_path))


OWNER = apps.NodeConfig(partition=0, clients=3, data_root=None, state=Path("s"), required=("private-styles:epsilon=1",))


@pytest.mark.parametrize(
    "added",
    ["private-styles:epsilon=inf,clip=1e9", "private-styles:epsilon=2", "dp-fedavg"],
    ids=["raw", "again", "other"],
)
def test_a_server_adds_no_mechanism_to_what_an_owner_requires(added: str):
    listed = [defense_of("private-styles:epsilon=1"), defense_of(added)]

    for order in (listed, listed[::-1]):
        with pytest.raises(UsageError, match=r"takes part in no run with .* a server may only list post-processing"):
            apps.own_first(OWNER, order)


@pytest.mark.parametrize("required", ["dp-sgd:noise_multiplier=1", "dp-fedavg:noise_multiplier=1"])
def test_an_owner_cannot_require_a_multiplier_whose_cost_the_server_would_choose(required: str):
    """50 steps of all images cost an epsilon of 54 at a multiplier of 1, and 5,000 steps 2,801."""
    owner = replace(OWNER, required=(required,))

    with pytest.raises(UsageError, match="require an epsilon"):
        apps.own_first(owner, [defense_of(required)])


def test_an_owners_defenses_act_before_those_that_a_server_adds():
    noise, private = defense_of("style-noise:p=0.1,scale=0.5"), defense_of("private-styles:epsilon=1")

    assert apps.own_first(OWNER, [noise, private]) == (private, noise)


@pytest.mark.medium
def test_no_key_is_in_a_message_or_in_a_file_but_its_own(tmp_path: Path):
    """Neither a node's key, nor its run's secret, nor the key of its noise, nor the server's, however it is spelled."""
    config = settings("ccst", rounds=1, defenses=("private-styles:epsilon=4,delta=1e-5",), keep="models=all")
    replies: list[Message] = []
    grid = PaperGrid.of(
        tmp_path / "nodes", 3, node_config={"secret": str(tmp_path / "own" / "secret.key")},
        fault=lambda reply, _: replies.append(reply) or reply,
    )  # fmt: skip
    drawn: list[bytes] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apps, "new_key", lambda: drawn.append(new_key()) or drawn[-1])
        job = Job(config=config, purpose="train", clients=3, deployed=True, wait=1.0)
        apps._run_job(job, grid.grid, tmp_path / "job", Status(folder=tmp_path / "job"))

    own = key_in(tmp_path / "own" / "secret.key")
    runs = {path: bytes.fromhex(path.read_text()) for path in (tmp_path / "nodes").rglob("run.secret")}
    noise = [noise_key(path.parent, own) for path in runs]
    keys = [own, *runs.values(), *noise, *drawn]
    assert (len(runs), len(drawn)) == (3, 1)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path not in runs and path.name != "secret.key"]
    assert any(path.suffix == ".safetensors" or path.name.endswith(".json") for path in files)
    sent = [content_bytes(message) for message in (*grid.messages, *replies)]
    assert len(sent) >= 12
    words = [word for key in keys for word in spellings(key)]
    for content in (*(path.read_bytes() for path in files), *sent):
        assert not any(word in content for word in words)
    assert own.hex().encode() in content_bytes(Message(RecordDict({"": ConfigRecord({"": own.hex()})}), 1, VERB))


def content_bytes(message: Message) -> bytes:
    """Everything that a message carries, in the bytes that Flower sends."""
    objects = get_all_nested_objects(message).values()
    return b"".join([message_to_proto(message).SerializeToString(), *(each.deflate() for each in objects)])


def test_policies_of_the_wire_are_refused_where_the_server_would_see_every_upload(tmp_path: Path):
    job = Job(config=settings("fedavg", defenses=("secure-aggregation",)), purpose="train", clients=3, wait=0.1)

    with pytest.raises(UsageError, match="the server would see every upload"):
        apps._run_job(job, PaperGrid.of(tmp_path, 3).grid, tmp_path, Status(folder=tmp_path))


def changed(reply: Message, **fields: object) -> Message:
    head = ConfigRecord({**dict(reply.content["fdgsec"]), **fields})  # type: ignore[arg-type]
    return holding(reply, RecordDict({"fdgsec": head, "artifacts": reply.content["artifacts"]}))


def holding(reply: Message, content: RecordDict) -> Message:
    reply.content = content
    return reply


def only_from(node: int, fault) -> Fault:  # type: ignore[no-untyped-def]
    def act(reply: Message, sender: int) -> Message | None:
        told = reply.content["fdgsec"]
        return fault(reply) if sender == node and "introduction" not in told else reply

    return act


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda reply: None, "no answer within"),
        (lambda reply: error_reply(reply, 5, "the node is gone"), "the node is gone"),
        (lambda reply: holding(reply, RecordDict({})), "no fdgsec record"),
        (lambda reply: changed(reply, weight="many"), "weight"),
        (lambda reply: changed(reply, metrics="no json"), "metrics"),
        (lambda reply: changed(reply, state_version=-1), "state_version"),
        (lambda reply: changed(reply, slots=["model", "extra"]), "lacks the artifact extra"),
        (lambda reply: changed(reply, orders='{"model": ["a"]}'), "came with the names of 1"),
        (lambda reply: changed(reply, weight=-3.0), "weight"),
        (lambda reply: changed(reply, weight=1e12), "weight"),
        (lambda reply: changed(reply, weight=float("nan")), "weight"),
    ],
)
@pytest.mark.medium
def test_a_bad_answer_ends_the_run_with_the_clients_name_and_the_reason(fault, reason: str, tmp_path: Path):  # type: ignore[no-untyped-def]
    with pytest.raises(JobFailedError, match=f"client:1 failed in fit: .*{reason}") as caught:
        on_paper(settings("fedavg", rounds=1), tmp_path, fault=only_from(102, fault), timeout=0.2)

    assert caught.value.exit_code == 1


@pytest.mark.medium
def test_a_quorum_goes_on_without_the_client_that_failed(tmp_path: Path):
    fault = only_from(102, lambda reply: changed(reply, weight=-3.0))

    remote, _ = on_paper(settings("fedavg", rounds=2), tmp_path, fault=fault, quorum=0.5)

    assert remote.federation is not None
    failures = remote.federation["failures"]
    assert [(each["client"], each["round"], each["step"]) for each in failures] == [
        ("client:1", 0, "fit"),
        ("client:1", 1, "fit"),
    ]
    senders = {row.sender for row in remote.transcript.rows if row.stage == "update"}
    assert senders == {"client:0", "client:2"}


@pytest.mark.medium
def test_a_run_goes_on_without_nodes_that_claim_what_they_are_not(tmp_path: Path):
    """Of six nodes the last three lie; the run is that of the three honest ones, to the byte."""
    config = settings("fedavg", rounds=1)

    def lies(grid: PaperGrid) -> None:
        told = {104: {"partition-id": 1, "num-partitions": 3}, 105: {"partition-id": 7, "num-partitions": 8}}
        for node, claim in told.items():
            grid.contexts[node].node_config |= claim
        grid.contexts[106].node_config["partition-id"] = "not a number"
        for node in (101, 102, 103):
            grid.contexts[node].node_config["num-partitions"] = 3

    local, (remote, _) = in_process(config), on_paper(config, tmp_path, nodes=6, changed=lies)

    assert remote.transcript.sha256 == local.transcript.sha256
    assert remote.federation is not None
    assert set(remote.federation["clients"]) == {"client:0", "client:1", "client:2"}
    assert [reason.partition(" ")[2][:3] for reason in remote.federation["refused"]] == ["104", "105", "106"]


@pytest.mark.medium
def test_a_client_whose_state_was_reset_refuses_to_go_on(tmp_path: Path):
    config = settings("feddag", rounds=2)
    removed = []

    def fault(reply: Message, sender: int) -> Message:
        stored = list((tmp_path / "nodes" / "102").rglob("client-1.json"))
        if sender == 102 and "introduction" not in reply.content["fdgsec"] and stored and not removed:
            for path in stored[0].parent.iterdir():
                path.unlink()
            removed.append(True)
        return reply

    with pytest.raises(JobFailedError, match=r"client:1 failed in .*version"):
        on_paper(config, tmp_path, fault=fault)


def test_settings_survive_the_way_and_attacks_stay_at_home():
    config = settings("ccst", attacks=("linkage",), defenses=("style-noise:p=0.1,scale=0.5",))

    purpose, told = settings_read(Job(config=config, purpose="attack", clients=3).settings())

    assert (purpose, told) == ("attack", replace(config, attacks=()))


@pytest.mark.parametrize(
    "content", [RecordDict({}), RecordDict({"fdgsec": ConfigRecord({"verb": "eval"}), "artifacts": ArrayRecord()})]
)
def test_what_is_no_message_of_ours_is_refused(content: RecordDict):
    with pytest.raises(WireFormatError):
        read_request(content)
    with pytest.raises(WireFormatError):
        read_reply(content)
