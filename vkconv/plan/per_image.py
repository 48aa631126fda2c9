"""Calls that do with each image of a batch what they do with it alone: what they are of some of the images only."""

import dataclasses
from collections.abc import Callable, Collection, Mapping

from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Op
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.ops.pointwise.logic import LOGIC_OPS
from vkconv.ops.pointwise.select import COMPARE_OPS
from vkconv.ops.pointwise.unary import UNARY_OPS

_ELEMENTWISE = {op.name for op in (*UNARY_OPS, *BINARY_OPS, *LOGIC_OPS, *COMPARE_OPS)} | {"cast", "chain", "where"}
# The operands that may hold images, beside weights that may not.
_BESIDE_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "batch_norm": ("x",),
    "conv2d": ("x", "residual"),
    "conv_reduce": ("x", "residual", "residual2"),
    "conv_transpose2d": ("x",),
    "depth_to_space": ("x",),
    "group_norm": ("x",),
    "instance_norm": ("x",),
    "inverted_residual": ("x", "residual"),
    "pool2d": ("x",),
    "prelu": ("x",),
    "prologue_conv2d": ("x", "residual"),
    "separable_conv2d": ("x", "residual"),
    "space_to_depth": ("x",),
    "squeeze_excite": ("x",),
}
# Whether a call leaves the images apart, where that hangs on its attributes.
_APART: Mapping[str, Callable[[Call], bool]] = {
    "concat": lambda call: call["axis"] != 0,
    "conv_reduce": lambda call: 0 not in call["axes"],
    "softmax": lambda call: call["axis"] != 0,
    "transpose": lambda call: call["perm"][0] == 0,
}


def _may_hold(call: Call) -> Collection[str]:
    """The operands that may hold images; none where images are not apart."""
    is_apart = _APART.get(call.op)
    if (is_apart is not None and not is_apart(call)) or not str(call.attrs.get("layout", "N")).startswith("N"):
        return ()
    if call.op in _BESIDE_WEIGHTS:
        return _BESIDE_WEIGHTS[call.op]
    if call.op in _ELEMENTWISE or call.op in _APART:
        # One of fewer dimensions is broadcast along that of the images.
        rank = max(len(spec.dims) for spec in call.outputs.values())
        return [name for name, spec in call.operands.items() if spec is not None and len(spec.dims) == rank]
    return ()


def of_images(call: Call, op: Op, holds: Collection[str], images: int, part: int) -> Call | None:
    """The call for ``part`` of the ``images`` that the operands ``holds`` hold, in their first dimension, as its
    outputs do; None where it does not do with each image what it does with it alone."""
    if not set(holds) <= set(_may_hold(call)):
        return None

    def fewer(spec: TensorSpec) -> TensorSpec:
        return dataclasses.replace(spec, shape=(part, *spec.dims[1:]))

    held = [spec for name, spec in call.operands.items() if name in holds and spec is not None]
    if not all(spec.dims and spec.dims[0] == images for spec in (*held, *call.outputs.values())):
        return None
    specs = {name: fewer(spec) if name in holds and spec else spec for name, spec in call.operands.items()}
    try:
        made = op.call(specs, call.attrs)
    except GraphError:
        return None
    return made if made.outputs == {name: fewer(spec) for name, spec in call.outputs.items()} else None
