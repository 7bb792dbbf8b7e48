"""Values that an object computes once, when they are first asked for."""

import threading
from functools import cached_property
from typing import Any, TypeVar

Value = TypeVar("Value", covariant=True)  # noqa: PLC0105 - the name of cached_property's own


class computed_once(cached_property[Value]):
    """`functools.cached_property` whose threads wait for each other about one object, and not about all of a class.

    Before Python 3.12 that decorator has one lock for all objects, so that two threads never compute it of two objects
    at once; from then on it has none, and each thread computes what two ask of one."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The value of `instance`, which is computed while others wait who ask for it too."""
        if instance is None:
            return self
        values = vars(instance)
        assert self.attrname is not None  # __set_name__ was called
        if self.attrname not in values:
            with values.setdefault(f"lock of {self.attrname}", threading.RLock()):
                if self.attrname not in values:
                    values[self.attrname] = self.func(instance)
        return values[self.attrname]
