"""What a method's server must see of single clients' uploads; wire policies check it before they apply."""

from typing import Protocol, runtime_checkable

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import NAMED, Aggregation, Method, ServerNeeds, State

SERVER_STEPS = ("combine", "exhibits", "aggregate", "weigh")
READ_UPDATES = ("exhibits", "aggregate")
"""The server steps that are given all updates of a round."""


def needs_of(method: Method) -> ServerNeeds:
    """The declared needs of `method`; `NAMED` for a class that overrides a server step and declares nothing."""
    for cls in type(method).__mro__:
        if "server_needs" in vars(cls):
            return method.server_needs
        if any(step in vars(cls) for step in SERVER_STEPS):
            break
    return NAMED


def aggregation_of(method: Method, *, model: GlobalModel, server: State) -> Aggregation | None:
    """How `method` aggregates updates one by one; None for a class that overrides a step that reads all of them and
    does not declare anew that it can do without."""
    for cls in type(method).__mro__:
        if "aggregation" in vars(cls):
            return method.aggregation(model=model, server=server)
        if any(step in vars(cls) for step in READ_UPDATES):
            break
    return None


@runtime_checkable
class NeedsEveryone(Protocol):
    """A defense whose guarantee holds only for the sum over all clients that were asked, not for a smaller sum."""

    @property
    def needs_everyone(self) -> bool:
        """Whether the sum must cover all of them."""
        ...
