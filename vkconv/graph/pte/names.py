"""Which rule an operator of a ``.pte`` file has: those of ATen (`vkconv.graph.aten.rules`), of which files name other
forms, and those of ExecuTorch's own operators."""

from collections.abc import Mapping

from vkconv.graph.aten.rules import RULES as ATEN
from vkconv.graph.aten.view import Rule
from vkconv.graph.pte import rules

RULES: Mapping[str, Rule] = {**ATEN, "copy_.default": ATEN["copy.default"], **rules.RULES}
# Overloads that write to a given tensor, whose functional form is not named as they are without "out".
_FUNCTIONAL = {
    **{f"{name}.default": "Tensor" for name in ("add", "sub", "mul", "div")},
    "any.default": "dim",
    "arange.start": "start_step",
    "div.mode": "Tensor_mode",
    "mean.default": "dim",
    "sum.IntList": "dim_IntList",
}


def rule_name(operator: str) -> str:
    """The name by which `RULES` has an operator. ``aten.view_copy.default`` of a delegate and ``aten::view_copy.out``
    of a program are ``view.default``: what copies is as good as what shares memory, for no value changes."""
    if "::" in operator:
        space, _, rest = operator.partition("::")
        name, _, overload = rest.partition(".")
        name, overload = _functional(name, overload or "default")
    else:
        space, name, overload = ("", *operator.rsplit(".", 2))[-3:] if "." in operator else ("", operator, "default")
    prefix = "" if space in ("", "aten") else f"{space}."
    names = (f"{prefix}{name}.{overload}", f"{prefix}{name.removesuffix('_copy')}.{overload}")
    return next((known for known in names if known in RULES), names[0])


def _functional(name: str, overload: str) -> tuple[str, str]:
    """Of an overload that writes to a given tensor, the one that makes it."""
    if overload == "out":
        overload = "default"
    elif overload.startswith("out_"):
        overload = overload.removeprefix("out_")
    elif overload.endswith("_out"):
        overload = overload.removesuffix("_out")
    else:
        return name, overload
    return name, _FUNCTIONAL.get(f"{name}.{overload}", overload)
