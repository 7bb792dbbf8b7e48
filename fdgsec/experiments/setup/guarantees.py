"""The guarantees of a run, from its ledger, as reports list them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fdgsec.federation.defense import Defense, mechanism_on
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Method
from fdgsec.privacy.guarantees import VETTED
from fdgsec.privacy.ledger import Guarantee, Ledger
from fdgsec.runtime.registry import name_of

CHOSEN = (
    "options (clip, noise, learning rate, steps, rounds) are chosen without looking at private images; a choice by "
    "results on them is not accounted for"
)
APART = "no image is held by two clients: what each sends would cost it anew"
SIMULATED = "simulated: the noise follows from the run's seed, which its report states: whoever has it knows the noise"


def guarantee_documents(
    ledger: Ledger,
    defense_stack: DefenseStack,
    method: Method,
    *,
    delta: float,
    simulated: bool,
    stated: bool = False,
) -> list[Mapping[str, object]]:
    """The run's guarantees with the cost of each part; empty without defenses.

    `simulated` says that noise comes from the run's seed, of all clients or of some. With `stated` costs are what
    remote clients say: where these do not compose, there is no guarantee, and no error."""
    if not defense_stack.defenses:
        return []
    assumptions = list(dict.fromkeys(text for defense in defense_stack.defenses for text in defense.assumptions))
    assumptions += [CHOSEN, APART]
    if simulated:
        assumptions.append(SIMULATED)
    own_return = method.trains_on_own_releases or defense_stack.returns_shares
    if method.trains_on_own_releases:
        assumptions.append(
            f"{type(method).__name__}: what a client shares comes back into its own training; its model is no safer "
            "than that"
        )
    elif own_return and any(entry.stage == "share" for entry in ledger.entries):
        assumptions.append(
            "the server changes shared artifacts by those of other clients, so that a client's own may come back into "
            "its training; its model is no safer than that"
        )
    if any(entry.stage == "review" and entry.uses is None for entry in ledger.entries):
        assumptions.append(
            "images that a client keeps for validation are not covered: its scores of others' models on them are sent "
            "unprotected, and weigh or choose the models"
        )
    try:
        found = ledger.guarantees(delta=delta, assumptions=assumptions, own_return=own_return)
    except (ValueError, ArithmeticError) as error:
        if not stated:
            raise
        assumptions.append(f"none follows from what the clients say of their noise: {error}")
        bare = Ledger(entries=[replace(entry, uses=None) for entry in ledger.entries])
        found = bare.guarantees(delta=delta, assumptions=assumptions)
    return [attributed(guarantee, defense_stack.defenses).document() for guarantee in found]


def attributed(guarantee: Guarantee, defenses: Sequence[Defense]) -> Guarantee:
    """Name the mechanisms behind a guarantee, and say whether a second reader has checked all of them."""
    covered = {place for slot in guarantee.covers for place in (slot, slot.partition("/")[0])}
    names = [name_of("defenses", one) for one in defenses if covered & mechanism_on(one)]
    return replace(guarantee, by=tuple(names), vetted=bool(names) and VETTED.issuperset(names))
