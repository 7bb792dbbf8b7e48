"""`fdgsec serve` and `fdgsec join`: wrong input, the folders they make, and the commands they print."""

import shlex
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fdgsec.cli import main
from fdgsec.federation.engines.flower.certificates import create_authority, create_node_key
from fdgsec.federation.engines.flower.foreground_process import alone

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FDGSEC_DATA", raising=False)


def printed(capsys: Capture, *arguments: str) -> list[str]:
    code = main([*arguments])
    told = capsys.readouterr()
    assert (code, told.err) == (0, "")
    return told.out.splitlines()


def refused(capsys: Capture, *arguments: str) -> str:
    code = main([*arguments])
    told = capsys.readouterr()
    assert code == 2
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    return told.err


def words_of(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables that a line of shell sets, and its command."""
    words = shlex.split(line)
    count = next(number for number, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


NODE = ("join", "--server", "127.0.0.1:9191", "--partition", "1", "--of", "3")


def test_serve_makes_its_folder_once_and_keeps_it(capsys: Capture, tmp_path: Path):
    first = printed(capsys, "serve", "--print", "--name", "server.example.org")
    before = {path.name: path.read_bytes() for path in (tmp_path / "fdgsec-federation").glob("*.*")}

    second = printed(capsys, "serve", "--print", "--name", "server.example.org")

    after = {path.name: path.read_bytes() for path in (tmp_path / "fdgsec-federation").glob("*.*")}
    assert first == second
    assert before == after
    assert {"ca.crt", "ca.key", "server.pem", "server.key"} <= before.keys()
    assert (tmp_path / "fdgsec-federation").stat().st_mode & 0o777 == 0o700


def test_serve_prints_flower_s_own_command_with_tls_authentication_and_switches(capsys: Capture, tmp_path: Path):
    create_node_key(tmp_path / "node0")

    server, *notes, key = printed(capsys, "serve", "--print", "--port", "9292", "--register", "node0.pub")

    variables, command = words_of(server)
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert command[0] == "flower-superlink"
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    assert command[command.index("--ssl-ca-certfile") + 1] == str(tmp_path / "fdgsec-federation" / "ca.crt")
    assert [command[command.index(name) + 1] for name in ("--host", "--port")] == ["0.0.0.0", "9292"]
    assert all(line.startswith("# ") for line in notes)
    held = tmp_path / "fdgsec-federation" / "nodes" / "node0.pub"
    assert words_of(key)[1] == ["flwr", "supernode", "register", str(held), "fdgsec"]


def test_only_typed_insecure_serves_without_tls_and_then_at_loopback(capsys: Capture):
    server, *_ = printed(capsys, "serve", "--print", "--insecure")

    command = words_of(server)[1]
    assert "--insecure" in command
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_a_new_name_needs_renew_which_keeps_the_authority_and_the_names(capsys: Capture, tmp_path: Path):
    folder = tmp_path / "fdgsec-federation"
    printed(capsys, "serve", "--print", "--name", "old.example.org")
    authority, certificate = (folder / "ca.crt").read_bytes(), (folder / "server.pem").read_bytes()

    assert "--renew" in refused(capsys, "serve", "--print", "--name", "new.example.org")
    assert (folder / "server.pem").read_bytes() == certificate

    printed(capsys, "serve", "--print", "--name", "new.example.org", "--renew")
    printed(capsys, "serve", "--print", "--name", "new.example.org", "--name", "old.example.org")
    assert (folder / "ca.crt").read_bytes() == authority
    assert (folder / "server.pem").read_bytes() != certificate


def test_allow_takes_every_public_key_of_a_folder_once(capsys: Capture, tmp_path: Path):
    for name in ("a", "b"):
        create_node_key(tmp_path / "keys" / name)
    for _ in range(2):
        printed(capsys, "serve", "--print", "--allow", "keys", "--register", "keys/a.pub")

    assert sorted(path.name for path in (tmp_path / "fdgsec-federation" / "nodes").iterdir()) == ["a.pub", "b.pub"]


def test_a_second_key_of_the_same_name_replaces_nothing(capsys: Capture, tmp_path: Path):
    create_node_key(tmp_path / "here" / "node")
    create_node_key(tmp_path / "there" / "node")
    printed(capsys, "serve", "--print", "--register", "here/node.pub")

    assert "holds another key" in refused(capsys, "serve", "--print", "--register", "there/node.pub")


def test_a_folder_that_is_served_takes_keys_and_nothing_else(capsys: Capture, tmp_path: Path):
    create_node_key(tmp_path / "node")
    printed(capsys, "serve", "--print")
    with alone(tmp_path / "fdgsec-federation" / "serve.lock") as first:
        assert first
        assert "is served already" in refused(capsys, "serve")
        assert "left for the server" in printed(capsys, "serve", "--register", "node.pub")[0]

    assert (tmp_path / "fdgsec-federation" / "nodes" / "node.pub").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--insecure", "--name", "x"), "--insecure"),
        (("--insecure", "--register", "x.pub"), "--insecure"),
        (("--port", "0"), "--port must lie in 1..65535"),
        (("--register", "nowhere.pub"), "nowhere.pub cannot be read: No such file"),
        (("--allow", "."), "holds no public key"),
        (("--name", "a b"), "neither a DNS name nor an address"),
        (("--name", "https://server"), "neither a DNS name nor an address"),
    ],
)
def test_serve_refuses_wrong_input_in_one_line(arguments: tuple[str, ...], words: str, capsys: Capture):
    assert words in refused(capsys, "serve", "--print", *arguments)


def test_join_prints_flower_s_own_command_with_the_node_s_settings(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    create_authority(tmp_path)
    create_node_key(tmp_path / "node")
    monkeypatch.setenv("FDGSEC_DATA", str(tmp_path))

    limits = ("--require-defense", "style-noise:p=0.1,scale=0.05", "--uncovered", "update", "--runs", "2")
    line, *notes = printed(capsys, *NODE, "--ca", "ca.crt", "--key", "node", "--print", *limits)

    command = words_of(line)[1]
    assert command[0] == "flower-supernode"
    assert command[command.index("--root-certificates") + 1] == str(tmp_path / "ca.crt")
    assert command[command.index("--auth-supernode-private-key") + 1] == str(tmp_path / "node")
    state = tmp_path / "fdgsec-node-1"
    assert parse_config_args([command[command.index("--node-config") + 1]]) == {
        "partition-id": 1, "num-partitions": 3, "state": str(state), "secret": str(state / "secret.key"),
        "data-root": str(tmp_path), "require-defenses": '["style-noise:p=0.1,scale=0.05"]',
        "uncovered": '["update"]', "runs": 2,
    }  # fmt: skip
    assert all(note.startswith("# ") for note in notes)


def test_a_node_s_secret_is_drawn_once_and_readable_by_its_owner_alone(capsys: Capture, tmp_path: Path):
    seed = tmp_path / "fdgsec-node-1" / "secret.key"
    printed(capsys, *NODE, "--insecure", "--print")
    drawn = seed.read_text()

    printed(capsys, *NODE, "--insecure", "--print")
    printed(capsys, *NODE, "--insecure", "--print", "--state", "other")

    assert seed.read_text() == drawn
    assert len(bytes.fromhex(drawn)) == 32
    assert seed.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "other" / "secret.key").read_text() != drawn


def test_a_reproducible_node_has_no_secret(capsys: Capture, tmp_path: Path):
    line, *_ = printed(capsys, *NODE, "--insecure", "--reproducible", "--print")

    command = words_of(line)[1]
    assert parse_config_args([command[-1]])["secret"] == "run"
    assert not (tmp_path / "fdgsec-node-1" / "secret.key").exists()


def test_new_key_prints_the_public_key_and_ends(capsys: Capture, tmp_path: Path):
    assert printed(capsys, "join", "--new-key", "node") == (tmp_path / "node.pub").read_text().splitlines()
    assert "not overwritten" in refused(capsys, "join", "--new-key", "node")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--ca"),
        (("--ca", "ca.crt"), "--new-key"),
        (("--insecure", "--ca", "ca.crt"), "--insecure"),
        (("--ca", "nowhere", "--key", "node"), "nowhere cannot be read"),
        (("--ca", "node", "--key", "node"), "node is not a certificate"),
        (("--ca", "ca.crt", "--key", "node.pub"), "not a node's private key"),
        (("--ca", "ca.crt", "--key", "open"), "chmod 600 open"),
        (("--insecure", "--partition", "3"), "0..M-1"),
        (("--insecure", "--partition", "-1"), "0..M-1"),
        (("--insecure", "--server", "nowhere"), "expected HOST:PORT"),
        (("--insecure", "--data-root", "nowhere"), "--data-root nowhere does not exist"),
        (("--insecure", "--own-data"), "--own-data needs --data-root"),
        (("--insecure", "--require-defense", "style-nose:p=1"), "style-noise"),
        (("--insecure", "--uncovered", "shares"), "did you mean 'share'?"),
        (("--insecure", "--runs", "0"), "--runs must be at least 1; got 0"),
        (("--insecure", "--secret", "x", "--reproducible"), "exclude each other"),
        (("--insecure", "--secret", "ca.crt"), "holds no key"),
    ],
)
def test_join_refuses_wrong_input_in_one_line(arguments: tuple[str, ...], words: str, capsys: Capture, tmp_path: Path):
    create_authority(tmp_path)
    create_node_key(tmp_path / "node")
    create_node_key(tmp_path / "open")
    (tmp_path / "open").chmod(0o640)

    assert words in refused(capsys, *NODE, "--print", *arguments)


def test_join_says_what_it_needs(capsys: Capture):
    assert "--server HOST:PORT, --partition N and --of M" in refused(capsys, "join", "--server", "h:1", "--of", "3")


def test_a_state_folder_serves_one_node_at_a_time(capsys: Capture, tmp_path: Path):
    with alone(tmp_path / "fdgsec-node-1" / "join.lock") as first:
        assert first
        assert "each node needs its own" in refused(capsys, *NODE, "--insecure")


def test_a_server_that_is_not_there_ends_join_with_exit_1(capsys: Capture):
    code = main(["join", "--server", "127.0.0.1:1", "--partition", "0", "--of", "1", "--insecure", "--patience", "0"])

    assert code == 1
    assert capsys.readouterr().err == "fdgsec: nobody answers at 127.0.0.1:1: Connection refused.\n"
