"""Style inversion with little training, for tests of what surrounds its pictures."""

from dataclasses import replace
from typing import ClassVar

from fdgsec.attacks.style_inversion.attack import Profile, StyleInversion

_QUICK = StyleInversion.PROFILES["quick"]
_EFFORT = _QUICK.effort
BRIEF = replace(
    _QUICK,
    effort=replace(
        _EFFORT, first=replace(_EFFORT.first, steps=10), further=replace(_EFFORT.further, steps=10),
        contest=replace(_EFFORT.contest, steps=10, lessons=10), images=60,
        retrieval=replace(_EFFORT.retrieval, draws=1, steps=2, rows=16),
    ),
)  # fmt: skip


class BriefInversion(StyleInversion):
    """Style inversion whose quick profile trains for ten steps."""

    PROFILES: ClassVar[dict[str, Profile]] = {"quick": BRIEF}
