"""Layout ops on one copy: transpose, slice, concat, split, expand, tile. They move elements of 4 or 8 bytes."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, Shape, shape_str
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import WORDS, WORDS_OR_PAIRS
from vkconv.ops.kernels.strided import STRIDED_COPIES, copy_params, strided_copy
from vkconv.ops.kernels.tiled import TRANSPOSE_TILES, Exchange, fitting_tiles
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

_WHY = "one strided copy: output elements in row-major order, so that writes are dense, reads at any stride"
X = Operand("x")


def _nbytes(call: Call) -> int:
    """Bytes of an element."""
    return next(iter(call.outputs.values())).dtype.nbytes


def _copied(call: Call, device: Device, params: Params, strides: Sequence[int], base: int = 0) -> Program:
    """All of y in order, from x at strides."""
    out = call.shape("y")
    return Program(
        strided_copy(device, params, "x", "y", out, strides, shapes.row_major(out), base, nbytes=_nbytes(call))
    )


def _part_by_part(
    call: Call, device: Device, params: Params, parts: Mapping[str, TensorSpec], whole: Shape, joins: bool
) -> Program:
    """A copy of each of the parts that make a ``whole`` along the axis: into y where that ``joins`` them, or of x."""
    axis, strides, steps = call["axis"], shapes.row_major(whole), list[Dispatch]()
    at = 0
    for name, part in parts.items():
        own, base = shapes.row_major(part.dims), at * strides[axis]
        if joins:
            source, target, lie, bases = name, "y", (own, strides), (0, base)
        else:
            source, target, lie, bases = "x", name, (strides, own), (base, 0)
        steps += strided_copy(device, params, source, target, part.dims, *lie, *bases, nbytes=part.dtype.nbytes)
        at += part.dims[axis]
    return Program(tuple(steps))


def _slice_bounds(start: int, end: int, step: int, n: int) -> tuple[int, int, int]:
    """(first index, end canonical for resolve, count) by ONNX's clamp rules for Slice-13."""
    low, high = (0, n) if step > 0 else (-1, n - 1)
    first = min(max(start + n if start < 0 else start, max(low, 0)), high)
    stop = min(max(end + n if end < 0 else end, low), high)
    count = max(0, -(-(stop - first) // step)) if n else 0
    # -1 would count from the back when read again; -n - 1 says "before the first" at any reading.
    return first, stop if stop >= 0 else -n - 1, count


def _slice_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "slice")
    starts, ends = shapes.ints(attrs["starts"]), shapes.ints(attrs["ends"])
    axes = shapes.ints(attrs["axes"]) or tuple(range(len(starts)))
    steps = shapes.ints(attrs["steps"]) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise GraphError(
            f"slice: {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps; need as many each"
        )
    if 0 in steps:
        raise GraphError(f"slice: steps {list(steps)} hold a 0; a step is positive or negative")
    shapes.axes_of("slice", axes, len(x.dims))
    rows: list[tuple[int, int, int, int]] = []
    out = list(x.dims)
    for start, end, axis, step in sorted(
        zip(starts, ends, (shapes.axis_of("slice", a, len(x.dims)) for a in axes), steps, strict=True),
        key=lambda row: row[2],
    ):
        first, stop, out[axis] = _slice_bounds(start, end, step, x.dims[axis])
        rows.append((first, stop, axis, step))
    names = ("starts", "ends", "axes", "steps")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    return {**attrs, **columns}, (TensorSpec(tuple(out), x.dtype),)


def _slice_program(call: Call, device: Device, params: Params) -> Program:
    strides = list(shapes.row_major(call.shape("x")))
    base = 0
    for start, axis, step in zip(call["starts"], call["axes"], call["steps"], strict=True):
        base += start * strides[axis]
        strides[axis] *= step
    return _copied(call, device, params, strides, base)


def _slice_reference(call: Call, arrays: Arrays) -> Outputs:
    y = shapes.given(arrays, "x")
    for start, axis, step, n in zip(
        call["starts"], call["axes"], call["steps"], (call.shape("y")[a] for a in call["axes"]), strict=True
    ):
        y = np.take(y, start + step * np.arange(n), axis)
    return [y]


def _transpose_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "transpose")
    rank = len(x.dims)
    perm = shapes.ints(attrs["perm"]) or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise GraphError(f"transpose: perm {list(perm)} is no permutation of the {rank} axes of {shape_str(x.dims)}")
    return {"perm": perm}, (TensorSpec(tuple(x.dims[p] for p in perm), x.dtype),)


