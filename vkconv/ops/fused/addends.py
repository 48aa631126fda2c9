"""What gemm_reduce and conv_reduce add to a product before they activate and reduce it: a residual, and a second one.

Each broadcasts to the product as numpy has it. A residual alone that is as large as the product is added as the
product's own op adds one; all else takes variants of the kernels that know where the numbers of an addend lie
(shaders/include/addends.glsl).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, Shape, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import F64, Arrays, Attrs, Op, Operand, Specs
from vkconv.ops.core.shapes import broadcast_strides, row_major
from vkconv.ops.kernels.epilogue import RESIDUAL_ADDED
from vkconv.ops.kernels.strided import MAX_RANK, STRIDED_COPY, Walk, merge, strided_copy, walk_defaults
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.program import Dispatch, Inner, Word
from vkconv.requirement import Requirement
from vkconv.route import Sub

RESIDUALS = ("residual", "residual2")
SECOND = Operand("residual2", optional=True)
BROADCAST = ("BROADCAST", "")
# The inner call that adds two of them up, and the buffer that holds what the product's own op adds.
_SUM, ADDED = "add", "added"
_ADD = next(op for op in BINARY_OPS if op.name == "add")


def product_call(first: Op, operands: Specs, attrs: Attrs) -> Call:
    """The first step's call: all that is added to the product is one residual, as large as that."""
    bare = first.call({name: spec for name, spec in operands.items() if name not in RESIDUALS}, attrs)
    if operands.get("residual") is None:
        return bare
    return dataclasses.replace(bare, operands={**bare.operands, "residual": bare.outputs["y"]})


def check_residuals(op: str, operands: Specs, full: TensorSpec, outer: int) -> None:
    """GraphError unless both broadcast to the product, ``full``, whose first ``outer`` dimensions are batches."""
    if operands.get("residual2") is not None and operands.get("residual") is None:
        raise GraphError(f"{op}: there is a residual2 and no residual; name the only one residual")
    for name in RESIDUALS:
        spec = operands.get(name)
        if spec is None:
            continue
        aligned = zip(spec.dims[::-1], full.dims[::-1], strict=False)
        if spec.dtype is not full.dtype or len(spec.dims) > len(full.dims) or any(d not in (1, n) for d, n in aligned):
            raise GraphError(
                f"{op}: {name} is {spec}, and the product that it is added to {full}; aligned at the right its "
                "dimensions are those of the product or 1"
            )
        if sum(map(bool, _over(spec.dims, full.dims, range(outer)).strides[0])) > 1:
            raise GraphError(
                f"{op}: {name} ({shape_str(spec.dims)}) repeats over batches between others, of "
                f"{shape_str(full.dims[:outer])}; expand it along these first"
            )
    rank = _walked(operands, full)
    if rank > MAX_RANK:
        raise GraphError(f"{op}: {rank} dimensions of the residuals stay after merging; at most {MAX_RANK} can")


def _walked(operands: Specs, full: TensorSpec) -> int:
    strides = (broadcast_strides(spec.dims, full.dims) for name in RESIDUALS if (spec := operands.get(name)))
    return merge(full.dims, row_major(full.dims), *strides).rank


def _over(dims: Shape, full: Shape, axes: Sequence[int]) -> Walk:
    """The walk over an addend along some dimensions of the product."""
    strides = broadcast_strides(dims, full)
    return merge([full[axis] for axis in axes], [strides[axis] for axis in axes])


def is_plain(call: Call, product: Call) -> bool:
    """Whether the product's own op adds all that is added: nothing, or a residual as large as it."""
    residual = call.operands.get("residual")
    return not call.has("residual2") and (residual is None or residual.size == product.outputs["y"].size)


def count_bound(call: Call, product: Call) -> int:
    """Storage buffers that the fused kernels bind for what is added."""
    return int(call.has("residual")) if is_plain(call, product) else len(RESIDUALS)


def added_arrays(arrays: Arrays, full: Shape) -> Arrays:
    """Operands of a call as those of its `product_call`: what is added, in float64, as one residual."""
    given = [np.asarray(arrays[name], np.float64) for name in RESIDUALS if arrays.get(name) is not None]
    if not given:
        return arrays
    total: F64 = np.zeros(full)
    with np.errstate(all="ignore"):
        for array in given:
            total = total + array
    return {**{name: array for name, array in arrays.items() if name != "residual2"}, "residual": total}


