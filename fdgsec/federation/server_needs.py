"""What a method's server must see of single clients' uploads; wire policies check it before they apply."""

from typing import Protocol, runtime_checkable

from fdgsec.federation.method import NAMED, Method, ServerNeeds

SERVER_STEPS = ("combine", "exhibits", "aggregate", "weigh")


def needs_of(method: Method) -> ServerNeeds:
    """The declared needs of `method`; `NAMED` for a class that overrides a server step and declares nothing."""
    for cls in type(method).__mro__:
        if "server_needs" in vars(cls):
            return method.server_needs
        if any(step in vars(cls) for step in SERVER_STEPS):
            break
    return NAMED


@runtime_checkable
class NeedsEveryone(Protocol):
    """A defense whose guarantee holds only for the sum over all clients that were asked, not for a smaller sum."""

    @property
    def needs_everyone(self) -> bool:
        """Whether the sum must cover all of them."""
        ...
