"""The ledger of the papers' privacy claims as data, with the attack and criteria that decide each claim."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from fdgsec.experiments.claims.verdicts import Criterion
from fdgsec.experiments.run_config import build


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the ledger; `run` are settings of its attack, `vgg` marks claims that need VGG features.

    The attack runs only in the `profiles`. `rule` describes the criteria in words."""

    id: str
    paper: str
    section: str
    claim: str
    rule: str
    attack: str
    target: str
    criteria: Sequence[Mapping[str, Any]]
    adversary: Literal["server", "client", "outsider"] = "server"
    run: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()
    vgg: bool = False
    profiles: Sequence[str] = ("quick", "full")

    def rows(self) -> list[Criterion]:
        """The criteria that decide the claim."""
        return [build(Criterion, row, where=f"claim {self.id}") for row in self.criteria]


def ledger() -> list[Claim]:
    """Read the claims, in the order of the ledger."""
    text = resources.files("fdgsec.experiments.claims").joinpath("claims.toml").read_text()
    return [build(Claim, row, where="ledger") for row in tomllib.loads(text)["claims"]]
