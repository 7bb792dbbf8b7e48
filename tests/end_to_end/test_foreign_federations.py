"""Somebody else's federation, attacked by somebody who knows the public names of fdgsec and nothing else."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

import fdgsec
from fdgsec.cli import main

CLIENTS = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def rows(images: Tensor) -> Tensor:
    """A style of one's own: means and stds of 48 products of colors over the pixels of an image."""
    colors = nn.functional.avg_pool2d(images, 2).double()
    features = torch.cat(
        [colors.roll((a, b), (1, 2)) * colors for a in range(3) for b in range(0, 16, 4)] + [colors] * 4, 1
    )
    return torch.cat([features.mean((2, 3)), (features.var((2, 3), correction=0) + 1e-5).sqrt()], 1)


def pooled(images: Tensor) -> Tensor:
    """The style over all pixels of all images."""
    mean, std = rows(images.float() / 255).chunk(2, dim=1)
    center = mean.mean(0)
    return torch.cat([center, (std.square() + mean.square()).mean(0).sub(center.square()).clamp_min(0).sqrt()])


@pytest.fixture(scope="module")
def images() -> Tensor:
    return fdgsec.load_dataset("shapes", per_domain=35, image_size=32).pixels()


@pytest.fixture(scope="module")
def owners() -> Tensor:
    owner = torch.zeros(60, dtype=torch.int64)
    owner[torch.randperm(60, generator=fdgsec.stream(0, "world", "stranger"))[:10]] = torch.tensor([1] * 5 + [2] * 5)
    return owner


@pytest.mark.medium
def test_a_dict_of_arrays_is_attacked_in_ten_lines(images: Tensor, owners: Tensor):
    styles = {
        "hospital A": pooled(images[:60][owners == 1]).numpy(),
        "hospital B": pooled(images[:60][owners == 2]).numpy(),
    }

    report = fdgsec.attack_vectors(styles, statistics=rows, candidates=images[:60], truth=owners)

    found = report["set-reconstruction"].to_frame().set_index("measurement")
    assert found.loc["auc", "value"] > 0.9  # 5 of 60 images, from 96 numbers
    assert "names every image of 2 of 2 clients among 60 candidates" in report.sentence


