"""Poisoning: a malicious client forges its messages; which forgeries are refused, and how much harm the others do.

Malformed messages (NaN, a negative std, another shape) should be refused with a clear reason before they are used.
Legal forgeries cannot be distinguished from honest messages in isolation. One client scales its style (CCST's bank,
FISC's interpolation style, StableFDG's distribution, FedAlign's rows), its update (as in model replacement, Bagdasaryan
et al., AISTATS 2020, arXiv:1807.00459, here without a backdoor; or with reversed sign) or FedDAG's generator, or
misreports its peers (FedDAG eq. 6 weighs clients by what they report of each other). Harm is the difference between two
runs of one seed, with and without the forgery: accuracy on the unseen domain, and the displacement of what honest
clients receive.

Some forgeries are made against robust aggregation (crafted_forgeries): they stay close to honest messages. They are
run behind every guard (`guards`), with the worst of all forgeries, chosen on other seeds, beside each of them.

FISC's median over clusters of clients is meant to ensure that no single style skews the interpolation style (below its
eq. 3). For the breakdown point, the number of malicious clients is raised, and FISC's style is compared with the mean,
the median, the trimmed mean and Krum's choice of the same uploads (fdgsec.federation.robust_statistics)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fdgsec.attacks.poisoning.control import planted_harm
from fdgsec.attacks.poisoning.crafted_forgeries import Crafted, crafted
from fdgsec.federation.forged_artifacts import Flaw, Flawed, Heavy, Honest, Judging, Scaled, ScaledUpdate
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.registry import DEFENSES
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Harmed
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable

MODEL, STYLE = "ModelState", "StyleStatistics"
FORGED = (
    STYLE, "StyleDistribution", "ImageStyles", "Amplitudes", MODEL, "GeneratorState", "Scores", "Prototypes",
    "HeadGradient",
)  # fmt: skip
"""Artifact kinds that clients send, in the order of the report; banks and interpolation styles are the server's."""
STYLES = (STYLE, "StyleDistribution", "ImageStyles", "Amplitudes")
FACTORS = (10.0, 100.0)
ROW_FACTORS = (2.0, 100.0)
"""Factors for the std of one row: one close to the other rows, and one far from all of them."""
HUGE_LOSS = 1e9
HEAVIEST = 1e12
HEAVY = 1e6
"""A plausible number of images, which this client does not have."""
GUARDS = (
    "the run's", "norm", "outlier=5,on_outlier=replace", "outlier=5,on_outlier=clip", "center=median",
    "center=trimmed-mean", "center=krum",
)  # fmt: skip
"""The guards that forgeries are run behind, by their options; the bound of "norm" is the largest honest one."""
GUARDED = ("guarded_runs", "guarded_exchanges")
EXCHANGES = ("breakdown", "guarded_exchanges")
ROW_KINDS = ("ImageStyles", "Amplitudes")
"""Kinds with a row per image, which have no center."""
SHORT, FEW = 2, 120
"""Maximum rounds, and training images of each client, in the quick profile."""


