"""How closely a method's server has to look at what single clients upload: what policies of the wire ask before they act."""

from typing import Protocol, runtime_checkable

from fdgsec.federation.method import NAMED, Method, ServerNeeds

SERVER_STEPS = ("combine", "exhibits", "aggregate", "weigh")


def needs_of(method: Method) -> ServerNeeds:
    """What `method` says that its server needs; names, where a class that changes a server's step says nothing."""
    for cls in type(method).__mro__:
        if "server_needs" in vars(cls):
            return method.server_needs
        if any(step in vars(cls) for step in SERVER_STEPS):
            break
    return NAMED


@runtime_checkable
class NeedsEveryone(Protocol):
    """What is known of a defense whose guarantee holds for the sum of all who were asked, and for no smaller one."""

    @property
    def needs_everyone(self) -> bool:
        """Whether it does."""
        ...
