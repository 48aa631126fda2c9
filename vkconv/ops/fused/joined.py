"""A sum over the batches of a product as one product: the batches are joined along k.

The sum of A_b B_b over b is [A_0 A_1 ...] times the B_b below each other. What lies so in memory already, b, and a
where trans_a is on, is read where it is; another operand is copied first, which moves less than the products that are
never stored. The sum is in f32 all the way.
"""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.core.shapes import row_major
from vkconv.ops.fused.definition import SUMS, is_single
from vkconv.ops.fused.in_turn import repeating
from vkconv.ops.kernels.strided import STRIDED_COPY, strided_copy, walk_defaults
from vkconv.ops.matmul.op import MATMUL
from vkconv.program import Composite, Dispatch, Inner
from vkconv.requirement import Requirement
from vkconv.route import Params, Route, Sub

_PRODUCTS = repeating(MATMUL)
_PRODUCT_ATTRS = tuple(attr.name for attr in MATMUL.attrs)


def _sums(call: Call) -> bool:
    plain = call["act"] == "none" and (call["out_scale"], call["out_shift"]) == (1, 0) and not call.has("residual")
    return call["axis"] == "b" and call["op"] in SUMS and is_single(call) and plain


def _batches(call: Call) -> int:
    return math.prod(call.shape("a")[:-2])


def _lies(call: Call, name: str) -> bool:
    """Whether an operand's batches lie along k as they are."""
    along_rows = call["trans_a"] if name == "a" else not call["trans_b"]
    return bool(along_rows) or call.shape(name)[-2] == 1


def _copied_bytes(call: Call) -> int:
    return sum(2 * call.specs[name].nbytes for name in "ab" if not _lies(call, name))


def _saved_bytes(call: Call) -> int:
    """Of all products, written and read again."""
    rows, columns = call.shape("a")[-1 if call["trans_a"] else -2], call.shape("b")[-2 if call["trans_b"] else -1]
    return 2 * _batches(call) * rows * columns * call.outputs["y"].dtype.nbytes


def joined(call: Call) -> Call:
    """The one product, of which y may lack dimensions of 1 that the call keeps."""
    batches = _batches(call)

    def along_k(name: str, transposed: bool, by_rows: bool) -> TensorSpec:
        spec = call.specs[name]
        rows, columns = spec.dims[-2:]
        return TensorSpec((batches * rows, columns) if transposed is by_rows else (rows, batches * columns), spec.dtype)

    operands = {
        "a": along_k("a", bool(call["trans_a"]), True),
        "b": along_k("b", bool(call["trans_b"]), False),
        "bias": call.operands.get("bias"),
        "residual": None,
    }
    attrs = {name: call[name] for name in _PRODUCT_ATTRS}
    if call["op"] == "mean":
        attrs["alpha"] /= batches
    elif call.has("bias"):
        attrs["beta"] *= batches
    made = MATMUL.call(operands, attrs)
    return dataclasses.replace(made, outputs={"y": TensorSpec(made.shape("y"), call.outputs["y"].dtype)})


def _copy(call: Call, name: str, device: Device) -> Dispatch:
    """The launch that brings the batches of an operand (batches, rows, k) beside each other, (rows, batches, k)."""
    rows, k = call.shape(name)[-2:]
    dims = (rows, _batches(call), k)
    (step,) = strided_copy(
        device, walk_defaults(device), name, f"{name}.joined", dims, (k, rows * k, 1), row_major(dims)
    )
    return step


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    return {MATMUL.name: Sub(joined(call), _PRODUCTS)}


def _program(call: Call, device: Device, params: Params) -> Composite:
    copied = [name for name in "ab" if not _lies(call, name)]
    scratch = {f"{name}.joined": 4 * call.specs[name].size for name in copied}
    copies = tuple(_copy(call, name, device) for name in copied)
    steps: tuple[Dispatch | Inner, ...] = (*copies, Inner(MATMUL.name, {name: f"{name}.joined" for name in copied}))
    return Composite(steps, scratch=scratch, elements=frozenset(scratch))


def _note(call: Call, device: Device, params: Params) -> str:
    copied = [name for name in "ab" if not _lies(call, name)]
    first = f"{' and '.join(copied)} copied, {bytes_str(_copied_bytes(call))}; " if copied else ""
    k = joined(call).shape("b")[-1 if call["trans_b"] else -2]
    return f"{first}one sum over {k}, {bytes_str(_saved_bytes(call))} less to write and read"


SUM_OF_BATCHES = Requirement(
    "one sum or mean over batches alone, of products without activation, scale or residual",
    lambda call, device: _sums(call),
    lambda call, device: f"{call['op']} along {call['axis']}, {call['act']}, {', '.join(call.outputs)}",
)
OWN_BATCHES = Requirement(
    "operands that both have all batches, and elements to sum",
    lambda call, device: call.shape("a")[:-2] == call.shape("b")[:-2] and all(s.size for s in call.specs.values()),
    lambda call, device: f"{call.specs['a']} and {call.specs['b']}",
)
LESS_IS_COPIED = Requirement(
    "operands that lie along k, or whose copies take no more bytes than the products would",
    lambda call, device: _copied_bytes(call) <= _saved_bytes(call),
    lambda call, device: f"{bytes_str(_copied_bytes(call))} and {bytes_str(_saved_bytes(call))}",
)
JOINED = Route(
    "joined",
    _program,
    tuple(dict.fromkeys((STRIDED_COPY, *(s for route in _PRODUCTS for s in route.shaders)))),
    "a sum over batches is one product whose batches are joined along k, so that no product of a batch is stored; "
    "split-K fills the device where its tiles are few",
    (FLOATS, SUM_OF_BATCHES, OWN_BATCHES),
    (LESS_IS_COPIED,),
    "rocMLIR reduction-fusion RFC, stage 2",
    inner=_inner,
    note=_note,
)
