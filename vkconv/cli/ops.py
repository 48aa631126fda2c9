"""``vkconv ops``: what the registry says of every op, as a table, in full, and as data."""

import dataclasses
from typing import Annotated, Any, get_args

import typer

from vkconv.cli.models import names_str, value_str
from vkconv.cli.options import JsonOption
from vkconv.cli.output import show, show_json
from vkconv.core import DType, UsageError, did_you_mean
from vkconv.ops.core.base import Op, Operand
from vkconv.table import Column, Table

SCHEMA = "vkconv.ops/1"
# A shipped device that may be given every route for some call, so that it shows which element types each takes.
_WIDEST = "h200"


@dataclasses.dataclass
class Types:
    """Element types that an op takes, each in the order of `DType`: by operand, and by route of its first operand."""

    operands: dict[str, list[str]]
    routes: dict[str, list[str]]

    @property
    def all(self) -> list[str]:
        """Those of any operand."""
        return _ordered({name for names in self.operands.values() for name in names})


def ops(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One op, in full.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the ops with operands, attributes, routes and element types, or tell all about one."""
    from vkconv.ops import OPS

    if name is not None and name not in OPS:
        raise UsageError(f"there is no op {name!r}{did_you_mean(name, OPS)}; vkconv ops lists them")
    if as_json:
        show_json({"schema": SCHEMA, "ops": [op_data(OPS[n]) for n in OPS if name in (None, n)]})
    elif name is None:
        rows = [
            (
                op.name,
                names_str(operand_str(o) for o in op.operands),
                " ".join(a.key if a.key == a.name else f"{a.key}({a.name})" for a in op.attrs),
                names_str(r.name for r in op.routes) or without_routes(op),
                " ".join(types_of(op, of_routes=False).all),
            )
            for op in OPS.values()
        ]
        columns = [Column(c) for c in ("op", "operands", "attributes", "routes", "dtypes")]
        show(Table("", columns, rows), "operands: ? optional, ... any number, # known when planned")
    else:
        _show_op(OPS[name])


def types_of(op: Op, *, of_routes: bool = True) -> Types:
    """The element types that an op really takes: those in which one of its cases is a legal call that a route of it may
    be given, on a device with every feature that routes ask for; those of each route, which take longer to find, where
    they are asked for."""
    from vkconv.device import load_device
    from vkconv.ops.core.calls import typed_cases
    from vkconv.route import may_take

    device = load_device(_WIDEST)
    operands: dict[str, set[str]] = {operand.name: set() for operand in op.operands if not operand.host}
    routes: dict[str, set[str]] = {route.name: set() for route in op.routes}
    for call in typed_cases(op):
        specs = {name: str(spec.dtype) for name, spec in call.operands.items() if spec is not None}
        key = next(iter(specs.values()), "") or str(next(iter(call.outputs.values())).dtype)
        found = [
            (operands[name if name in operands else name.rstrip("0123456789")], dtype) for name, dtype in specs.items()
        ]
        new = any(dtype not in known for known, dtype in found)
        open_routes = [route for route in op.routes if of_routes and key not in routes[route.name]]
        takes = [route.name for route in open_routes if may_take(route, call, device)]
        for route in takes:
            routes[route].add(key)
        if new and (takes or not op.routes or any(may_take(route, call, device) for route in op.routes)):
            for known, dtype in found:
                known.add(dtype)
    return Types(*({name: _ordered(found) for name, found in each.items()} for each in (operands, routes)))


def _ordered(names: set[str]) -> list[str]:
    return [str(dtype) for dtype in DType if dtype in names]


def without_routes(op: Op) -> str:
    """How an op without routes is computed."""
    return "alias" if op.alias else "when planned"


def _show_op(op: Op) -> None:
    from vkconv.device import load_device
    from vkconv.plan.chosen import chosen_by

    types, device = types_of(op), load_device(_WIDEST)
    chosen = [
        (name, ", ".join(one.parameters), one.said(device))
        for name, one in chosen_by(op, device).items()
        if one.parameters
    ]
    attrs = [(a.name, a.key, type_str(a.type), default_str(a.default)) for a in op.attrs]
    routes = [
        (
            *(r.name, " ".join(types.routes[r.name]), "; ".join(n.text for n in r.must)),
            *("; ".join(n.text for n in r.prefer), r.why, r.source),
        )
        for r in op.routes
    ]
    names = ("route", "dtypes", "must", "prefer", "why", "source")
    chosen_names = ("route", "parameters", f"chosen by, on {_WIDEST}")
    show(
        f"{op.name}({', '.join(operand_str(o) for o in op.operands)}) -> {', '.join(op.outputs)}",
        *([op.doc] if op.doc else []),
        *(f"{name}: {' '.join(found)}" for name, found in types.operands.items() if found),
        *([Table("", [Column(c) for c in ("attribute", "key", "type", "default")], attrs)] if attrs else []),
        *([Table("", [Column(c) for c in names], routes)] if routes else []),
        *([Table("", [Column(c) for c in chosen_names], chosen)] if chosen else []),
        *([f"example: vkconv explain {op.cases[0]}"] if op.cases and op.routes else []),
    )


def operand_str(operand: Operand) -> str:
    """``x...#?``: any number of it, known when planned, optional."""
    return f"{operand.name}{'...' * operand.variadic}{'#' * operand.host}{'?' * operand.optional}"


def type_str(type_: Any) -> str:
    """``int``, or ``ints`` for several."""
    return f"{get_args(type_)[0].__name__}s" if get_args(type_) else str(type_.__name__)


def default_str(value: Any) -> str:
    """The default of an attribute as call strings have it."""
    return "required" if value is None else value_str(value)


def op_data(op: Op) -> dict[str, Any]:
    """An op as JSON data: operands, attributes, outputs, routes with their requirements and reasons, element types that
    are taken, its reference, the published rules that are known for it, and calls that tests check."""
    from vkconv.device import load_device
    from vkconv.plan.chosen import chosen_by

    types, device = types_of(op), load_device(_WIDEST)
    chosen = chosen_by(op, device)
    return {
        "op": op.name,
        "doc": op.doc,
        "operands": [
            {
                "name": o.name,
                "optional": o.optional,
                "variadic": o.variadic,
                "host": o.host,
                "dtypes": types.operands.get(o.name, []),
            }
            for o in op.operands
        ],
        "outputs": list(op.outputs),
        "attributes": [
            {
                "name": a.name,
                "key": a.key,
                "type": type_str(a.type),
                "default": None if a.default is None else value_str(a.default),
            }
            for a in op.attrs
        ],
        "routes": [
            {
                "route": r.name,
                "dtypes": types.routes[r.name],
                "must": [n.text for n in r.must],
                "prefer": [n.text for n in r.prefer],
                "opt_in": r.opt_in,
                "deterministic": r.deterministic,
                "why": r.why,
                "source": r.source,
                "chosen_by": chosen[r.name].data(device) if r.name in chosen else None,
            }
            for r in op.routes
        ],
        "without_routes": "" if op.routes else without_routes(op),
        "dtypes": types.all,
        "reference": op.reference.__module__,
        "published": sorted(op.published),
        "cases": list(op.cases),
    }
