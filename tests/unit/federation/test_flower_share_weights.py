"""What a node shares does not tell how many images it holds: its weight is 1, whatever the partition."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Context, Message

from fdgsec.experiments.flower import apps
from fdgsec.experiments.flower.jobs import Job
from fdgsec.experiments.run_config import resolve_settings
from fdgsec.federation.engines.flower.codec import packed_request, read_reply
from fdgsec.federation.engines.flower.handler import Member, answer
from fdgsec.federation.engines.state import NEVER
from fdgsec.federation.method import Clock, Reply, StepRequest
from tests.support.paper_grid import PaperGrid


def shared(folder: Path, images: int | None, *, defenses: tuple[str, ...] = ()) -> tuple[Reply, bytes]:
    """The reply of node 102 to `share`, and the message's fields, where it keeps its first `images` (None: all)."""
    small = {"dataset": "shapes", "rounds": 0, "per_domain": 24, "image_size": 32, "defenses": defenses}
    config = resolve_settings(small, preset=None, defaults={"method": "ccst"})
    job = Job(config=config, purpose="train", clients=3).settings()
    clock = Clock(round=0, rounds=0, participants=("client:0", "client:1", "client:2"))
    request = StepRequest(clock=clock, model=None, inbox={})
    content = packed_request("share", request, settings=job, known=NEVER, model=None, held="")

    def workplace(settings: str, context: Context) -> Member:
        member = apps.member_of(settings, context)
        kept = member.client.data if images is None else member.client.data.subset(torch.arange(images))
        return replace(member, client=replace(member.client, data=kept))

    context = PaperGrid.of(folder, 3).contexts[102]
    asked = Message(content=content, dst_node_id=102, message_type="query.fdgsec")
    answered = answer(asked, context, workplace).content
    fields = {name: value for name, value in answered["fdgsec"].items() if name != "state_sha256"}  # type: ignore[union-attr]
    return read_reply(answered)[0], repr(sorted(fields.items())).encode()


@pytest.mark.parametrize("defenses", [(), ("style-noise:p=0.1,scale=0.5",)])
def test_a_node_says_nothing_of_its_size_with_what_it_shares(defenses: tuple[str, ...], tmp_path: Path):
    few, whole = (shared(tmp_path / str(images), images, defenses=defenses) for images in (5, None))

    assert few[0].artifacts.keys() == whole[0].artifacts.keys()
    assert (few[0].weight, whole[0].weight) == (1.0, 1.0)
    assert few[1] == whole[1]  # the fields beside the style are the same, byte for byte
