"""Audits of a whole style release, sound and broken: clip, mean and noise are carried out on vectors, run by run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fdgsec.privacy.epsilon_bounds import AuditResult, audit_runs, exceeds
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.privacy.one_run_bounds import audit_one_run
from fdgsec.runtime.random_streams import child, stream

pytestmark = pytest.mark.slow

DELTA, CLIP, REPEATS = 1e-5, 100.0, 40
RECORDS, COORDINATES, RUNS = 67, 64, 2000  # multi-run: a client of PACS size, runs of each kind
CANARIES, GUESSES = 1024, 102  # one run


@dataclass(frozen=True, kw_only=True)
class Release:
    """The mean of clipped records about a public center, with Gaussian noise for `epsilon`; the faults are options."""

    epsilon: float
    noise_divided_by: float = 1.0
    clips: bool = True
    reuses_noise: bool = False

    def clipped(self, records: Tensor, center: Tensor) -> Tensor:
        moved = records - center
        norms = moved.norm(dim=-1, keepdim=True)
        return center + moved * (CLIP / norms).clamp(max=1) if self.clips else records

    def runs(self, records: Tensor, center: Tensor, *, count: int, rng: torch.Generator) -> Tensor:
        """Release the mean of the same `records` (n, D) `count` times; (count, D)."""
        sensitivity = CLIP / len(records)  # zero-out: a record gives way to the center
        sd = noise_multiplier(self.epsilon, DELTA) * sensitivity / self.noise_divided_by
        drawn = torch.randn(1 if self.reuses_noise else count, len(center), generator=rng, dtype=torch.float64)
        return self.clipped(records, center).mean(0) + sd * drawn.expand(count, -1)


Audit = Callable[[Release, float, torch.Generator], AuditResult]
BROKEN = {
    "noise divided by ten": (Release(epsilon=1.0, noise_divided_by=10), CLIP),
    "clip omitted, canary of ten times its norm": (Release(epsilon=1.0, clips=False), 10 * CLIP),
    "noise reused": (Release(epsilon=1.0, reuses_noise=True), CLIP),
}


def audit_by_runs(release: Release, norm: float, secret: torch.Generator) -> AuditResult:
    """Release with and without one canary, 2,000 times each with one noise stream, and project on the canary."""
    center = torch.randn(COORDINATES, generator=child(secret, "center"), dtype=torch.float64)
    honest = center + 30 * torch.randn(RECORDS, COORDINATES, generator=child(secret, "records"), dtype=torch.float64)
    direction = torch.nn.functional.normalize(
        torch.randn(COORDINATES, generator=child(secret, "canary"), dtype=torch.float64), dim=0
    )
    without = torch.cat([honest, center.unsqueeze(0)])
    with_canary = torch.cat([honest, (center + norm * direction).unsqueeze(0)])
    names = ("noise", "noise") if release.reuses_noise else ("absent", "present")
    absent = release.runs(without, center, count=RUNS, rng=child(secret, names[0])) @ direction
    present = release.runs(with_canary, center, count=RUNS, rng=child(secret, names[1])) @ direction
    return audit_runs(absent, present, claimed_epsilon=release.epsilon, delta=DELTA, unit="record")


def audit_by_one_run(release: Release, norm: float, secret: torch.Generator) -> AuditResult:
    """Release once, with a coin for each of 1,024 orthonormal canaries; a row that is out lies at the center."""
    return _one_run(release, norm, secret, minus_reference=False)


def audit_by_a_pair(release: Release, norm: float, secret: torch.Generator) -> AuditResult:
    """Take from that release a second one without canaries: the same guesses, were the noise not the same twice."""
    return _one_run(release, norm, secret, minus_reference=True)


def _one_run(release: Release, norm: float, secret: torch.Generator, *, minus_reference: bool) -> AuditResult:
    center = torch.zeros(CANARIES, dtype=torch.float64)
    included = torch.rand(CANARIES, generator=child(secret, "coins")) < 0.5
    canaries = norm * torch.eye(CANARIES, dtype=torch.float64)
    names = ("noise", "noise") if release.reuses_noise else ("run", "reference")
    scores = release.runs(canaries * included.unsqueeze(1), center, count=1, rng=child(secret, names[0]))[0]
    if minus_reference:
        nobody = torch.zeros_like(canaries)
        scores = scores - release.runs(nobody, center, count=1, rng=child(secret, names[1]))[0]
    return audit_one_run(scores, included, guesses=GUESSES, claimed_epsilon=release.epsilon, delta=DELTA)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("audit", [audit_by_runs, audit_by_one_run, audit_by_a_pair])
def test_a_sound_release_is_above_its_claim_in_at_most_six_of_forty_repeats(audit: Audit, epsilon: float):
    release = Release(epsilon=epsilon)

    results = [audit(release, CLIP, stream(repeat, "attack", "sound", str(epsilon))) for repeat in range(REPEATS)]

    assert sum(one.exceeded for one in results) <= 6
    assert not exceeds(results, alpha=0.003)


@pytest.mark.parametrize("epsilon", [2.0, 4.0, 8.0])
def test_many_runs_prove_more_than_half_of_a_sound_releases_epsilon(epsilon: float):
    results = [
        audit_by_runs(Release(epsilon=epsilon), CLIP, stream(repeat, "attack", "tight")) for repeat in range(REPEATS)
    ]

    assert sorted(one.lower_bound for one in results)[REPEATS // 2] > epsilon / 2


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("fault", BROKEN)
def test_many_runs_catch_a_broken_release_at_every_claim(fault: str, epsilon: float):
    broken, norm = BROKEN[fault]
    release = replace(broken, epsilon=epsilon)

    results = [audit_by_runs(release, norm, stream(repeat, "attack", fault)) for repeat in range(REPEATS)]

    assert sum(one.exceeded for one in results) >= 0.95 * REPEATS
    assert exceeds(results)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("fault", BROKEN)
def test_one_run_catches_a_broken_release_at_claims_under_its_ceiling(fault: str, epsilon: float):
    broken, norm = BROKEN[fault]
    release = replace(broken, epsilon=epsilon)
    audit = audit_by_a_pair if release.reuses_noise else audit_by_one_run

    results = [audit(release, norm, stream(repeat, "attack", fault)) for repeat in range(REPEATS)]

    assert sum(one.exceeded for one in results) >= 0.95 * REPEATS
    assert exceeds(results)