def _transposed(call: Call) -> list[int]:
    """The strides of x in the order of y."""
    strides = shapes.row_major(call.shape("x"))
    return [strides[p] for p in call["perm"]]


def _transpose_program(call: Call, device: Device, params: Params) -> Program:
    return _copied(call, device, params, _transposed(call))


def _exchange(call: Call) -> Exchange | None:
    return Exchange.of(call.shape("y"), _transposed(call))


def _by_tiles(call: Call, device: Device, params: Params) -> Program:
    exchange = _exchange(call)
    assert exchange is not None
    return Program((exchange.dispatch(device, params["tile"], "x", "y"),))


def _extents(call: Call, device: Device) -> str:
    exchange = _exchange(call)
    return f"{exchange.rows} and {exchange.columns}" if exchange else "none"


_EXCHANGES = Requirement(
    "a dimension that ends x and another one that ends y, with at most 6 outside them",
    lambda call, device: _exchange(call) is not None,
    lambda call, device: f"perm={shape_str(call['perm'])} of {shape_str(call.shape('x'))}",
)
_TILES_PAY = Requirement(
    "a device that exchanges by tiles, and enough of both for one",
    lambda call, device: (exchange := _exchange(call)) is not None and exchange.pays(device),
    _extents,
)


def _concat_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    parts = shapes.variadic(specs, "x")
    if not parts:
        raise GraphError("concat needs at least one operand")
    shapes.same_dtype("concat", {f"x{i}": p for i, p in enumerate(parts)})
    first = parts[0].dims
    axis = shapes.axis_of("concat", attrs["axis"], len(first))
    for i, part in enumerate(parts):
        if len(part.dims) != len(first) or any(
            a != b for d, (a, b) in enumerate(zip(part.dims, first, strict=True)) if d != axis
        ):
            raise GraphError(
                f"concat: x{i} is {shape_str(part.dims)} and x0 is {shape_str(first)}; only axis {axis} may differ"
            )
    total = sum(part.dims[axis] for part in parts)
    return {"axis": axis}, (TensorSpec((*first[:axis], total, *first[axis + 1 :]), parts[0].dtype),)


def _concat_program(call: Call, device: Device, params: Params) -> Program:
    parts = {f"x{i}": part for i, part in enumerate(shapes.variadic(call.operands, "x"))}
    return _part_by_part(call, device, params, parts, call.shape("y"), joins=True)


# More is damage, and planning a place for each part would take for ever.
_MOST_PARTS = 1024


def _split_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "split")
    axis = shapes.axis_of("split", attrs["axis"], len(x.dims))
    n, parts = x.dims[axis], shapes.ints(attrs["num_outputs"])[0]
    sizes = shapes.ints(attrs["sizes"])
    if not sizes:
        if not 1 <= parts <= _MOST_PARTS:
            raise GraphError(f"split: num_outputs is {parts}; it needs sizes, or 1 to {_MOST_PARTS} outputs")
        each = -(-n // parts)
        sizes = tuple(min(each, max(0, n - i * each)) for i in range(parts))
    if sum(sizes) != n or min(sizes) < 0:
        raise GraphError(
            f"split: sizes {list(sizes)} add up to {sum(sizes)}; axis {axis} of {shape_str(x.dims)} has {n}"
        )
    outputs = tuple(TensorSpec((*x.dims[:axis], s, *x.dims[axis + 1 :]), x.dtype) for s in sizes)
    return {"axis": axis, "sizes": sizes, "num_outputs": len(sizes)}, outputs


def _expand_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "expand")
    out = shapes.broadcast_shape("expand", x.dims, _dims("expand", attrs["shape"]))
    return {"shape": out}, (TensorSpec(out, x.dtype),)


def _dims(op: str, value: AttrValue) -> Shape:
    dims = shapes.ints(value)
    if any(d < 0 for d in dims):
        raise GraphError(f"{op}: shape {list(dims)} has a negative dimension")
    return dims


