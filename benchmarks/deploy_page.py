"""Test that docs/deploy.md works as printed: `sudo python -m benchmarks.deploy_page`.

Three network namespaces on one bridge stand for the three machines: each has its own folder, its own address and no
other route. The page's commands are parsed from the page and run where it says. Images are procedural, in the layout
that the page names, or those of --data; the auditor has copies of all. Exits with 0 where every command does, keys and
certificates travel as files only, no process remains, and the audit identifies what is behind every release. Needs
Linux, root and iproute2."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from PIL import Image

from fdgsec.data.catalog import DATASETS, load_dataset
from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes

PAGE = Path(__file__).parents[1] / "docs" / "deploy.md"
MACHINES = {"hub": "10.77.0.1", "north": "10.77.0.2", "south": "10.77.0.3"}
HOLDS = {"hub": "sketch", "north": "photo", "south": "cartoon"}
BRIDGE = "fdgsec0"


def commands(page: str) -> list[str]:
    """The page's commands in order: serve, new key, join, train, attack. Raises ValueError for another page."""
    section = page[page.index("## Three machines") : page.index("## Who must trust whom")]
    found = [block.strip() for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)]
    verbs = [command.split()[1] for command in found]
    if verbs != ["serve", "join", "join", "train", "attack"]:
        raise ValueError(f"the page's commands are {', '.join(verbs)}; this follows serve, join, join, train, attack.")
    return found


@contextmanager
def network() -> Iterator[None]:
    """Three namespaces on an isolated bridge, removed at the end."""
    ip("link", "add", BRIDGE, "type", "bridge")
    try:
        ip("link", "set", BRIDGE, "up")
        for machine, address in MACHINES.items():
            ip("netns", "add", machine)
            ip("link", "add", f"v-{machine}", "type", "veth", "peer", "name", "eth0", "netns", machine)
            ip("link", "set", f"v-{machine}", "master", BRIDGE, "up")
            ip("-n", machine, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", machine, "link", "set", "eth0", "up")
            ip("-n", machine, "link", "set", "lo", "up")
        yield
    finally:
        for machine in MACHINES:
            subprocess.run(["ip", "netns", "delete", machine], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)


def ip(*arguments: str) -> str:
    """Call iproute2. Raises CalledProcessError where it fails."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def type_in(command: str, machine: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command on one machine, isolated from this process's folder, data and cache."""
    print(f"{machine}$ {command}", flush=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FDGSEC_")}
    path = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
    environment = {**kept, "PATH": path, "FDGSEC_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    log = (folder / f"{command.split()[1]}.log").open("a")
    return subprocess.Popen(
        ["ip", "netns", "exec", machine, "bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str], machine: str, folder: Path, *, within: float = 900) -> None:
    """Wait for a command. Raises SystemExit with the end of its log where it failed."""
    code = process.wait(timeout=within)
    if code:
        logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        raise SystemExit(f"{machine}: exit code {code}\n{logs[-1].read_text()[-2000:]}")


@contextmanager
def interrupted(process: subprocess.Popen[str], machine: str) -> Iterator[None]:
    """Run a command in the background, and end it as a user would."""
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(timeout=60)
        print(f"{machine}: interrupted, exit code {code}", flush=True)


def appears(path: Path, within: float = 120) -> Path:
    """Wait for a file. Raises SystemExit where it does not appear."""
    ends = time.monotonic() + within
    while not path.exists():
        if time.monotonic() > ends:
            raise SystemExit(f"{path.name} did not appear within {within:g} s.")
        time.sleep(0.2)
    return path


def grow(root: Path, images: DomainDataset, domains: Sequence[str], classes: Sequence[str]) -> None:
    """Write images as PNG into `root/PACS/<domain>/<class>/`."""
    for index, (name, pixels) in enumerate(zip(images.ids, images.pixels(), strict=True)):
        domain = str(images.domain_names[int(images.domains[index])])
        if domain in domains:
            path = root / "PACS" / domain / classes[int(images.labels[index])] / f"{name.split('/')[-1]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)


def follow(root: Path, images: DomainDataset) -> dict[str, object]:
    """Run the page's commands, copy the files that it says to copy, and return what the audit found."""
    serve, key, join, train, attack = commands(PAGE.read_text())
    files = DATASETS["pacs"].files
    assert files is not None
    for machine, domain in HOLDS.items():
        grow(root / machine / "data", images, [domain], files.classes)
    grow(root / "auditor", images, list(HOLDS.values()), files.classes)
    with ExitStack() as stack:
        stack.enter_context(interrupted(type_in(serve, "hub", root / "hub"), "hub"))
        certificate = appears(root / "hub" / "federation" / "ca.crt")
        appears(root / "hub" / "federation" / "nodes")
        for number, machine in enumerate(("north", "south")):
            folder = root / machine
            shutil.copy(certificate, folder / "ca.crt")
            finished(type_in(key.split("#")[0].strip().replace("north", machine), machine, folder), machine, folder)
            shutil.copy(folder / f"{machine}.pub", root / "hub" / "federation" / "nodes")
            typed = join.replace("--key north", f"--key {machine}").replace("--partition 0", f"--partition {number}")
            stack.enter_context(interrupted(type_in(typed, machine, folder), machine))
        finished(type_in(train, "hub", root / "hub"), "hub", root / "hub")
    left = {machine: ip("netns", "pids", machine).split() for machine in MACHINES}
    typed = attack.replace("/where/all/images/are", str(root / "auditor"))
    finished(type_in(typed, "hub", root / "hub"), "auditor", root / "hub")
    report = json.loads((root / "hub" / "runs" / "audit" / "report.json").read_text())
    federation = json.loads((root / "hub" / "runs" / "first" / "federation.json").read_text())
    return {
        "clients": sorted(federation["clients"]), "transcript_sha256": report["transcript_sha256"],
        "attacks": {each["name"]: each["status"] for each in report["attacks"]},
        "still_running": {machine: len(found) for machine, found in left.items()},
    }  # fmt: skip


def main() -> int:
    """Follow the page and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where PACS lies; procedural images without it")
    parser.add_argument("--per-class", type=int, default=40)
    given = parser.parse_args()
    if sys.platform != "linux" or os.geteuid() or shutil.which("ip") is None:
        raise SystemExit("network namespaces need Linux, root and iproute2.")
    if given.data is None:
        images = shapes(image_size=64, per_domain=7 * given.per_class)
    else:
        images = load_dataset("pacs", data_root=given.data, image_size=128, per_class=given.per_class)
    with tempfile.TemporaryDirectory(prefix="fdgsec-machines-") as name, network():
        found = follow(Path(name), images)
    print(json.dumps(found, indent=1))
    ran = "ran" in json.dumps(found["attacks"]) and not any(found["still_running"].values())  # type: ignore[attr-defined]
    return 0 if ran else 1


if __name__ == "__main__":
    raise SystemExit(main())
