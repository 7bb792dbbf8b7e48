"""An attack whose assumption does not hold for a target is not applicable: it never gives an all-clear."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch

import fdgsec
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.statistics.release_precision import rounded
from fdgsec.experiments.attack.release_check import difference
from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleStatistics, renumbered
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, Method, State
from fdgsec.federation.released_statistics import PooledStyles
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fisc import FISC
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream

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


@dataclass(frozen=True, kw_only=True)
class Summed(CCST):
    """A client's part of the average of all clients, which the clock's participants scale."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style, parts = sent["style"].tensors(), len(clock.participants)
        return {"style": StyleStatistics(mean=style["mean"] / parts, std=style["std"] / parts)}, state


@dataclass(frozen=True, kw_only=True)
class FromTwentyFive(CCST):
    """Colors in 0..255 of clients with enough images, and nothing of others."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style = sent["style"].tensors()
        scaled = StyleStatistics(mean=style["mean"] * 255, std=style["std"] * 255)
        return ({} if len(client.data) < 25 else {"style": scaled}), state


@dataclass(frozen=True, kw_only=True)
class OtherUnitsForSome(CCST):
    """Colors in 0..255 of clients of 8 to 15 images, which no client of the run has, but clients of questions do."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style = sent["style"].tensors()
        scaled = StyleStatistics(mean=style["mean"] * 255, std=style["std"] * 255)
        return ({"style": scaled} if 8 <= len(client.data) < 16 else sent), state


@dataclass(frozen=True, kw_only=True)
class Blurred(CCST):
    """Pooled styles with noise of a part of their length, drawn anew, from the client's name, or from its images."""

    drawn_from: Literal["rng", "name", "images"] = "rng"
    level: float = 0.001

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style = sent["style"].tensors()
        drawn = {"rng": rng, "name": stream(0, "world", client.name), "images": stream(0, "world", *client.data.ids)}
        noise = torch.randn(style["mean"].shape, generator=drawn[self.drawn_from])
        noise = noise * style["mean"].norm() / style["mean"].numel() ** 0.5
        return {"style": StyleStatistics(mean=style["mean"] + self.level * noise, std=style["std"])}, state


@dataclass(frozen=True, kw_only=True)
class Hidden(CCST):
    """Pooled styles, moved by 7e-6 of their length along the direction in which the client's images vary least."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style, known = sent["style"], PooledStyles()
        records = known.records(statistics(self.encoder, client.data))
        quietest = torch.linalg.svd(records - records.mean(0)).Vh[-1]
        moved = records.mean(0) + 7e-6 * records.mean(0).norm() * quietest
        return {"style": known.artifact(moved[None], like=style, images=len(client.data))}, state


@dataclass(frozen=True, kw_only=True)
class SummedShort(CCST):
    """Pooled styles whose sums ran in float32."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        total = torch.zeros(())
        for record in PooledStyles().records(statistics(self.encoder, client.data)).float():
            total = total + record
        mean = total[None] / len(client.data)
        return {"style": PooledStyles().artifact(mean, like=sent["style"], images=len(client.data))}, state


@dataclass(frozen=True, kw_only=True)
class WrittenShort(CCST):
    """Pooled styles in half precision."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        return {"style": rounded(sent["style"], "float16")}, state


@dataclass(frozen=True, kw_only=True)
class OfOneVariance(CCST):
    """Pooled styles whose variances divide by the number of pixels less one."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style, pixels = sent["style"].tensors(), len(client.data) * 32 * 32
        return {"style": StyleStatistics(mean=style["mean"], std=style["std"] * (pixels / (pixels - 1)) ** 0.5)}, state


