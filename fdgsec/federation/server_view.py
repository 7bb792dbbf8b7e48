"""How closely a method's server has to look at what single clients upload: what policies of the wire ask before they act."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from fdgsec.federation.method import Method


@dataclass(frozen=True, kw_only=True)
class ServerNeeds:
    """How closely a method's server has to look at what clients upload, and (after "because") why no less will do.

    "sum": means over clients are enough, weighted by what each upload counts. "unnamed": single uploads, but not whose they
    are, and everybody is answered alike. "named": who sent what. `metrics` names the numbers of updates that it reads beside
    their weight."""

    uploads: Literal["sum", "unnamed", "named"]
    because: str
    metrics: frozenset[str] = frozenset()


@runtime_checkable
class StatesServerNeeds(Protocol):
    """A method that says how closely its server looks; a class that changes a step of the server must say it anew."""

    @property
    def server_needs(self) -> ServerNeeds:
        """What the server cannot do without."""
        ...


SERVER_STEPS = ("combine", "exhibits", "aggregate", "weigh")


def needs_of(method: Method) -> ServerNeeds:
    """What `method` says that its server needs; names, where a class that changes a server's step says nothing."""
    for cls in type(method).__mro__:
        if "server_needs" in vars(cls) and isinstance(method, StatesServerNeeds):
            return method.server_needs
        if any(step in vars(cls) for step in SERVER_STEPS):
            break
    return ServerNeeds(uploads="named", because="nothing says that its server can do with less")


@runtime_checkable
class NeedsEveryone(Protocol):
    """What is known of a defense whose guarantee holds for the sum of all who were asked, and for no smaller one."""

    @property
    def needs_everyone(self) -> bool:
        """Whether it does."""
        ...
