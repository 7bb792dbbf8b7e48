"""Who takes part in a run: nodes that lie are refused alone, and a key stays the client as which it was admitted."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fdgsec.experiments.flower.jobs import Job
from fdgsec.experiments.run_config import resolve_settings
from fdgsec.federation.engines.flower.admission import Applicant, Assembly, Terms, admitted, assemble
from fdgsec.federation.engines.flower.certificates import create_node_key, public_key, public_key_line
from fdgsec.federation.engines.flower.codec import Introduction, WireFormatError, read_introduction
from fdgsec.federation.engines.flower.grid import POLL
from fdgsec.federation.round_loop import ClientFailedError
from fdgsec.federation.run_folder import code_sha256
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.version import __version__
from tests.support.paper_grid import PaperGrid

TERMS = Terms(clients=3, fdgsec="1.0", code_sha256="c" * 64)
TOLD = Introduction(
    name="client:0", clients=3, training=10, validation=1, classes=("cat", "dog"), fdgsec="1.0", code_sha256="c" * 64,
    torch="2", threads=1, reproducible=False,
)  # fmt: skip


def applicant(number: int, told: Introduction | str | None = None, **given: str) -> Applicant:
    """Node 100 + `number`, registered in this order; without more an honest one."""
    said = replace(TOLD, name=f"client:{number}") if told is None else told
    return Applicant(**{"node": 100 + number, "key": "", "registered": f"0{number}", "told": said, **given})  # type: ignore[arg-type]


HONEST = [applicant(number) for number in range(3)]


def names(assembly: Assembly) -> dict[int, str]:
    return {node: told.name for node, told in assembly.nodes.items()}


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({}, "it says that it is client:0, as another node does"),
        ({"name": "client:3"}, "it says that it is client:3; this run has client:0 to client:2"),
        ({"name": "server"}, "it says that it is server; this run has client:0 to client:2"),
        ({"name": "client:00"}, "it says that it is client:00"),
        ({"clients": 2}, "it says that it is one of 2 clients; this run has 3"),
        ({"fdgsec": "0.9"}, "it runs fdgsec 0.9 .* install the same version everywhere"),
        ({"code_sha256": "f" * 64}, "it runs fdgsec 1.0 .code ffffffffffff"),
        ({"name": "client:2", "classes": ("x",)}, "it has the classes x; most clients have cat, dog"),
        ("the node's own words", "did not introduce itself: the node's own words"),
    ],
)
def test_a_node_that_lies_is_refused_alone(lie: dict[str, object] | str, reason: str):
    told = lie if isinstance(lie, str) else replace(TOLD, **lie)  # type: ignore[arg-type]
    found = admitted([*HONEST, applicant(3, told)], TERMS)

    assert names(found) == {100: "client:0", 101: "client:1", 102: "client:2"}
    assert len(found.refused) == 1
    with pytest.raises(ValueError, match=f"^node 103 .*{reason}"):
        raise ValueError(found.refused[0])


def test_of_two_nodes_that_claim_a_client_the_one_registered_first_is_admitted():
    early = applicant(3, TOLD, registered="")

    assert names(admitted([*HONEST, early], TERMS)) == {103: "client:0", 101: "client:1", 102: "client:2"}


def test_many_nodes_that_claim_one_client_do_not_outvote_the_others_on_the_classes():
    many = [applicant(number, replace(TOLD, classes=("x",)), registered="9") for number in range(3, 9)]

    assert names(admitted([*HONEST, *many], TERMS)) == {100: "client:0", 101: "client:1", 102: "client:2"}


def test_a_client_whose_first_claimant_has_other_classes_goes_to_the_next():
    early = applicant(3, replace(TOLD, classes=("x",)), registered="")

    assert names(admitted([*HONEST, early], TERMS)) == {100: "client:0", 101: "client:1", 102: "client:2"}


def test_a_client_belongs_to_the_key_that_is_bound_to_it_whoever_is_registered_first(tmp_path: Path):
    terms = replace(TERMS, bindings=tmp_path)
    keys = [create_node_key(tmp_path / "keys" / str(number)) for number in range(2)]
    terms.bind("client:0", keys[0])
    thief, owner = applicant(0, TOLD, key=keys[1]), applicant(1, TOLD, key=keys[0])
    moved = applicant(2, replace(TOLD, name="client:1"), key=keys[0])

    found = admitted([thief, owner], terms)
    assert names(found) == {101: "client:0"}
    assert "it says that it is client:0, to which another key is bound" in found.refused[0]
    assert "its key is bound to client:0" in admitted([moved], terms).refused[0]


def test_bindings_are_files_that_an_operator_writes_reads_and_deletes(tmp_path: Path):
    terms = replace(TERMS, bindings=tmp_path / "clients")
    key, other = create_node_key(tmp_path / "north"), create_node_key(tmp_path / "south")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "client-1.pub").write_text(f"{key} of the ward in the north\n")

    assert terms.bound() == {"client:1": key}
    terms.bind("client:1", key)
    with pytest.raises(ClientFailedError, match="bound client:1 to another key"):
        terms.bind("client:1", other)
    (tmp_path / "clients" / "client-1.pub").unlink()
    terms.bind("client:1", other)
    assert terms.bound() == {"client:1": other}
    (tmp_path / "clients" / "client-2.pub").write_text("no key")
    with pytest.raises(UsageError, match=r"client-2.pub is not a node's public key"):
        terms.bound()


def introduced(grid: PaperGrid, bindings: Path, *, least: int = 1) -> Assembly:
    """Assemble the grid's nodes, which are of the installed fdgsec."""
    config = resolve_settings({"per_domain": 24, "image_size": 32}, preset=None, defaults={"method": "fedavg"})
    terms = Terms(clients=3, fdgsec=__version__, code_sha256=code_sha256(), bindings=bindings)
    settings = Job(config=config, purpose="train", clients=3).settings()
    return assemble(grid.grid, settings=settings, terms=terms, least=least, wait=POLL / 2)


