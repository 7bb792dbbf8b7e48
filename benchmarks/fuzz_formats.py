"""What fdgsec reads of others, format by format: valid inputs, their reader, and inputs made from them by damage.

A reader may return or raise an FdgsecError, and nothing else. `tests/fuzz` runs a few inputs of each format in CI,
`benchmarks.fuzz_table` many."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from PIL import Image
from safetensors.torch import save

from benchmarks.fuzz_damage import Draw, any_value, changed, changed_json, damaged
from fdgsec.data.image_sources import ImageFile, decode_image, open_source, text_of
from fdgsec.experiments.attack_vectors.read_candidates import read_candidates
from fdgsec.experiments.attack_vectors.read_vectors import read_vectors
from fdgsec.experiments.flower.jobs import Job, settings_read
from fdgsec.experiments.run_config import RunConfig, attack_settings, defense_of, train_settings
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    HeadGradient,
    ImageStyles,
    ModelState,
    Prototypes,
    Scores,
    StyleBank,
    StyleDistribution,
    StyleStatistics,
    decode,
)
from fdgsec.federation.engines.flower.codec import (
    BODY,
    HEAD,
    Introduction,
    packed_introduction,
    packed_reply,
    packed_request,
    read_introduction,
    read_reply,
    read_request,
)
from fdgsec.federation.engines.state import NEVER, FileStates, StateMark
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Clock, Reply, StepRequest
from fdgsec.federation.wire import GENESIS, SERVER, Message, Transcript, _link
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.checked_files import check_sums, recalled, write_sums
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.untrusted_text import read_json_object

CORPUS = Path(__file__).parents[1] / "tests" / "fuzz" / "corpus"
"""Inputs that once crashed a reader, by format."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format: `valid` inputs, the reader, how to make a hostile one, and how many inputs its table runs."""

    name: str
    valid: Sequence[bytes]
    read: Callable[[bytes], object]
    hostile: Callable[[bytes, Draw], bytes]
    inputs: int = 10_000

    def corpus(self) -> list[Path]:
        """The inputs that once crashed the reader."""
        return sorted((CORPUS / self.name).glob("*"))

    def drawn(self, rng: Draw) -> bytes:
        """Draw a hostile input."""
        return self.hostile(self.valid[int(rng.integers(len(self.valid)))], rng)


ARTIFACTS: Sequence[Artifact] = (
    StyleStatistics(mean=torch.tensor([1.0, -2.0]), std=torch.tensor([3.0, 0.0])),
    StyleDistribution(mean=torch.ones(2), std=torch.ones(2), mean_spread=torch.ones(2), std_spread=torch.zeros(2)),
    ImageStyles(mean=torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), std=torch.ones(3, 4)),
    StyleBank(mean=torch.ones(3, 2), std=torch.ones(3, 2), owner=torch.tensor([0, 0, 1])),
    ModelState(state={"w": torch.ones(2, 2, dtype=torch.bfloat16), "b": torch.zeros(2), "n": torch.tensor(7)}),
    Amplitudes(values=torch.ones(2, 3, 4, 3), owner=torch.tensor([0, 1])),
    Prototypes(features=torch.ones(2, 5), classes=torch.tensor([0, 6])),
    HeadGradient(weight=torch.ones(7, 5), bias=torch.ones(7)),
    Scores(values=torch.tensor([1.0, 2.0], dtype=torch.float64)),
)  # fmt: skip


def changed_tensors(content: bytes, rng: Draw) -> bytes:
    """Change the bytes of a safetensors file, or its header alone with the length that it then has."""
    length = int.from_bytes(content[:8], "little")
    if rng.integers(3) == 0 or not 0 < length < len(content):
        return damaged(content, rng)
    header = content[8 : 8 + length]
    made = changed_json(header, rng) if rng.integers(2) else damaged(header, rng)
    return len(made).to_bytes(8, "little") + made + content[8 + length :]


def _decoded(content: bytes) -> object:
    return decode(content).sha256