@dataclass(frozen=True, kw_only=True)
class Poisoning:
    """Forge one client's messages, with `seeds` paired runs for each forgery.

    Runs have the rounds and images of the attacked one, in the quick profile at most two rounds and 120 images of each
    client. `rounds` and `images` (0: all) override this, up to what is available. `forgeries` selects forgeries by the
    names in reports ("update x10"). The breakdown of styles uses `clients` clients of `records` images, of which each
    of the numbers in `hostile` forge.

    Behind each of `guards`, `malicious` of `guarded_clients` clients of `records` images send every forgery; the worst
    is chosen on `selecting` seeds and measured on `seeds` others. Exchanges are always run; trainings (`guarded_runs`)
    by default in the full profile."""

    name: ClassVar[str] = "poisoning"
    reads: ClassVar[frozenset[str]] = frozenset(FORGED)
    needs: ClassVar[frozenset[str]] = frozenset({"own data"})
    accounts_for: ClassVar[frozenset[str]] = frozenset(DEFENSES)
    seeds: int = 5
    rounds: int | None = None
    images: int | None = None
    forgeries: tuple[str, ...] = ()
    clients: int = 21
    records: int = 16
    hostile: tuple[int, ...] = (1, 3, 5, 7, 9, 10)
    guards: tuple[str, ...] = GUARDS
    guarded_clients: int = 9
    malicious: int = 2
    selecting: int = 2
    guarded_runs: bool | None = None

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for paired runs, and for the breakdown where clients send one style each.

        Raises UsageError for options out of range, an unknown forgery, or a federation of one client."""
        self._check(facts)
        kinds = facts.artifact_kinds | (frozenset({MODEL}) if facts.rounds else frozenset())
        most, held = (facts.rounds, 0) if facts.profile == "full" else (min(facts.rounds, SHORT), FEW)
        everything = self.malicious_clients(kinds)
        wanted = everything if self.forgeries else tuple(one for one in everything if not isinstance(one, Crafted))
        chosen = self._select(wanted)
        pairs = Question(
            kind="hostile", count=self.seeds, rounds=most if self.rounds is None else self.rounds,
            records=held if self.images is None else self.images, malicious_clients=(Honest(), *chosen),
        )  # fmt: skip
        asked = [pairs, *self._guarded(kinds, pairs.rounds, facts.profile == "full")]
        crowds = self._crowds()
        if STYLE not in kinds or not crowds:
            return asked
        breakdown = Question(
            kind="breakdown", count=self.seeds, clients=self.clients, records=self.records, hostile=self.hostile,
            malicious_clients=crowds,
        )  # fmt: skip
        return [*asked, breakdown]

    def _guarded(self, kinds: frozenset[str], rounds: int, full: bool) -> list[Question]:
        """Ask what forgeries do behind each guard: of each kind of style that is exchanged, and of trained models."""
        runs = full if self.guarded_runs is None else self.guarded_runs
        asked = []
        for kind in (*STYLES, MODEL):
            chosen = self._select(against_guards(kind))
            if kind not in kinds or not chosen or (kind == MODEL and not (runs and rounds)):
                continue
            guards = tuple(one for one in self.guards if kind not in ROW_KINDS or "center" not in one)
            asked.append(
                Question(
                    kind="guarded_runs" if kind == MODEL else "guarded_exchanges",
                    count=self.seeds,
                    rounds=rounds if kind == MODEL else 0,
                    clients=self.guarded_clients,
                    records=self.records,
                    malicious_clients=chosen,
                    hostile=(self.malicious,),
                    guards=guards,
                    selecting=self.selecting,
                )
            )
        return [one for one in asked if one.guards]

    def malicious_clients(self, kinds: frozenset[str]) -> tuple[MaliciousClient, ...]:
        """The malformed forgeries of every kind that clients send, then the legal ones, then the crafted ones."""
        sent = [kind for kind in FORGED if kind in kinds]
        return tuple(one for made in (malformed, legal, crafted) for kind in sent for one in made(kind))

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Claim harm for every forgery; the judge compares both runs."""
        return [_claim(number, case) for number, case in enumerate(cases) if not _is_honest(case)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Claim harm for the forgery that leaves every message unchanged: both runs must be identical to the byte."""
        return [_claim(number, case) for number, case in enumerate(cases) if _is_honest(case)]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """FedAvg of three clients on dark and bright images, one of which sends a hundred times its update."""
        return planted_harm(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report why there is no breakdown, where one was requested, and behind which guards nothing was run."""
        return [*self._unguarded(cases), *self._no_breakdown(cases)]

    def _unguarded(self, cases: Sequence[Case]) -> list[Measurement]:
        ran = {(case.slice["artifact"], case.slice["guard"]) for case in cases if case.question in GUARDED}
        sent = {kind for case in cases if (kind := case.slice.get("artifact")) in (*STYLES, MODEL)}
        asked = [
            kind for kind in (*STYLES, MODEL)
            if kind in sent and self._select(against_guards(kind)) and (kind != MODEL or self.guarded_runs)
        ]  # fmt: skip
        reason = (
            f"does not fit what clients send, refuses honest clients, or has too few images for {self.guarded_clients}"
        )
        return [
            one
            for kind in asked
            for guard in self.guards
            if (kind, guard) not in ran
            for one in unavailable(["displacement"], {"artifact": kind, "guard": guard, "forgery": "every one"}, reason)
        ]

    def _no_breakdown(self, cases: Sequence[Case]) -> list[Measurement]:
        styles = any(case.slice.get("artifact") == STYLE for case in cases)
        if not styles or not self._crowds() or any(case.question == "breakdown" for case in cases):
            return []
        reason = f"too few images for {self.clients} clients of {self.records} images each"
        return unavailable(["displacement"], {"artifact": STYLE, "forgery": "breakdown"}, reason)

    def _crowds(self) -> tuple[MaliciousClient, ...]:
        """The forgeries of colluding clients: their style scaled by 100, or its stds alone, which changes its
        direction."""
        crowds = (Scaled(kind=STYLE, factor=100.0), Scaled(kind=STYLE, factor=100.0, entries=("std",)))
        return tuple(one for one in crowds if self.hostile and (not self.forgeries or one.name in self.forgeries))

    def _check(self, facts: TargetFacts) -> None:
        if min(self.seeds, self.clients, self.records) < 1 or min(self.rounds or 0, self.images or 0) < 0:
            raise UsageError(
                "poisoning needs seeds, clients and records of at least 1, rounds and images of at least 0; got "
                f"{self.seeds}, {self.clients}, {self.records}, {self.rounds} and {self.images}."
            )
        if any(not 0 < count < self.clients for count in self.hostile):
            raise UsageError(
                f"poisoning needs an honest client beside each number of hostile ones: all of {list(self.hostile)} "
                f"must lie in 1..{self.clients - 1}."
            )
        if not 0 < self.malicious < self.guarded_clients or self.selecting < 1:
            raise UsageError(
                "behind guards, poisoning needs an honest client beside the malicious ones and a selecting seed; got "
                f"malicious = {self.malicious}, guarded_clients = {self.guarded_clients}, selecting = {self.selecting}."
            )
        if facts.clients < 2:
            raise UsageError("the forger is the only client; use two clients or more")

    def _select(self, offered: tuple[MaliciousClient, ...]) -> tuple[MaliciousClient, ...]:
        known = {
            malicious_client.name for malicious_client in (*self.malicious_clients(self.reads), *Poisoning()._crowds())
        }
        for name in self.forgeries:
            if name not in known:
                raise unknown_name("forgery", name, sorted(known))
        return tuple(one for one in offered if not self.forgeries or one.name in self.forgeries)


def malformed(kind: str) -> tuple[MaliciousClient, ...]:
    """Forgeries that no honest client could send in place of an artifact of `kind`."""
    flaws: dict[str, tuple[Flaw, ...]] = {
        **dict.fromkeys(STYLES, ("nan", "infinity", "negative", "another shape", "missing")),
        MODEL: ("nan", "infinity", "another shape", "missing"),
        "GeneratorState": ("nan", "another shape", "missing"),
        "Scores": ("nan", "negative", "another shape"),
    }
    broken = tuple(Flawed(kind=kind, flaw=flaw) for flaw in flaws.get(kind, ("nan", "another shape")))
    return (*broken, Heavy(weight=HEAVIEST)) if kind == MODEL else broken


def legal(kind: str) -> tuple[MaliciousClient, ...]:
    """Forgeries in place of an artifact of `kind` that an honest client could send as well."""
    if kind == MODEL:
        return ScaledUpdate(factor=10.0), ScaledUpdate(factor=-1.0), Heavy(weight=HEAVY)
    if kind == "GeneratorState":
        return Scaled(kind=kind, factor=0.0), Scaled(kind=kind, factor=100.0)
    if kind == "Scores":
        return Judging(peers=HUGE_LOSS, own=0.0), Judging(peers=0.0)
    scaled = tuple(Scaled(kind=kind, factor=factor) for factor in FACTORS)
    if kind != "ImageStyles":
        return scaled
    return (*scaled, *(Scaled(kind=kind, factor=factor, entries=("std",), rows=1) for factor in ROW_FACTORS))


def against_guards(kind: str) -> tuple[MaliciousClient, ...]:
    """Forgeries of an artifact of `kind` that are run behind guards: crafted ones, and those that scale it."""
    return (*crafted(kind), *(one for one in legal(kind) if one.kind == kind))


def _is_honest(case: Case) -> bool:
    return case.slice.get("forgery") == Honest().name


def _claim(number: int, case: Case) -> Harmed:
    return Harmed(case=number, of="exchange" if case.question in EXCHANGES else "run")
