"""Every attribute of every op at the edges of what numbers can be: calls made from the ops' own cases."""

import dataclasses
from collections.abc import Iterator

from vkconv.graph.ir import AttrValue
from vkconv.ops import OPS
from vkconv.ops.core.base import Attr, Specs
from vkconv.ops.core.calls import parse_call

INTS = (0, -1, 1, 2, 3, 7, -7, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 63)
FLOATS = (0.0, -0.0, -1.0, 0.5, 1e-46, 3.5e38, -1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "no such word", "\0")


@dataclasses.dataclass(frozen=True)
class Extreme:
    """An op with one attribute, or two elements of it, changed."""

    op: str
    specs: Specs
    attrs: dict[str, AttrValue]
    text: str


def _values(attr: Attr, now: AttrValue) -> Iterator[AttrValue]:
    if attr.type is bool:
        yield not now
    elif attr.type is str:
        yield from TEXTS
    elif attr.type in (int, float):
        yield from INTS if attr.type is int else FLOATS
    else:
        edges: tuple[int | float, ...] = INTS if attr.type == tuple[int, ...] else FLOATS
        old = now if isinstance(now, tuple) else ()
        yield from ((), (*old, 1), old[:-1], (1,) * 40)
        for value in edges:
            yield (value,) * max(1, len(old))
            for i in range(len(old)):
                yield (*old[:i], value, *old[i + 1 :])


def extremes() -> Iterator[Extreme]:
    """All of them; most make no sense, and must be refused as such."""
    for op in OPS.values():
        for case in op.cases:
            call = parse_call(case, OPS)
            attrs = {name: value for name, value in call.attrs.items() if name in {a.name for a in op.attrs}}
            for attr in op.attrs:
                for value in dict.fromkeys(_values(attr, attrs.get(attr.name, ()))):
                    text = f"{case} with {attr.name}={value!r}"
                    yield Extreme(op.name, call.operands, {**attrs, attr.name: value}, text)