def _transcript() -> bytes:
    made = Transcript()
    for number in range(3):
        style = StyleStatistics(mean=torch.full((2,), float(number)), std=torch.ones(2))
        made.append(Message(round=0, stage="share", sender=f"client:{number}", receiver=SERVER, artifact=style))
    return "".join(json.dumps(row.__dict__) + "\n" for row in made.rows).encode()


def changed_rows(content: bytes, rng: Draw) -> bytes:
    """Change the bytes of a transcript, or values of its rows, half of the time with the links that they then have."""
    if rng.integers(3) == 0:
        return damaged(content, rng)
    rows = [json.loads(line) for line in content.splitlines()]
    rows[int(rng.integers(len(rows)))] = changed(rows[int(rng.integers(len(rows)))], rng)
    if rng.integers(2):
        previous = GENESIS
        for row in rows:
            if isinstance(row, dict):
                fields = [row.get(name) for name in ("round", "stage", "sender", "receiver", "kind", "bytes", "sha256")]
                row["link"] = previous = _link(previous, fields)  # type: ignore[arg-type]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


STYLE, STATE = ARTIFACTS[0], ModelState(state={"z": torch.ones(2), "a": torch.zeros(3)})
_USE = Use(mechanism="gaussian", noise=1.5, sensitivity={"zero-out": 0.5}, sampling_rate=0.25, count=3)
_REPLY = Reply(artifacts={"style": STYLE, "model": STATE}, weight=3.0, metrics={"loss": 0.5}, uses={"style": (_USE,)})
_TOLD = Introduction(
    name="client:1", clients=3, training=0, validation=2, classes=("dog", "cat"), fdgsec="1", code_sha256="c",
    torch="2", threads=1, reproducible=True,
)  # fmt: skip
_ASKED = StepRequest(
    clock=Clock(round=3, rounds=8, participants=("client:1", "client:0")), inbox={"bank": STYLE},
    model=GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=STATE),
)  # fmt: skip
_TEXTS = ("introduction", "metrics", "uses", "orders")
"""The fields of a message that hold JSON."""


def _written(record: RecordDict, reader: str) -> bytes:
    """A message as JSON: its fields, and its artifacts in hexadecimal digits."""
    head, body = record[HEAD], record[BODY]
    told = {str(name): value for name, value in head.items()}
    return json.dumps({
        "reader": reader, "head": told, "body": {slot: array.data.hex() for slot, array in body.items()},  # type: ignore[union-attr]
    }).encode()  # fmt: skip


def _messages() -> list[bytes]:
    mark = StateMark(version=4, sha256="ab" * 32)
    request = packed_request("fit", _ASKED, settings="{}", known=NEVER, model=STATE.encode(), held="")
    return [
        _written(packed_reply(_REPLY, mark), "reply"),
        _written(packed_introduction(_TOLD), "introduction"),
        _written(request, "request"),
    ]


def changed_message(content: bytes, rng: Draw) -> bytes:
    """Change a field of a message, the JSON in it, or the bytes of an artifact."""
    told = json.loads(content)
    slots, kind = sorted(told["body"]), int(rng.integers(3))
    if kind == 0 and slots:
        slot = slots[int(rng.integers(len(slots)))]
        told["body"][slot] = changed_tensors(bytes.fromhex(told["body"][slot]), rng).hex()
    elif kind == 1:
        name = [name for name in _TEXTS if name in told["head"]][-1]
        made = changed_json(told["head"][name].encode(), rng)
        told["head"][name] = made.decode(errors="replace")
    else:
        told["head"] = {**told["head"], sorted(told["head"])[int(rng.integers(len(told["head"])))]: any_value(rng)}
    return json.dumps(told).encode()