# ---- in fused kernels


@dataclasses.dataclass(frozen=True, slots=True)
class Lie:
    """How an addend lies: ``run`` batches share one of its ``count`` matrices, ``outer`` elements apart; its rows are
    ``row`` elements apart, and of ``width`` columns, lines ``line`` apart, columns ``column``. 0 where it repeats."""

    run: int
    count: int
    outer: int
    row: int
    width: int
    line: int
    column: int

    @staticmethod
    def of(dims: Shape, full: Shape, row: int, columns: Sequence[int]) -> "Lie":
        """That of an addend beside a product whose matrices have rows and columns along these dimensions."""
        over = _over(dims, full, [axis for axis in range(len(full)) if axis not in (row, *columns)])
        at = next((i for i, step in enumerate(over.strides[0]) if step), None)
        run, count, outer = 1, 1, 0
        if at is not None:
            run, count, outer = int(np.prod(over.dims[at + 1 :], dtype=np.int64)), over.dims[at], over.strides[0][at]
        along = _over(dims, full, columns)
        width, steps = (1, (along.strides[0][0], 0)) if along.rank == 1 else (along.dims[1], along.strides[0])
        return Lie(run, count, outer, broadcast_strides(dims, full)[row], width, *steps)

    def constants(self, which: str) -> dict[str, Word]:
        """The specialization constants of the kernels for the FIRST or the SECOND."""
        return {f"{which}_{name.upper()}": value for name, value in dataclasses.asdict(self).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Added:
    """What a fused launch takes for its addends besides the residual of the product's own op: defines, specialization
    constants and buffers."""

    defines: tuple[tuple[str, str], ...] = ()
    constants: Mapping[str, Word] = dataclasses.field(default_factory=dict)
    buffers: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


def added(call: Call, product: Call, row: int, columns: Sequence[int]) -> Added:
    """That of a call whose product has rows and columns along these of its dimensions."""
    if is_plain(call, product):
        return Added()
    full, lies = product.shape("y"), dict[str, Word]()
    for name, which in zip(RESIDUALS, ("FIRST", "SECOND"), strict=True):
        # Of a second one that is not there kernels know nothing but that.
        dims = call.shape(name) if call.has(name) else ()
        lies |= Lie.of(dims, full, row, columns).constants(which)
    second = "residual2" if call.has("residual2") else None
    return Added((BROADCAST,), {**lies, "HAS_SECOND": second is not None}, {"residual2": second})


BROADCASTING = (RESIDUAL_ADDED, BROADCAST)
"""The defines of the variants that `added` asks for."""

# ---- in turn


def sum_calls(call: Call, product: Call) -> dict[str, Sub]:
    """The inner call that adds two residuals up, to the product's shape, where there are two."""
    if not call.has("residual2"):
        return {}
    made = _ADD.call({"a": call.operands["residual"], "b": call.operands["residual2"]})
    return {_SUM: Sub(dataclasses.replace(made, outputs={"y": product.outputs["y"]}), _ADD.routes)}


def summed(call: Call, product: Call, device: Device) -> tuple[Dispatch | Inner, ...]:
    """The steps that bring what is added to `ADDED`, in the product's shape; none where its own op adds it."""
    if is_plain(call, product):
        return ()
    if call.has("residual2"):
        return (Inner(_SUM, {"a": "residual", "b": "residual2", "y": ADDED}),)
    full = product.shape("y")
    return strided_copy(
        device,
        walk_defaults(device),
        "residual",
        ADDED,
        full,
        broadcast_strides(call.shape("residual"), full),
        row_major(full),
    )


SUMMING = (*_ADD.routes[0].shaders, STRIDED_COPY)
"""Shaders that the steps of `summed` may use."""


def plain(product: Callable[[Call], Call]) -> Requirement:
    """The requirement that the product's own op adds all that is added."""
    return Requirement(
        "at most one residual, as large as the product",
        lambda call, device: is_plain(call, product(call)),
        lambda call, device: " and ".join(str(call.operands[name]) for name in RESIDUALS if call.has(name)) or "none",
    )
