"""Default guards against clients whose answers lack a part, or have one too many."""

import pytest
import torch

from fdgsec.defenses.guards import Guards
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.wire import Receipt, Upload
from fdgsec.privacy.ledger import Ledger
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.secret_streams import simulated_stream

STYLE = StyleStatistics(mean=torch.zeros(2), std=torch.ones(2))


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        ([{"a", "b"}, {"a"}, {"a", "b"}], "client:1 did not send 'b' .round 0, share., unlike 2 of 3 clients"),
        ([{"a"}, {"a", "b"}, {"a"}], "client:1 sent 'b' .round 0, share., unlike 2 of 3 clients"),
        ([set(), {"a"}], "different things .round 0, share.: client:0: nothing; client:1: a"),
    ],
)
def test_who_leaves_something_out_is_named(slots: list[set[str]], said: str):
    uploads = [
        Upload(round=0, stage="share", sender=f"client:{number}", artifacts=dict.fromkeys(sorted(names), STYLE))
        for number, names in enumerate(slots)
    ]
    receipt = Receipt(uploads=uploads, model=None, rounds=1, rng=simulated_stream(0), ledger=Ledger())

    with pytest.raises(ArtifactError, match=said):
        Guards().on_received(receipt)
    assert [set(upload.artifacts) for upload in Guards(schema=False).on_received(receipt)] == slots
