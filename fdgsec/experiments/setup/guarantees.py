"""The guarantees of a run, from its ledger, as reports list them."""

from collections.abc import Mapping

from fdgsec.federation.defense import DefenseStack
from fdgsec.federation.method import Method
from fdgsec.privacy.ledger import Ledger

SIMULATED = "simulated: the noise is drawn from the run's seed, and whoever knows the seed knows the noise"


def guarantee_documents(
    ledger: Ledger, defense_stack: DefenseStack, method: Method, *, delta: float, simulated: bool
) -> list[Mapping[str, object]]:
    """The run's guarantees with the cost of each part; empty without defenses."""
    if not defense_stack.defenses:
        return []
    assumptions = list(dict.fromkeys(text for defense in defense_stack.defenses for text in defense.assumptions))
    if simulated:
        assumptions.append(SIMULATED)
    returns = method.trains_on_own_releases
    if returns:
        assumptions.append(
            f"{type(method).__name__}: what a client shares comes back into its own training; its model is no safer "
            "than that"
        )
    found = ledger.guarantees(delta=delta, assumptions=assumptions, own_return=returns or bool(defense_stack.policies))
    return [guarantee.document() for guarantee in found]