def _tile_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "tile")
    repeats = shapes.ints(attrs["repeats"])
    if len(repeats) != len(x.dims) or any(r < 0 for r in repeats):
        raise GraphError(
            f"tile: repeats {list(repeats)} for {shape_str(x.dims)}; need {len(x.dims)} counts of 0 or more"
        )
    return {"repeats": repeats}, (TensorSpec(tuple(d * r for d, r in zip(x.dims, repeats, strict=True)), x.dtype),)


def _tile_program(call: Call, device: Device, params: Params) -> Program:
    """Each repeated axis is two index dims (repeat at stride 0, then the axis). Three axes at a time keep a
    rank-8 operand within the copy's dims after merging; what is left goes through scratch."""
    if 0 in call.shape("y"):
        return Program(())
    dims, repeats = list(call.shape("x")), call["repeats"]
    axes = [a for a, r in enumerate(repeats) if r != 1]
    batches = [axes[i : i + 3] for i in range(0, len(axes), 3)] or [[]]
    steps: list[Dispatch] = []
    scratch: dict[str, int] = {}
    source = "x"
    for i, batch in enumerate(batches):
        strides = shapes.row_major(dims)
        pairs = [
            pair
            for a, (n, s) in enumerate(zip(dims, strides, strict=True))
            for pair in ([(repeats[a], 0)] if a in batch else []) + [(n, s)]
        ]
        for a in batch:
            dims[a] *= repeats[a]
        target = "y" if i == len(batches) - 1 else f"part{i}"
        if target != "y":
            scratch[target] = int(np.prod(dims)) * _nbytes(call)
        index, own = zip(*pairs, strict=True) if pairs else ((), ())
        steps += strided_copy(device, params, source, target, index, own, shapes.row_major(index), nbytes=_nbytes(call))
        source = target
    return Program(tuple(steps), scratch=scratch, elements=frozenset(scratch))


def _route(build: Callable[[Call, Device, Params], Program]) -> tuple[Route, ...]:
    return (
        Route("strided_copy", build, tuple(STRIDED_COPIES.values()), _WHY, must=(WORDS_OR_PAIRS,), params=copy_params),
    )


TRANSPOSE = Op(
    "transpose",
    (X,),
    _transpose_resolve,
    lambda call, arrays: [np.transpose(shapes.given(arrays, "x"), call["perm"])],
    attrs=(Attr("perm", "perm", tuple[int, ...], ()),),
    routes=(
        Route(
            "tiles",
            _by_tiles,
            (TRANSPOSE_TILES,),
            "tiles in shared memory, so that reads are as dense as writes",
            must=(WORDS, _EXCHANGES),
            prefer=(_TILES_PAY,),
            params=lambda call, device: {"tile": fitting_tiles(device)},
        ),
        *_route(_transpose_program),
    ),
    cases=(
        "transpose:x=7x13,perm=1x0",
        "transpose:x=2x3x5x7,perm=0x2x3x1",
        "transpose:x=1x15x8x40,perm=0x2x1x3",
        "transpose:x=3x1x11x2x5,perm=4x2x0x3x1",
        "transpose:x=2x3x2x3x2x3x2x3,perm=7x5x3x1x6x4x2x0",
        "transpose:x=2x3x4:i32,perm=2x0x1",
        "transpose:x=scalar",
        "transpose:x=3x5x7:i64,perm=2x0x1",
        "transpose:x=67x31x3,perm=0x1x2",
        "transpose:x=2x40x33x2,perm=0x2x3x1",
        "transpose:x=2x3x36x5x68,perm=4x1x0x3x2",
    ),
    doc="y[i0, ...] = x permuted: dimension d of y is dimension perm[d] of x (default: reversed).",
)

SLICE = Op(
    "slice",
    (
        Operand("x", partial=True),
        *(Operand(n, host=True, optional=n in ("axes", "steps")) for n in ("starts", "ends", "axes", "steps")),
    ),
    _slice_resolve,
    _slice_reference,
    attrs=(
        Attr("starts", "starts", tuple[int, ...]),
        Attr("ends", "ends", tuple[int, ...]),
        Attr("axes", "axes", tuple[int, ...], ()),
        Attr("steps", "steps", tuple[int, ...], ()),
    ),
    routes=_route(_slice_program),
    cases=(
        "slice:x=17,starts=3,ends=11",
        "slice:x=5x17:i64,starts=3,ends=11,axes=1",
        "slice:x=5x7x11,starts=1x2,ends=4x100,axes=0x2",
        "slice:x=5x7x11,starts=-1x-2,ends=-100x1,axes=-1x1,steps=-2x-3",
        "slice:x=2x3x5x7,starts=0x1,ends=2x3,axes=3x2,steps=1x2",
        "slice:x=4x33:i32,starts=30,ends=3,axes=1,steps=-4",
        "slice:x=9x4,starts=-9223372036854775808,ends=9223372036854775807,axes=0,steps=2",
    ),
    doc="Part of x per ONNX Slice-13: starts and ends clamp to the axis, steps may be negative.",
)

