"""The installed versions of flwr and ray, and whether fdgsec was tested with them; imports neither."""

import re
from importlib.metadata import PackageNotFoundError, requires, version

from fdgsec.runtime.errors import MissingResourceError

LOWEST, BELOW = (1, 41), (1, 43)
"""flwr >= LOWEST and < BELOW: its engine changes every few weeks, so untested versions are refused."""
RANGE = f">={'.'.join(map(str, LOWEST))},<{'.'.join(map(str, BELOW))}"
INSTALL = {False: 'pip install "fdgsec[flower]"', True: 'pip install "fdgsec[flower-sim]"'}
"""The command that installs the extra: with ray (True, the simulation engine) or without."""
TESTED = "tested"


class FlowerUnavailableError(MissingResourceError):
    """flwr or ray is not installed, or in a version that fdgsec was not tested with (exit 3)."""


def require_flower(*, simulation: bool) -> None:
    """Check that flwr (and ray, for the `simulation` engine) can be used.

    Raises FlowerUnavailableError with the command to run, where they are missing or outside the tested range."""
    for name, _, verdict in installed_versions():
        if verdict != TESTED and (simulation or name == "flwr"):
            line = verdict.replace(INSTALL[False], INSTALL[simulation])  # one command where both are missing
            raise FlowerUnavailableError(f"{name} {line}")


def installed_versions() -> list[tuple[str, str | None, str]]:
    """List (name, version or None, verdict) of flwr and ray; the verdict is TESTED, or the problem and the command."""
    flower = _version("flwr")
    ray = _version("ray")
    return [("flwr", flower, _verdict_on_flower(flower)), ("ray", ray, _verdict_on_ray(ray, pinned_ray()))]


def pinned_ray() -> str | None:
    """Give the exact version of ray that the installed flwr requires; None without flwr or where it names none."""
    try:
        lines = requires("flwr") or []
    except PackageNotFoundError:
        return None
    pins = [match[1] for line in lines if (match := re.match(r"ray\s*==\s*([\w.]+)", line))]
    return pins[0] if pins else None


def _verdict_on_flower(found_version: str | None) -> str:
    if found_version is None:
        return f"is not installed; run: {INSTALL[False]}"
    numbers = tuple(int(number) for number in re.findall(r"\d+", found_version)[:2])
    if LOWEST <= numbers < BELOW:
        return TESTED
    return f"{found_version} is outside the tested range {RANGE}; run: {INSTALL[False]}"


def _verdict_on_ray(found_version: str | None, pin: str | None) -> str:
    if found_version is None:
        return f"is not installed (needed by the simulation engine alone); run: {INSTALL[True]}"
    if found_version == pin:
        return TESTED
    return f"{found_version} is not the version that flwr asks for ({pin or 'unknown'}); run: {INSTALL[True]}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
