"""What `membership` loses to noise that no defense declares, below what `release_check` refuses.

    FDGSEC_DATA=... python -m benchmarks.undeclared_noise    # minutes on one core

CCST's pooled styles on PACS (encoder `mini`, seed 0, profile quick, sketch unseen) with Gaussian noise of a part of
their length that follows from the names of a client's images, the same each time."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import fdgsec
from fdgsec.experiments.attack.release_check import UNEXPLAINED
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.ccst import CCST
from fdgsec.runtime.random_streams import stream

LEVELS = (0.0, 2e-6, 0.8 * UNEXPLAINED)
"""None, about the most that the check lets pass, and what a check of lengths alone would let pass."""
RESULTS = Path(__file__).parent / "results" / "undeclared-noise.json"


@dataclass(frozen=True, kw_only=True)
class Blurred(CCST):
    """CCST with noise of the part `level` of its pooled styles' length."""

    level: float = 0.0

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Share CCST's style, with noise."""
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style = sent["style"].tensors()
        both = torch.cat([style["mean"], style["std"]]).double()
        drawn = torch.randn(len(both), generator=stream(0, "world", *client.data.ids), dtype=torch.float64)
        mean, std = (both + self.level * both.norm() * drawn / len(both) ** 0.5).float().chunk(2)
        return {"style": StyleStatistics(mean=mean, std=std.clamp_min(0))}, state


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack every level, and write the rows."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    rows = []
    for level in LEVELS:
        (result,) = fdgsec.attack(Blurred(level=level), dataset="pacs", attacks=("membership",)).attacks
        if result.status == "skipped":
            rows.append({"level": level, "refused": result.reason})
        rows += [
            {"level": level, **row.slice, "value": row.value, "low": row.low, "high": row.high, "n": row.n,
             "baseline": row.chance, "verdict": row.verdict}
            for row in result.measurements if row.name == "auc" and row.judged
        ]  # fmt: skip
        found = [f"{row['value']:.3f}" for row in rows if row["level"] == level and "value" in row]
        print(level, result.status, result.reason, *found, flush=True)
    RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
