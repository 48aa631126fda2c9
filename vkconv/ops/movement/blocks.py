"""depth_to_space and space_to_depth: blocks of pixels as channels, and back."""

from collections.abc import Callable, Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import WORDS_OR_PAIRS
from vkconv.ops.kernels.strided import STRIDED_COPIES, copy_params, strided_copy
from vkconv.program import Program
from vkconv.route import Params, Route

# How x (n, c, h, w) is cut, and the order in which the parts make y: ONNX's definitions of both ops.
Cut = Callable[[tuple[int, ...], int], tuple[int, ...]]
_DEPTH: Mapping[str, tuple[Cut, tuple[int, ...]]] = {
    "dcr": (lambda x, b: (x[0], b, b, x[1] // b**2, x[2], x[3]), (0, 3, 4, 1, 5, 2)),
    "crd": (lambda x, b: (x[0], x[1] // b**2, b, b, x[2], x[3]), (0, 1, 4, 2, 5, 3)),
}
_SPACE: Mapping[str, tuple[Cut, tuple[int, ...]]] = {
    "dcr": (lambda x, b: (x[0], x[1], x[2] // b, b, x[3] // b, b), (0, 3, 5, 1, 2, 4)),
    "crd": (lambda x, b: (x[0], x[1], x[2] // b, b, x[3] // b, b), (0, 1, 3, 5, 2, 4)),
}


def _blocks(name: str, table: Mapping[str, tuple[Cut, tuple[int, ...]]], doc: str, cases: tuple[str, ...]) -> Op:
    def resolve(specs: Specs, attrs: Attrs) -> Resolved:
        x, block = shapes.operand(specs, "x", name), shapes.ints(attrs["block"])[0]
        if len(x.dims) != 4:
            raise GraphError(f"{name}: x is {x}; it takes (n, c, h, w)")
        shapes.one_of(name, attrs, "mode", table)
        n, c, h, w = x.dims
        split = (c,) if name == "depth_to_space" else (h, w)
        unit = block**2 if name == "depth_to_space" else block
        if block < 1 or any(d % unit for d in split):
            raise GraphError(
                f"{name}: x is {x} and block {block}, which is at least 1; {' and '.join(map(str, split))} must be "
                f"multiples of {unit}"
            )
        if name == "depth_to_space":
            out = (n, c // unit, h * block, w * block)
        else:
            out = (n, c * block**2, h // block, w // block)
        return attrs, (TensorSpec(out, x.dtype),)

    def program(call: Call, device: Device, params: Params) -> Program:
        cut, order = table[call["mode"]]
        parts = cut(call.shape("x"), call["block"])
        strides, out = shapes.row_major(parts), [parts[i] for i in order]
        own = [strides[i] for i in order]
        nbytes = call.outputs["y"].dtype.nbytes
        return Program(strided_copy(device, params, "x", "y", out, own, shapes.row_major(out), nbytes=nbytes))

    def reference(call: Call, arrays: Arrays) -> Outputs:
        cut, order = table[call["mode"]]
        x = shapes.given(arrays, "x")
        return [np.transpose(x.reshape(cut(x.shape, call["block"])), order).reshape(call.shape("y"))]

    return Op(
        name,
        (Operand("x"),),
        resolve,
        reference,
        attrs=(Attr("block", "block", int), Attr("mode", "mode", str, "dcr")),
        routes=(
            Route(
                "strided_copy",
                program,
                tuple(STRIDED_COPIES.values()),
                "one strided copy: writes are dense, reads at any stride",
                must=(WORDS_OR_PAIRS,),
                params=copy_params,
            ),
        ),
        cases=cases,
        doc=doc,
    )


DEPTH_TO_SPACE = _blocks(
    "depth_to_space",
    _DEPTH,
    "Channels of (n, c, h, w) as blocks of block x block pixels: c counts blocks first (dcr) or last (crd).",
    ("depth_to_space:x=2x12x5x7,block=2", "depth_to_space:x=1x18x3x4,block=3,mode=crd"),
)
SPACE_TO_DEPTH = _blocks(
    "space_to_depth",
    _SPACE,
    "Blocks of block x block pixels of (n, c, h, w) as channels, counted before (dcr) or after (crd) those of x.",
    ("space_to_depth:x=2x3x4x10,block=2", "space_to_depth:x=1x2x6x9,block=3,mode=crd"),
)