CONCAT = Op(
    "concat",
    (Operand("x", variadic=True),),
    _concat_resolve,
    lambda call, arrays: [
        np.concatenate([shapes.given(arrays, f"x{i}") for i in range(len(call.operands))], call["axis"])
    ],
    attrs=(Attr("axis", "axis", int),),
    routes=_route(_concat_program),
    cases=(
        "concat:x0=3x5,x1=3x2,axis=1",
        "concat:x0=2x3x5x7,x1=2x4x5x7,x2=2x1x5x7,axis=1",
        "concat:x0=11,x1=1,x2=30,axis=-1",
        "concat:x0=2x3:i32,x1=5x3:i32,axis=0",
        "concat:x0=2x0x3,x1=2x2x3,axis=1",
        "concat:x0=4x9,axis=0",
        "concat:x0=2x3:i64,x1=2x5:i64,axis=1",
    ),
    doc="Operands joined along axis, one copy each into its part of y.",
)

SPLIT = Op(
    "split",
    (X, Operand("sizes", host=True, optional=True)),
    _split_resolve,
    lambda call, arrays: np.split(shapes.given(arrays, "x"), np.cumsum(call["sizes"])[:-1], call["axis"]),
    attrs=(
        Attr("axis", "axis", int, 0),
        Attr("sizes", "sizes", tuple[int, ...], ()),
        Attr("num_outputs", "outputs", int, 0),
    ),
    routes=_route(
        lambda call, device, params: _part_by_part(call, device, params, call.outputs, call.shape("x"), joins=False)
    ),
    variadic_outputs=True,
    cases=(
        "split:x=10x3,sizes=2x3x5",
        "split:x=2x7x5,axis=1,outputs=3",
        "split:x=2x3x9:i32,axis=-1,sizes=1x8",
        "split:x=4x6,axis=1,sizes=0x6",
        "split:x=3x7:i64,axis=1,outputs=2",
    ),
    doc="x cut along axis into sizes, or into num_outputs equal parts (the last one smaller).",
)

EXPAND = Op(
    "expand",
    (X, Operand("shape", host=True)),
    _expand_resolve,
    lambda call, arrays: [np.broadcast_to(shapes.given(arrays, "x"), call["shape"])],
    attrs=(Attr("shape", "shape", tuple[int, ...]),),
    routes=_route(
        lambda call, device, params: _copied(
            call, device, params, shapes.broadcast_strides(call.shape("x"), call.shape("y"))
        )
    ),
    cases=(
        "expand:x=3x1,shape=3x7",
        "expand:x=1x5x1x7,shape=2x1x3x1",
        "expand:x=scalar,shape=5x13",
        "expand:x=4:i32,shape=2x3x4",
        "expand:x=5x1:i64,shape=3x5x7",
    ),
    doc="x broadcast to the numpy broadcast of its shape and shape.",
)

TILE = Op(
    "tile",
    (X, Operand("repeats", host=True)),
    _tile_resolve,
    lambda call, arrays: [np.tile(shapes.given(arrays, "x"), call["repeats"])],
    attrs=(Attr("repeats", "repeats", tuple[int, ...]),),
    routes=_route(_tile_program),
    cases=(
        "tile:x=5,repeats=3",
        "tile:x=2x3x5,repeats=1x2x3",
        "tile:x=2x3x2x3x2x1x2x3,repeats=2x2x2x2x1x3x2x2",
        "tile:x=7x11:i32,repeats=1x1",
        "tile:x=3x4,repeats=0x2",
        "tile:x=3x4:i64,repeats=2x3",
    ),
    doc="x repeated repeats[d] times along every dimension d.",
)
