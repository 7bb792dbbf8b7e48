"""Options from text and plain data: values read, tables laid over each other, and frozen dataclasses made of them."""

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fdgsec.runtime.errors import FdgsecError, UsageError, unknown_name
from fdgsec.runtime.untrusted_text import INTEGERS, check_text, parse_toml

T = TypeVar("T")
LONGEST_VALUE, DEEPEST_OPTION = 10_000, 20
"""Characters of a value, and names before an option's own, on the command line."""
SHORT_NUMBER = re.compile(r"[+-]?(\.[0-9]{1,17}|[0-9]{1,17}\.)")
"""Numbers that TOML does not take: .1 and 1. without the digit before or after the point."""
OPTION_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""What the checks of a class's own options raise for values of the right type that they did not count on."""


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over each other, later ones winning, tables merged key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = result.get(key)
            result[key] = merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result


def build(cls: type[T], settings: Mapping[str, Any], *, where: str) -> T:
    """Make the frozen dataclass `cls` from plain settings, tables becoming nested dataclasses.

    Raises UsageError, naming `where` and the option, for an unknown name or a value of the wrong type."""
    hints = get_type_hints(cls)
    known = {spec.name for spec in dataclasses.fields(cls) if spec.init}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in known:
            raise unknown_name(f"option of {where}", name, sorted(known))
        values[name] = _fitted(hints[name], value, f"{where}.{name}")
    try:
        return cls(**values)
    except FdgsecError:
        raise
    except OPTION_ERRORS as error:
        raise UsageError(f"{where}: {error}.") from error


def _chosen(kind: Any, value: Any, where: str) -> Any:
    """One of the values of a Literal; the command line reads the word none as None."""
    if value is None and "none" in get_args(kind):
        return "none"
    if value not in get_args(kind):
        raise UsageError(f"{where} cannot be {value!r}; expected {_described(kind)}.")
    return value


def _fitted(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _fitted_to_one(kind, value, where)
    if origin is Literal:
        return _chosen(kind, value, where)
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return build(kind, value, where=where)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list | tuple):
        return _fitted_items(get_args(kind), value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        if value not in INTEGERS:
            raise UsageError(f"{where} cannot be an integer of {value.bit_length()} bits; 64 are the limit.")
        return float(value)
    plain = origin or kind
    if plain is Any or (
        isinstance(plain, type) and isinstance(value, plain) and not (plain is int and isinstance(value, bool))
    ):
        if isinstance(value, float) and math.isnan(value):  # it passes every bound that is written the other way round
            raise UsageError(f"{where} cannot be NaN; give a number.")
        return value
    raise UsageError(f"{where} cannot be {value!r}; expected {_described(kind)}.")


def _fitted_items(kinds: Sequence[Any], values: Sequence[Any], where: str) -> tuple[Any, ...]:
    """The values of a tuple, each as its kind: (int, ...) is any number of integers."""
    each = [kinds[0]] * len(values) if kinds[1:] == (Ellipsis,) else kinds
    if len(each) != len(values):
        raise UsageError(f"{where} cannot be {list(values)!r}; expected {len(each)} values.")
    return tuple(
        _fitted(kind, value, f"{where}[{n}]") for n, (kind, value) in enumerate(zip(each, values, strict=True))
    )


def _fitted_to_one(kind: Any, value: Any, where: str) -> Any:
    """The value as the first type of a union that takes it."""
    if value == "none" and type(None) in get_args(kind):  # TOML has no null
        return None
    for option in get_args(kind):
        try:
            return _fitted(option, value, where)
        except UsageError:
            continue
    raise UsageError(f"{where} cannot be {value!r}; expected {_described(kind)}.")


def _described(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_described(option) for option in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(repr(option) for option in get_args(kind))
    return "nothing" if kind is type(None) else getattr(kind, "__name__", str(kind))


def parse_value(text: str) -> Any:
    """Read a value as TOML does, else as a string: 3, 0.1, .1, true, [1, 2], overall, none."""
    if text.lower() == "none":
        return None
    if SHORT_NUMBER.fullmatch(text):
        return float(text)
    if len(text) > LONGEST_VALUE:
        raise UsageError(f"a value of {len(text)} characters cannot be read; {LONGEST_VALUE} are the limit: {text}")
    try:
        found = parse_toml(f"value = {text}", source=text, error=UsageError)
    except UsageError:
        check_text(text)
        return text
    return found["value"] if len(found) == 1 else text


def parse_assignments(items: Sequence[str]) -> dict[str, Any]:
    """Turn ["method.k=3", "rounds=5"] into nested settings. Raises UsageError for anything else."""
    result: dict[str, Any] = {}
    for item in items:
        path, equals, text = item.partition("=")
        if not equals or not path or any(not part for part in path.split(".")):
            raise UsageError(f"--set expects name.option=value; got {item!r}.")
        node = result
        *parents, last = path.split(".")
        if len(parents) > DEEPEST_OPTION:
            raise UsageError(f"--set names an option {len(parents)} deep; {DEEPEST_OPTION} are the limit: {item!r}.")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UsageError(f"--set gives {parent} a value and options of its own; got {item!r}.")
        if last in node:
            raise UsageError(f"--set gives {path} twice; give it once.")
        node[last] = parse_value(text)
    return result