@dataclass(frozen=True, kw_only=True)
class CenteredSpectra(CCST):
    """Spectra of single images with the lowest frequency in the middle."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        spectra = sent["styles"]
        assert isinstance(spectra, Amplitudes)
        return {"styles": replace(spectra, values=torch.fft.fftshift(spectra.values, dim=(2, 3)))}, state


@pytest.mark.medium
def test_exchanges_of_questions_are_compared_too(own_cache: object):
    attacks = (Membership(sizes=(10,), clients=20), Membership(sizes=(20,), clients=10))
    ten, twenty = (
        fdgsec.attack(OtherUnitsForSome(encoder="pixels"), attacks=(attack,), per_domain=300, image_size=32).attacks[0]
        for attack in attacks
    )
    assert ten.status == "skipped"
    assert (ten.reason or "").startswith("not run: the release 'style' is not the pooled style of its images")
    assert twenty.status == "done"


@pytest.mark.medium
def test_spectra_of_single_images_are_compared(own_cache: object):
    centered, plain = (
        fdgsec.attack(
            method(style="single", representation="amplitude"),
            attacks=("reidentification",),
            per_domain=60,
            image_size=32,
        ).attacks[0]
        for method in (CenteredSpectra, CCST)
    )
    assert (centered.reason or "").startswith(
        "not run: the release 'styles' is not the mean amplitude spectrum of its images"
    )
    assert plain.status == "done"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (ScaledRows(style="single", encoder="pixels"), "the release 'styles' is not the pooled style of its images"),
        (RowsOfUnknownOrigin(style="single", encoder="pixels"), "state['shared_rows']"),
        (Medians(encoder="pixels"), "the release 'style' is not the pooled style of its images"),
        (Summed(encoder="pixels"), "the release 'style' is not the pooled style of its images"),
        (FromTwentyFive(encoder="pixels"), "the release 'style' is not the pooled style of its images"),
        (Blurred(encoder="pixels"), "noise that no defense declares"),
        (Blurred(encoder="pixels", drawn_from="name"), "noise that no defense declares"),
        (Blurred(encoder="pixels", drawn_from="images", level=1e-4), "noise that no defense declares"),
        (Hidden(), "in directions in which images hardly vary"),
    ],
    ids=[
        "scaled rows",
        "of unknown origin",
        "medians",
        "parts of a sum",
        "from 25 images",
        "noise",
        "noise by name",
        "noise by images",
        "noise where images hardly vary",
    ],
)
def test_a_release_that_is_not_what_attacks_take_it_for_gets_no_verdict(method: CCST, reason: str, own_cache: object):
    report = fdgsec.attack(method, attacks=READING, per_domain=60, image_size=32)

    applied = [found for found in report.attacks if " sends no " not in (found.reason or "")]
    assert applied
    for found in applied:
        assert found.status == "skipped", found.name
        assert (found.reason or "").startswith(("not applicable: ", "not run: "))
    assert any(reason in (found.reason or "") for found in applied)


@pytest.mark.medium
@pytest.mark.parametrize(
    "method",
    [
        WrittenShort(encoder="pixels"),
        OfOneVariance(encoder="pixels"),
        WrittenShort(),
        OfOneVariance(),
        SummedShort(),
    ],
    ids=lambda method: f"{type(method).__name__} {method.encoder}",
)
def test_what_attacks_account_for_is_no_noise(method: CCST, own_cache: object):
    (result,) = fdgsec.attack(method, attacks=("linkage",), per_domain=60, image_size=32).attacks

    assert result.status == "done", result.reason


@dataclass(frozen=True, kw_only=True)
class ClipsRows:
    """A defense that no attack was told of: it clips every number of a row."""

    most: float = 0.1
    assumptions: Sequence[str] = ("none",)

    def check(self, method: Method) -> None:
        """Works with all."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if not isinstance(outgoing.artifact, ImageStyles):
            return None
        return Protected(artifact=renumbered(outgoing.artifact, lambda name, value: value.clamp(max=self.most)))


@pytest.mark.medium
def test_no_leak_behind_a_defense_that_an_attack_ignores_is_no_evidence_of_protection(own_cache: object):
    report = fdgsec.attack(
        CCST(style="single", encoder="pixels"), attacks=("reidentification", "membership"), per_domain=60,
        image_size=32, defenses=[ClipsRows(most=0.0)],
    )  # fmt: skip

    rows = [row for found in report.attacks for row in found.measurements if row.judged]
    assert rows
    said = "attack not adapted to ClipsRows: no evidence of protection"
    assert {row.verdict for row in rows if not row.leaks} == {said}
    assert any(json.dumps(row.document()).count("not adapted") for row in rows)


@pytest.mark.medium
def test_an_attack_is_believed_behind_a_defense_that_it_accounts_for(own_cache: object):
    report = fdgsec.attack(
        CCST(style="single", encoder="pixels"), attacks=("reidentification",), per_domain=60, image_size=32,
        defenses=["style-noise:p=0.1,scale=500"],
    )  # fmt: skip

    rows = [row for row in report.attacks[0].measurements if row.judged]
    assert all(row.leaks or row.verdict.startswith(("no leak shown", "undecided")) for row in rows)


@pytest.mark.parametrize(
    "method",
    [
        CCST(encoder="pixels"), CCST(style="single", encoder="pixels"), FISC(encoder="pixels"),
        FISC(encoder="pixels", local_clustering=False, sigma="mixture"),
    ],
)  # fmt: skip
@pytest.mark.medium
def test_what_is_released_as_attacks_take_it_is_attacked(method: CCST | FISC, own_cache: object):
    report = fdgsec.attack(method, attacks=("membership", "domain-inference"), per_domain=60, image_size=32)

    assert not [found.name for found in report.attacks if "not applicable" in (found.reason or "")]


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (16 / 15, True), (1.03, False), (1.2, False), (0.9, False)])
def test_variances_may_be_divided_by_one_cell_less_and_by_nothing_else(factor: float, fits: bool):
    rng = stream(0, "world", "cells")
    mean, variance = torch.rand(5, 8, generator=rng), 1 + torch.rand(5, 8, generator=rng)
    records = torch.cat([mean, variance + mean.square()], dim=1).double()
    sent = ImageStyles(mean=mean, std=(factor * variance).sqrt())

    reason = difference("styles", sent, PooledStyles(), records, torch.arange(5), cells=16)

    assert (reason == "") is fits
    assert fits or "of its length away" in reason