@pytest.mark.medium
def test_images_in_a_folder_and_an_encoder_by_name_are_candidates_too(images: Tensor, owners: Tensor, tmp_path: Path):
    from PIL import Image

    for number, image in enumerate(images[:60]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number:03}.png")
    style = {"A": pooled(images[:60][owners == 1])}  # of other statistics than the encoder's: only shapes are looked at

    with pytest.raises(ValueError, match="both must be of one encoder"):
        fdgsec.attack_vectors(style, encoder="mini", candidates=str(tmp_path), truth=owners == 1)
    report = fdgsec.attack_vectors(style, statistics=rows, candidates=str(tmp_path), truth=owners == 1)
    assert report["set-reconstruction"].verdict != "not applicable"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"candidates": np.zeros((9, 5, 4, 4))}, "candidate images must be"),
        ({"candidates": np.full((9, 3, 4, 4), 7.0)}, "from 0 to 1"),
        ({"candidates": np.zeros((9, 3, 4, 4)), "encoder": "mini"}, "not by both"),
        ({"candidates": np.zeros((9, 96))}, "is a function of images"),
        ({}, "give candidates too"),
        ({"candidates": np.zeros((9, 3, 4, 4), dtype=np.uint8), "statistics": lambda images: images}, "a row for each"),
        ({"candidates": np.zeros((9, 3, 4, 4), dtype=np.uint8), "statistics": lambda _: ["a"]}, "must hold numbers"),
    ],
)
def test_wrong_candidates_and_statistics_are_refused(given: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        fdgsec.attack_vectors({"A": np.ones(96)}, **{"statistics": rows, **given}, images_per_client=2)


def foreign_loop(send: Callable[..., None], images: Tensor) -> None:
    """Two rounds of somebody's FedAvg that also shares styles, new images each time; 8 clients of 15 images."""
    model = nn.Linear(3, 4)
    for number in range(2):
        send("model", model.state_dict(), sender="server", receiver="clients", round=number)
        for client in range(CLIENTS):
            local = nn.Linear(3, 4)
            own = images[client * 15 + number * 5 : client * 15 + number * 5 + 10]
            send("style", pooled(own), sender=f"hospital {client}", round=number)
            send("update", local.state_dict(), sender=f"hospital {client}", round=number)
            send("prototypes", {0: torch.ones(3), 2: torch.zeros(3)}, sender=f"hospital {client}", round=number)


@pytest.mark.medium
def test_a_recorded_loop_is_attacked_as_a_run(images: Tensor, tmp_path: Path):
    with fdgsec.record(str(tmp_path / "wire")) as wire:
        foreign_loop(wire.send, images)

    report = fdgsec.attack_run(str(tmp_path / "wire"), out=str(tmp_path / "report"))

    assert report["linkage"].status == "done"
    assert report.unread_kinds == ["ModelState", "Prototypes"]
    assert {row["kind"] for row in report.artifacts} == {"StyleStatistics", "Prototypes"}
    assert "hospital 3" in (tmp_path / "report" / "guesses.csv").read_text()
    assert fdgsec.AttackReport.load(tmp_path / "report").sentence == report.sentence


@pytest.mark.medium
def test_the_command_line_attacks_a_recording_and_takes_candidates_for_it(
    images: Tensor, owners: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with fdgsec.record(tmp_path / "wire") as wire:
        for number, name in enumerate(("A", "B"), 1):
            wire.send("style", pooled(images[:60][owners == number]), sender=name)
    np.save(tmp_path / "table.npy", rows(images.float() / 255).numpy())

    wire, table = str(tmp_path / "wire"), str(tmp_path / "table.npy")
    given = ["--artifacts", wire, "--candidates", table, "--images-per-client", "5"]
    for name, options, outcome in (("a", ["--run", wire], "skipped"), ("b", given, "done")):
        assert main(["attack", *options, "--json", "--out", str(tmp_path / name)]) == 0
        attacks = {each["name"]: each["status"] for each in json.loads(capsys.readouterr().out)["attacks"]}
        assert (attacks["linkage"], attacks["set-reconstruction"]) == ("done", outcome)


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("stile", torch.ones(4), "did you mean 'style'"),
        ("style", torch.ones(5), r"must be \(2 C,\)"),
        ("style", torch.ones(8), "shapes of those before"),
        ("style", torch.tensor([1.0, float("nan"), 1.0, 1.0]), "not finite"),
        ("style", torch.tensor([1.0, 1.0, -1.0, 1.0]), "must be >= 0"),
        ("style", ["a", "b"], "must hold numbers"),
        ("style", torch.ones(4, dtype=torch.complex64), "real numbers"),
        ("image-styles", torch.ones(4), r"\(R, 2 C\)"),
        ("update", {}, "must hold numbers"),
        ("update", {"weight": torch.full((2, 2), float("inf"))}, "not finite"),
        ("prototypes", {"cat": torch.ones(3)}, "number of their class"),
        ("prototypes", torch.ones(3), "Prototypes expects"),
        ("spectra", torch.ones(3, 3), "Amplitudes expects"),
    ],
)
def test_what_cannot_be_read_is_refused_when_it_is_sent(tmp_path: Path, kind: str, content: object, said: str):
    with fdgsec.record(tmp_path / "wire") as wire:
        wire.send("style", torch.ones(4), sender="A")
        with pytest.raises(ValueError, match=said):
            wire.send(kind, content, sender="A")

    assert len((tmp_path / "wire" / "transcript.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "content", [torch.ones(4), np.ones(4), [1, 1, 1, 1], (np.ones(2), np.ones(2)), np.ones((2, 2))]
)
def test_a_style_may_be_a_tensor_an_array_a_list_or_a_pair(tmp_path: Path, content: object):
    with fdgsec.record(tmp_path / "wire") as wire:
        wire.send("style", content, sender="A")
        wire.send("gradient", {"weight": torch.ones(2, 3), "bias": torch.ones(2)}, sender="A")

    lines = (tmp_path / "wire" / "transcript.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["StyleStatistics", "HeadGradient"]


def test_names_rounds_and_folders_that_are_none_are_refused(tmp_path: Path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")

    with pytest.raises(ValueError, match="no recording"), fdgsec.record(tmp_path / "thesis"):
        pass
    with fdgsec.record(tmp_path / "wire") as wire:
        for sender in ("", "a\nb", "a" * 101):
            with pytest.raises(ValueError, match="must have a name"):
                wire.send("style", torch.ones(4), sender=sender)
        with pytest.raises(ValueError, match="round must be"):
            wire.send("style", torch.ones(4), sender="A", round=-1)
    with pytest.raises(ValueError, match="has ended"):
        wire.send("style", torch.ones(4), sender="A")


def test_names_of_a_recording_are_no_formulas_in_the_table_of_guesses(tmp_path: Path):
    with fdgsec.record(tmp_path / "wire") as wire:
        for sender in ("=1+1", "@SUM(A1)", 'a, "b"'):
            for _ in range(2):
                wire.send("style", torch.rand(8), sender=sender)

    fdgsec.attack_vectors(tmp_path / "wire", attacks=["linkage"], out=tmp_path / "out")

    lines = (tmp_path / "out" / "guesses.csv").read_text().splitlines()
    cells = [cell for line in csv.reader(lines) for cell in line]
    assert not any(cell.startswith(("=", "@")) for cell in cells)
    assert {"'=1+1", "'@SUM(A1)", 'a, "b"'} <= set(cells)


@pytest.mark.medium
def test_a_loop_that_fails_leaves_what_it_sent_and_says_so(tmp_path: Path):
    def loop() -> None:
        with fdgsec.record(tmp_path / "wire") as wire:
            for client in range(3):
                wire.send("style", torch.rand(8), sender=f"client:{client}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    with pytest.raises(ValueError, match="attack linkage is named twice"):
        fdgsec.attack_run(tmp_path / "wire", attacks=["linkage", "linkage"])

    assert "ended with an error" in str(fdgsec.attack_run(tmp_path / "wire").environment["notes"])


def test_a_recording_that_was_altered_or_has_no_style_is_refused(tmp_path: Path):
    for name, kind in (("styles", "style"), ("updates", "update")):
        with fdgsec.record(tmp_path / name) as wire:
            wire.send(kind, torch.ones(4), sender="A")
    text = (tmp_path / "styles" / "transcript.jsonl").read_text()
    (tmp_path / "styles" / "transcript.jsonl").write_text(text.replace("client:0", "client:1"))

    with pytest.raises(ValueError, match="altered"):
        fdgsec.attack_run(tmp_path / "styles")
    with pytest.raises(ValueError, match="no style that a client sent"):
        fdgsec.attack_run(tmp_path / "updates")
    with pytest.raises(ValueError, match="there is no method"):
        fdgsec.attack_run(tmp_path / "updates", target="fedavg")


def node(folder: Path, *, partition: int, run: int = 7, style: Tensor | None = None, group: str = "3") -> Message:
    """One message of a Flower federation through a client app with the mod."""
    app = ClientApp(mods=[fdgsec.record_mod(folder, kinds={"bn": "style"})])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = torch.rand(8) if style is None else style
        state = {"weight": torch.full((2, 2), float(partition))}
        content = RecordDict({
            "arrays": ArrayRecord(state), "bn": ArrayRecord([own.numpy()]), "metrics": MetricRecord({"loss": 0.5}),
        })  # fmt: skip
        return Message(content, reply_to=message)

    sent = RecordDict({"arrays": ArrayRecord({"weight": torch.zeros(2, 2)}), "config": ConfigRecord({"lr": 0.1})})
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, partition + 1, 1  # as Flower sets them
    message = Message(content=sent, dst_node_id=partition + 1, message_type="train", group_id=group)
    config: dict[str, bool | float | int | str] = {"partition-id": partition, "num-partitions": CLIENTS}
    return app(
        message, Context(run_id=run, node_id=partition + 1, node_config=config, state=RecordDict(), run_config={})
    )


def metrics_through(folder: Path, record: MetricRecord, **kinds: str) -> None:
    """A reply of a client app with the mod that holds one record of metrics, called `told`."""
    app = ClientApp(mods=[fdgsec.record_mod(folder, kinds=kinds)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"told": record}), reply_to=message)

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1  # as Flower sets them
    message = Message(content=RecordDict(), dst_node_id=1, message_type="train", group_id="0")
    app(message, Context(run_id=7, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={}))


def test_a_mod_records_metrics_as_the_kind_that_their_name_is_given(tmp_path: Path):
    for kind, stage in (("style", "share"), ("update", "update"), ("scores", "review")):
        metrics_through(tmp_path / kind, MetricRecord({"a": [1.0, 2.0], "b": [0.5, 0.5]}), told=kind)
        (line,) = (tmp_path / kind / "transcript.jsonl").read_text().splitlines()
        assert json.loads(line)["stage"] == stage


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("nan")]])
def test_a_mod_refuses_metrics_that_are_not_finite_by_their_name(value: Any, tmp_path: Path):
    with pytest.raises(ValueError, match="metric loss of record told is not finite"):
        metrics_through(tmp_path / "wire", MetricRecord({"accuracy": 0.5, "loss": value}))


