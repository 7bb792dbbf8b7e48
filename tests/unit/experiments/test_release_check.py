"""An attack whose assumption does not hold for a target is not applicable: it never gives an all-clear."""

from dataclasses import dataclass

import pytest
import torch

import fdgsec
from fdgsec.federation.artifacts import ImageStyles, StyleStatistics
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, GlobalModel, Inbox, State
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fisc import FISC
from fdgsec.nn.styles.image_styles import statistics

READING = ("reidentification", "membership", "differencing", "linkage", "domain-inference", "pool-exposure")


@dataclass(frozen=True, kw_only=True)
class ScaledRows(CCST):
    """CCST's rows, scaled to [0, 1]: they leak as much as before."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        rows = sent["styles"]
        assert isinstance(rows, ImageStyles)
        return {"styles": ImageStyles(mean=rows.mean / rows.mean.max(), std=rows.std / rows.std.max())}, state


@dataclass(frozen=True, kw_only=True)
class RowsOfUnknownOrigin(CCST):
    """CCST's rows, and nothing that says of which images they are."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        return sent, {name: value for name, value in state.items() if name != SHARED_ROWS}


@dataclass(frozen=True, kw_only=True)
class Medians(CCST):
    """Medians over images, sent as if they were pooled styles."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        _, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        mean, std = statistics(self.encoder, client.data).style(unbiased=True)
        return {"style": StyleStatistics(mean=mean.median(0).values.float(), std=std.median(0).values.float())}, state


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (ScaledRows(style="single", encoder="pixels"), "the release 'styles' is not PooledStyles of its images"),
        (RowsOfUnknownOrigin(style="single", encoder="pixels"), "state['shared_rows']"),
        (Medians(encoder="pixels"), "the release 'style' is not PooledStyles of its images"),
    ],
    ids=["scaled rows", "rows of unknown origin", "medians"],
)
def test_a_release_that_is_not_what_attacks_take_it_for_gets_no_verdict(method: CCST, reason: str, own_cache: object):
    report = fdgsec.attack(method, attacks=READING, per_domain=60, image_size=32)

    applied = [found for found in report.attacks if "reads" not in (found.reason or "")[:5]]
    assert applied
    for found in applied:
        assert found.status == "skipped", found.name
        assert (found.reason or "").startswith("not applicable: ") or "asks nothing" in (found.reason or "")
    assert any(reason in (found.reason or "") for found in applied)


@pytest.mark.parametrize(
    "method", [CCST(encoder="pixels"), CCST(style="single", encoder="pixels"), FISC(encoder="pixels")]
)
def test_what_is_released_as_attacks_take_it_is_attacked(method: CCST | FISC, own_cache: object):
    report = fdgsec.attack(method, attacks=("membership", "domain-inference"), per_domain=60, image_size=32)

    assert not [found.name for found in report.attacks if "not applicable" in (found.reason or "")]