def _message(content: bytes) -> object:
    told = json.loads(content)
    try:
        arrays = {
            slot: Array(dtype="uint8", shape=(len(data) // 2,), stype="fdgsec.artifact", data=bytes.fromhex(data))
            for slot, data in told["body"].items()
        }
        record = RecordDict({HEAD: ConfigRecord(told["head"]), BODY: ArrayRecord(arrays)})
    except (TypeError, ValueError) as error:  # Flower itself carries no such value
        raise UsageError("not a message of Flower") from error
    readers: Mapping[str, Callable[[RecordDict], object]] = {
        "reply": read_reply, "introduction": read_introduction, "request": read_request,
    }  # fmt: skip
    return readers[told["reader"]](record)


def _settings() -> list[bytes]:
    plain = RunConfig(method="ccst", rounds=2, options={"k": 3}, defenses=(defense_of("style-noise:p=0.1"),))
    return [Job(config=plain, purpose="train", clients=3).settings().encode()]


def _told(content: bytes) -> object:
    purpose, config = settings_read(content.decode(errors="surrogateescape"))
    return purpose, config.sha256


DEFENSES = (
    "dp-sgd:epsilon=8,max_grad_norm=0.5", "dp-fedavg:epsilon=4,clip=0.1,trust=server", "guards:norm=3,center=median",
    "k-anonymous:k=5", "private-scores:epsilon=2", "private-styles:epsilon=8,clip=auto", "quantize:bits=8",
    "secure-aggregation", "shuffle", "style-noise:p=0.1,scale=0.05",
)  # fmt: skip
ASSIGNMENTS = (
    "method.k=3", "rounds=5", "with.p=0.5", "attacks.membership.sizes=[20]", "method.plan.epochs=2", "clients=3",
    "defenses=['shuffle']", "seed=4", "delta=1e-6", "run.image_size=32",
)  # fmt: skip


def _defense(content: bytes) -> object:
    return defense_of(content.decode(errors="surrogateescape"))


def _assignment(content: bytes) -> object:
    text = content.decode(errors="surrogateescape")
    return (
        train_settings("ccst", {"local": "mixstyle"}, assignments=[text]).sha256,
        attack_settings("ccst-overall", {}, assignments=[text]).sha256,
    )


PRESET = b"""[method]
k = 3
style = "overall"
[method.plan]
epochs = 2
learning_rate = 1e-3
[run]
rounds = 4
clients = 3
defenses = ["style-noise:p=0.1,scale=0.05"]
target_domain = "sketch"
[attacks.membership]
sizes = [20, 40]
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder in which inputs are written for readers of files."""

    folder: Path

    def file(self, name: str, content: bytes) -> Path:
        """Write one file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def transcript(self, content: bytes) -> object:
        """Read a transcript whose payloads are missing."""
        self.file("run/transcript.jsonl", content)
        return Transcript.load(self.folder / "run").sha256

    def preset(self, content: bytes) -> object:
        """Read a preset and resolve it."""
        return train_settings("ccst", {}, preset=str(self.file("preset.toml", content))).sha256

    def npy(self, content: bytes) -> object:
        """Read vectors as .npy."""
        return read_vectors(self.file("vectors.npy", content))

    def csv(self, content: bytes) -> object:
        """Read vectors as .csv."""
        return read_vectors(self.file("vectors.csv", content))

    def artifact(self, content: bytes) -> object:
        """Read vectors as an artifact, image by image and client by client."""
        path = self.file("vectors.safetensors", content)
        return [read_vectors(path), _outcome(partial(read_vectors, path, rows="clients"))]

    def owners(self, content: bytes) -> object:
        """Read the truth about candidates."""
        table = self.folder / "candidates.csv"
        if not table.exists():
            self.file(table.name, b"1,2\n3,4\n5,6\n")
        return read_candidates(table, self.file("owners.csv", content))

    def archive(self, content: bytes) -> object:
        """Read every member of a zip archive, as text and as an image."""
        found = []
        with open_source(self.file("data.zip", content)) as source:
            for name in [*source.files][:5]:
                image = ImageFile(path=name, id=name, domain=0, label=0, size=0)
                found.append(_outcome(partial(text_of, source, name)))
                found.append(_outcome(partial(decode_image, source, image, 8)))
        return found

    def state(self, content: bytes) -> object:
        """Read a client's state: an index, a line break, and the file that it names."""
        index, _, file = content.partition(b"\n")
        self.file("state/client-0.json", index)
        self.file("state/client-0.1.safetensors", file)
        return FileStates(folder=self.folder / "state").read("client:0")

    def run(self, content: bytes) -> object:
        """Read the settings of a run, under the hashes that they have."""
        self.file("finished/config.json", content)
        write_sums(self.folder / "finished")
        check_sums(self.folder / "finished")
        return RunConfig.of(read_json_object(self.folder / "finished" / "config.json"), where="config.json").sha256

    def sums(self, content: bytes) -> object:
        """Read the hashes of a run."""
        self.file("hashed/SHA256SUMS", content)
        return check_sums(self.folder / "hashed")

    def cached(self, content: bytes) -> object:
        """Read a cached file, which no damage may give back."""
        return recalled(self.file("cache/entry", content), key="", read=lambda body: body)


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except FdgsecError as error:
        return error


def _npy() -> list[bytes]:
    found = []
    for dtype in ("<f4", "<f8", "<i8"):
        buffer = io.BytesIO()
        np.save(buffer, np.arange(1, 25).reshape(4, 6).astype(dtype))
        found.append(buffer.getvalue())
    return found


def changed_state(content: bytes, rng: Draw) -> bytes:
    """Change a client's state, two times of three under the hash that it then has."""
    if rng.integers(3) == 0:
        return damaged(content, rng)
    index, _, file = content.partition(b"\n")
    made = changed_tensors(file, rng)
    return json.dumps({**json.loads(index), "sha256": hashlib.sha256(made).hexdigest()}).encode() + b"\n" + made


def _zip() -> list[bytes]:
    found = []
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as archive:
            for form in ("PNG", "JPEG", "GIF", "TIFF"):
                image = io.BytesIO()
                Image.fromarray(pixels).save(image, format=form)
                archive.writestr(f"a/{form}.{form.lower()}", image.getvalue())
        found.append(buffer.getvalue())
    return found


def _state() -> list[bytes]:
    file = save({"rows": torch.arange(6).reshape(2, 3), "style": torch.ones(4)})
    return [json.dumps({"version": 1, "sha256": hashlib.sha256(file).hexdigest()}).encode() + b"\n" + file]


def formats(folder: Path) -> Sequence[Format]:
    """All formats; readers of files write into `folder`."""
    place = Place(folder=folder)
    config = json.dumps(RunConfig(method="ccst", options={"k": 3}).document(), default=str).encode()
    artifacts, sent = [one.encode() for one in ARTIFACTS], [ARTIFACTS[n].encode() for n in (0, 2, 3, 5)]
    table = b"mean0,mean1,std0,std1\n1,2,3,4\n-1,2.5,1e3,0\n"
    names = b"".join(f"{'ab' * 32}  {name}\n".encode() for name in ("config.json", "payloads/x.safetensors"))
    return (
        Format(name="artifact", valid=artifacts, read=_decoded, hostile=changed_tensors, inputs=100_000),
        Format(name="transcript", valid=[_transcript()], read=place.transcript, hostile=changed_rows),
        Format(name="preset", valid=[PRESET], read=place.preset, hostile=damaged),
        Format(name="vectors-npy", valid=_npy(), read=place.npy, hostile=damaged),
        Format(name="vectors-csv", valid=[table], read=place.csv, hostile=damaged),
        Format(name="vectors-artifact", valid=sent, read=place.artifact, hostile=changed_tensors),
        Format(name="candidates-truth", valid=[b"client\n1\n0\n2\n"], read=place.owners, hostile=damaged),
        Format(name="flower-message", valid=_messages(), read=_message, hostile=changed_message, inputs=100_000),
        Format(name="server-settings", valid=_settings(), read=_told, hostile=changed_json),
        Format(name="defense-option", valid=[one.encode() for one in DEFENSES], read=_defense, hostile=damaged),
        Format(name="set-option", valid=[one.encode() for one in ASSIGNMENTS], read=_assignment, hostile=damaged),
        Format(name="zip-member", valid=_zip(), read=place.archive, hostile=damaged),
        Format(name="client-state", valid=_state(), read=place.state, hostile=changed_state),
        Format(name="run-settings", valid=[config], read=place.run, hostile=changed_json),
        Format(name="run-hashes", valid=[names], read=place.sums, hostile=damaged),
        Format(name="cached-file", valid=[b"content" * 20], read=place.cached, hostile=damaged),
    )