@pytest.mark.medium
def test_what_a_recording_holds_and_nobody_reads_is_said(images: Tensor, tmp_path: Path):
    with fdgsec.record(tmp_path / "wire") as wire:
        for number in range(6):
            own = rows(images[5 * number : 5 * number + 5].float() / 255)
            wire.send("style", own.mean(0), sender=f"site {number}")
            wire.send("image-styles", own, sender=f"site {number}")
            wire.send("style", own.mean(0), sender=f"site {number}", receiver="a neighbor")

    notes = str(fdgsec.attack_run(tmp_path / "wire", attacks=["linkage"]).environment["notes"])

    assert "12 messages with styles are not read: of another kind, or not from a client to the server" in notes


def test_a_folder_is_recorded_into_by_one_loop_and_has_a_name_for_each_party(tmp_path: Path):
    with fdgsec.record(tmp_path / "wire") as wire:
        for number in range(3):
            wire.send("style", torch.rand(8).numpy(), sender=f"site {number}")
        with pytest.raises(ValueError, match="being recorded into"), fdgsec.record(tmp_path / "wire"):
            pass
    notes = json.loads((tmp_path / "wire" / "recording.json").read_text())
    (tmp_path / "wire" / "SHA256SUMS").unlink()
    (tmp_path / "wire" / "recording.json").write_text(
        json.dumps({**notes, "names": dict.fromkeys(notes["names"], "one")})
    )

    with pytest.raises(ValueError, match="one name for two parties"):
        fdgsec.attack_run(tmp_path / "wire")