@pytest.mark.medium
def test_keys_are_bound_at_the_first_admission_and_a_restart_changes_nothing(tmp_path: Path):
    clients, grid = tmp_path / "clients", PaperGrid.of(tmp_path, 3)
    grid.keys = {node: pem(tmp_path / "keys" / str(node)) for node in grid.nodes}
    assert names(introduced(grid, clients)) == {101: "client:0", 102: "client:1", 103: "client:2"}

    grid.nodes = [201, 102, 103]  # after a restart of the server the same key has another number
    grid.keys[201] = grid.keys[101]
    grid.contexts[201] = grid.contexts[101]
    grid.contexts[103].node_config = grid.contexts[101].node_config  # client:2 now claims to be client:0

    again = introduced(grid, clients)
    assert names(again) == {201: "client:0", 102: "client:1"}
    assert "its key is bound to client:2" in again.refused[0]
    assert public_key(clients / "client-0.pub") == public_key_line(grid.keys[201])


@pytest.mark.medium
def test_too_few_clients_end_the_run_with_the_reasons_and_bind_nothing(tmp_path: Path):
    grid = PaperGrid.of(tmp_path, 3)
    grid.contexts[103].node_config["partition-id"] = 0

    with pytest.raises(ClientFailedError, match=r"2 of 3 clients were admitted .* client:0, as another node does"):
        introduced(grid, tmp_path / "clients", least=3)
    assert not (tmp_path / "clients").exists()


def pem(path: Path) -> bytes:
    """A new node's public key as Flower's server has it."""
    create_node_key(path)
    loaded = serialization.load_ssh_public_key(path.with_name(path.name + ".pub").read_bytes())
    return loaded.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "told",
    [
        {"name": ["client:0"]}, {"name": "client:0\x1b[2J"}, {"classes": [1]}, {"classes": 3}, {"training": True},
        {"training": -1}, {"threads": "1"}, {"reproducible": 0}, {"clients": 1e3}, {"fdgsec": None}, {"more": 1},
        "[" * 100_000, "[]", "null",
    ],
    ids=lambda told: str(told)[:30],
)  # fmt: skip
def test_what_is_no_introduction_is_refused_as_one(told: dict[str, object] | str):
    text = told if isinstance(told, str) else json.dumps({**asdict(TOLD), **told})
    head = ConfigRecord({"introduction": text, "failure": ""})

    with pytest.raises(WireFormatError):
        read_introduction(RecordDict({"fdgsec": head, "artifacts": ArrayRecord()}))


def test_a_nodes_own_words_reach_the_terminal_as_one_short_line():
    head = ConfigRecord({"failure": "gone\n\x1b[31mfdgsec: all is well" + "." * 5000})

    with pytest.raises(WireFormatError) as caught:
        read_introduction(RecordDict({"fdgsec": head}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) == 500
