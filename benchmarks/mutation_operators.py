"""The mutants of a module: chosen operators of Cosmic Ray, and some for faults that privacy code must not have.

Of Cosmic Ray's replacements of arithmetic and comparison operators those by the nearest other are taken: nobody writes
`<<` for `+`, and any test would see it."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import parso
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Keyword, Name, Number
from parso.tree import NodeOrLeaf

BINARY = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul", "BitAnd_BitOr",
          "BitOr_BitAnd", "RShift_LShift", "LShift_RShift")  # fmt: skip
COMPARISONS = ("Lt_LtE", "Lt_Gt", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_Lt", "GtE_Gt", "GtE_Lt", "Eq_NotEq", "NotEq_Eq",
               "Is_IsNot", "IsNot_Is")  # fmt: skip
OTHERS = ("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not",
          "ReplaceUnaryOperator_Delete_Invert", "AddNot", "ReplaceTrueWithFalse",
          "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue",
          "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop")  # fmt: skip
SWAPPED: Final = {
    "max": "min", "min": "max", "any": "all", "all": "any", "amax": "amin", "amin": "amax", "argmax": "argmin",
    "argmin": "argmax", "clamp_min": "clamp_max", "clamp_max": "clamp_min", "ceil": "floor", "floor": "ceil",
    "float64": "float32", "double": "float",
}  # fmt: skip
IN = (["in"], ["not", "in"])


Place = tuple[tuple[int, int], tuple[int, int]]


class Replacement(Operator):
    """Replaces one node where it `fits`."""

    @abstractmethod
    def fits(self, node: NodeOrLeaf) -> bool:
        """Tell whether the node can be replaced."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Place]:
        """Find the nodes."""
        if self.fits(node):
            yield node.start_pos, node.end_pos

    @classmethod
    def examples(cls) -> tuple[()]:
        """None: Cosmic Ray tests its own operators by them."""
        return ()


class NameSwap(Replacement):
    """Replaces a function or type by its opposite, and float64 by float32."""

    def fits(self, node: NodeOrLeaf) -> bool:
        """Names that have an opposite."""
        return isinstance(node, Name) and node.value in SWAPPED

    def mutate(self, node: Name, index: int) -> Name:  # noqa: ARG002
        """Write the other name."""
        return Name(SWAPPED[node.value], node.start_pos, prefix=node.prefix)


class MembershipSwap(Replacement):
    """Replaces `in` by `not in`, and back."""

    def fits(self, node: NodeOrLeaf) -> bool:
        """Comparisons; the `in` of a loop is none."""
        return node.parent is not None and node.parent.type == "comparison" and node.get_code().split() in IN

    def mutate(self, node: NodeOrLeaf, index: int) -> Keyword:  # noqa: ARG002
        """Write the other."""
        return Keyword("not in" if node.get_code().split() == IN[0] else "in", node.start_pos, prefix=" ")


class LooserNumber(Replacement):
    """Makes a number with a decimal point or an exponent 1% larger."""

    def fits(self, node: NodeOrLeaf) -> bool:
        """Numbers that are not whole, or not written so; not 0."""
        return isinstance(node, Number) and _is_float(node.value) and float(node.value) != 0

    def mutate(self, node: Number, index: int) -> Number:  # noqa: ARG002
        """Write the larger number."""
        return Number(repr(1.01 * float(node.value)), node.start_pos, prefix=node.prefix)


class StatementRemover(Replacement):
    """Removes a call whose result is not used, a `raise`, or an assignment to a part of an object."""

    def fits(self, node: NodeOrLeaf) -> bool:
        """Such statements."""
        return node.parent is not None and node.parent.type == "simple_stmt" and _removable(node)

    def mutate(self, node: NodeOrLeaf, index: int) -> Keyword:  # noqa: ARG002
        """Write `pass`."""
        return Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)


def _is_float(number: str) -> bool:
    return "." in number or ("e" in number.lower() and not number.lower().startswith("0x"))


def _removable(node: NodeOrLeaf) -> bool:
    if node.type == "expr_stmt":
        target, sign = node.children[:2]
        return target.type == "atom_expr" or (sign.type == "operator" and len(sign.value) > 1)
    return node.type == "raise_stmt" or (node.type == "atom_expr" and node.children[-1].children[0] == "(")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault: the number of a place in a module at which an operator acts."""

    path: str
    original: str
    operator: str
    number: int
    line: int

    @cached_property
    def text(self) -> str:
        """The module with the fault."""
        return mutate_code(self.original, OPERATORS[self.operator], self.number)

    def document(self) -> dict[str, object]:
        """The changed lines."""
        lines, others = self.original.splitlines(), self.text.splitlines()
        first = next(number for number, line in enumerate(lines) if line != others[number])
        last = next(number for number in range(1, len(lines)) if lines[-number] != others[-number]) - 1
        before, after = (" ".join(line.strip() for line in each[first : len(each) - last]) for each in (lines, others))
        return {"path": self.path, "line": self.line, "before": before, "after": after}


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Yield all mutants of a module's text that are counted."""
    tree = parso.parse(text)
    for name, operator in OPERATORS.items():
        places = [place for node in _nodes(tree) for place in operator.mutation_positions(node)]
        for number, (start, _) in enumerate(places):
            if _counted(tree, start, name):
                yield Mutant(path=path, original=text, operator=name, number=number, line=start[0])


def _nodes(node: NodeOrLeaf) -> Iterator[NodeOrLeaf]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _counted(tree: NodeOrLeaf, start: tuple[int, int], operator: str) -> bool:
    node = tree.get_leaf_for_position(start, include_prefixes=True)
    while node.parent is not None:
        parent = node.parent
        if node.type == "raise_stmt" and operator != "StatementRemover":
            return False
        if node.type == "operator" and parent.type in ("parameters", "param"):  # the star before keywords
            return False
        if parent.type == "annassign" and node is parent.children[1]:
            return False
        if parent.type == "funcdef" and node is parent.annotation:
            return False
        if node.type in ("decorator", "fstring", "tfpdef"):
            return False
        if node.type == "classdef" and (bases := node.get_super_arglist()) and bases.get_code() == "Protocol":
            return False
        node = parent
    return True


OPERATORS: Final[dict[str, Operator]] = {
    **{
        name: get_operator(f"core/{name}")()
        for name in (
            *(f"ReplaceBinaryOperator_{pair}" for pair in BINARY),
            *(f"ReplaceComparisonOperator_{pair}" for pair in COMPARISONS),
            *OTHERS,
        )
    },
    "NameSwap": NameSwap(),
    "MembershipSwap": MembershipSwap(),
    "LooserNumber": LooserNumber(),
    "StatementRemover": StatementRemover(),
}