@pytest.mark.medium
def test_a_flower_mod_records_what_clients_receive_and_send(tmp_path: Path):
    replies = [node(tmp_path / "wire", partition=number) for number in range(3)]

    lines = [json.loads(line) for line in (tmp_path / "wire" / "transcript.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["sender"], line["kind"]) for line in lines[:4]] == [
        ("model", "server", "ModelState"), ("update", "client:0", "ModelState"), ("share", "client:0", "StyleStatistics"),
        ("review", "client:0", "Scores"),
    ]  # fmt: skip
    assert {line["round"] for line in lines} == {3}
    assert [reply.content["metrics"]["loss"] for reply in replies] == [0.5] * 3
    report = fdgsec.attack_run(tmp_path / "wire")
    assert report["linkage"].status == "done"
    assert "not sealed" in str(report.environment["notes"])


def test_a_flower_mod_refuses_what_is_no_style_and_another_run(tmp_path: Path):
    with pytest.raises(ValueError, match="did you mean 'style'"):
        fdgsec.record_mod(tmp_path / "wire", kinds={"bn": "stile"})
    node(tmp_path / "wire", partition=0)
    with pytest.raises(ValueError, match="not finite"):
        node(tmp_path / "wire", partition=1, style=torch.full((8,), float("nan")))
    with pytest.raises(ValueError, match="of another run"):
        node(tmp_path / "wire", partition=1, run=8)


FLOWER_APP = """
import sys
import numpy as np, torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
import fdgsec

client, server = ClientApp(mods=[fdgsec.record_mod(sys.argv[1])]), ServerApp()

@client.train()
def train(message, context):
    rng = np.random.default_rng(context.node_config["partition-id"])
    style = ArrayRecord([rng.uniform(1, 2, 12) + 0.01 * np.random.default_rng().uniform(size=12)])
    return Message(RecordDict({"arrays": message.content["arrays"], "style": style}), reply_to=message)

@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 4:
        pass
    for number in range(2):
        sent = RecordDict({"arrays": ArrayRecord({"weight": torch.zeros(2, 2)})})
        grid.send_and_receive(
            [Message(sent, dst_node_id=node, message_type="train", group_id=str(number)) for node in nodes]
        )

run_simulation(server, client, num_supernodes=4, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}})
report = fdgsec.attack_run(sys.argv[1])
print(report["linkage"].status, len(report.artifacts), report.unread_kinds)
"""


@pytest.mark.slow  # ray starts
def test_a_foreign_flower_app_is_recorded_by_all_its_processes_and_attacked(tmp_path: Path):
    (tmp_path / "app.py").write_text(FLOWER_APP)

    done = subprocess.run(
        [sys.executable, "app.py", str(tmp_path / "wire")], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "done 8 ['ModelState']", done.stderr[-4000:]
