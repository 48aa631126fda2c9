"""conv_transpose2d as a matrix product: every input by every tap into scratch, then sums of what reaches an output."""

import math
from collections.abc import Iterator

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import push
from vkconv.ops.conv.transpose.phases import axes, reaching
from vkconv.ops.core.base import over_invocations
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.ops.kernels.products import SCRATCH_BYTES, SHADERS, Slab, params, product, slabs
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

COL2IM = Shader(shaders.transpose.CONV_TRANSPOSE2D_COL2IM)


def _row_bytes(call: Call) -> int:
    """Products of one row of x of one image."""
    return 4 * int(call["groups"]) * math.prod(call.shape("w")[1:]) * call.shape("x")[3]


def _inputs(call: Call, first: int, count: int) -> tuple[int, int]:
    """Rows of x, the first and one past the last, that reach ``count`` rows of the output from ``first`` on."""
    h, at = call.shape("x")[2], first + call["padding"][0]
    reach, stride = _reach(call), call["stride"][0]
    begin, end = -((reach - at) // stride), (at + count - 1) // stride + 1
    begin = min(max(begin, 0), h - 1)
    return begin, max(min(end, h), begin + 1)


def _reach(call: Call) -> int:
    """Rows of the output from the first to the last that one row of x reaches, less one."""
    return int((call.shape("w")[2] - 1) * call["dilation"][0])


def _slabs(call: Call) -> Iterator[tuple[Slab, int, int]]:
    """Images and rows of the output that are made together, and the rows of x that reach them."""
    n, h = call.shape("x")[0], call.shape("x")[2]
    most = SCRATCH_BYTES // _row_bytes(call)
    oh = call.shape("y")[2]
    if most >= h:
        for slab in slabs(n, h, most):
            yield Slab(slab.image, slab.images, 0, oh), 0, h
        return
    count = max(1, min(oh, most * call["stride"][0] - _reach(call)))
    for slab in slabs(n, oh, count):
        yield slab, *_inputs(call, slab.first, slab.count)


def _layout(call: Call, slab: Slab, begin: int, end: int) -> GemmProblem:
    """w (C_out / groups KH KW, C_in / groups) by rows of x (C_in / groups, rows W) of each image and group."""
    _, c_in, h, w = call.shape("x")
    groups = call["groups"]
    m, k, columns = math.prod(call.shape("w")[1:]), c_in // groups, (end - begin) * w
    each = ((slab.images, 0, c_in * h * w), (groups, k * m, k * h * w))
    batch = tuple(row for row in each if row[0] > 1)
    base = (0, (slab.image * c_in * h + begin) * w, 0)
    return GemmProblem(m, columns, k, (1, m), (h * w, 1), (columns, 1), batch, base=base)


def _build(call: Call, device: Device, params: Params) -> Program:
    c_out, ow = call.shape("y")[1], call.shape("y")[3]
    h, w = axes(call)
    steps: list[Dispatch] = []
    most, e = 0, Epilogue.of(call, device)
    for slab, begin, end in _slabs(call):
        g = _layout(call, slab, begin, end)
        most = max(most, slab.images * (end - begin))
        rows = {"first_image": slab.image, "images": slab.images, "first_row": begin, "rows": end - begin}
        rows |= {"first_output": slab.first, "outputs": slab.count}
        steps += [
            product(params["tile"], g, ("w", "x"), Epilogue(target="products"), device),
            Dispatch(
                COL2IM,
                {"x": "products", "y": e.target, **e.buffers},
                *over_invocations(slab.images * c_out * slab.count * ow, alone_by_default(device), device),
                {**push(call, e), **rows},
                {**e.constants, **reaching(h, w)},
                loop_iterations=h.most_taps * (1 + w.most_taps),
            ),
        ]
    made = Program(tuple(steps), scratch={"products": _row_bytes(call) * most})
    return e.complete(made, call.shape("y"), device)


WITHIN_SCRATCH = Requirement.of(
    f"the products of one row of the output in {bytes_str(SCRATCH_BYTES)}",
    lambda call: min(_reach(call) // int(call["stride"][0]) + 1, call.shape("x")[2]) * _row_bytes(call),
    lambda nbytes: nbytes <= SCRATCH_BYTES,
    bytes_str,
)

_LEAST_TERMS = Policy("transpose.gemm_terms", int)


def _terms(call: Call) -> int:
    return int(call.shape("w")[0]) // int(call["groups"])


MANY_TERMS = Requirement(
    "as many input channels per group as pay for products in scratch on such devices",
    lambda call, device: _terms(call) >= _LEAST_TERMS.of(device),
    lambda call, device: f"{_terms(call)} per group, at least {_LEAST_TERMS.of(device)}",
)

TRANSPOSED_GEMM = Route(
    "transposed_gemm",
    _build,
    (COL2IM, STRIDED_COPY, *SHADERS),
    why="every input meets every tap: a plain matrix product of the whole, with w as it lies, and a cheap sum of what "
    "reaches each output; tiles of rows keep the products within 16 MiB",
    must=(FLOATS, WITHIN_SCRATCH),
    prefer=(ON_GPU, MANY_TERMS),
    params=lambda call, device: params(_layout(call, *next(_slabs(call))), device, element_of(call)),
)
