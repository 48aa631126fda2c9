"""conv2d with a stride and few input channels, a network's stem, as one without: blocks of pixels are channels.

A block is as large as the stride, or a divisor of it along either side: of 7x7 with stride 2 over 3 channels, blocks of
2x2 make 4x4 with stride 1 over 12. One launch makes the blocks, padding put in, and the weights are arranged in the
same way, zeros where a tap of blocks reaches beyond the kernel. The sums are those of the call, and zeros.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Self

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, bytes_str, ceil_div, divisors, shape_str
from vkconv.device import Device, target_of
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.conv.common import GROUPS_1, LARGER_THAN_1X1, NO_DILATION
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE, COOPERATIVE_AS_IT_LIES, FILLS_MATRICES
from vkconv.ops.conv.conv2d.direct import DIRECT_ROUTE, DIRECT_TILE, POINTWISE_ROUTE, POINTWISE_VEC4_ROUTE
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM
from vkconv.ops.conv.conv2d.in_registers import WIDE_IN_HALVES
from vkconv.ops.conv.conv2d.subgroup import SUBGROUP_TILE, estimated_ns
from vkconv.ops.core.base import divisor, over_invocations
from vkconv.ops.core.bindings import most_bound
from vkconv.ops.core.requirements import FLOATS, INT32, MOST_INT, lane_by_lane, loop_iterations, unrolls
from vkconv.ops.core.views import View
from vkconv.ops.kernels.coopmat import EIGHT
from vkconv.ops.kernels.cpu_cost import COSTS
from vkconv.policy import Policy
from vkconv.program import Composite, Dispatch, Inner, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub, Verdict, judge, may_take

BLOCKS = Shader(shaders.conv2d.SPACE_TO_DEPTH, DType.U32)
# Moves words of 16 bits, whatever they are.
BLOCKS_LAST = Shader(shaders.conv2d.SPACE_TO_DEPTH, DType.U16, (("LAST", ""),))
_INNER = "conv2d"
# What takes the blocks as planes: of these, the one that conv2d would take.
_OF_PLANES = (
    COOPERATIVE,
    SUBGROUP_TILE,
    POINTWISE_VEC4_ROUTE,
    IMPLICIT_GEMM,
    POINTWISE_ROUTE,
    DIRECT_TILE,
    DIRECT_ROUTE,
)
_OF_VECTORS = (COOPERATIVE_AS_IT_LIES,)
_LANES = {False: 64, True: 128}  # of a workgroup that makes planes, and vectors
_WORDS = (4, 2, 1)  # elements of a row that are read at once
_MOST_STRIDE = 16  # whose divisors are looked for, and whose blocks are channels


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """Blocks along one side: elements of one, with which element of the padded input the first begins, counted
    backwards from the input's first, how many there are, and taps and stride of the windows over them. ``before`` is
    how many elements before its first tap a window's first block begins."""

    block: int
    origin: int
    count: int
    taps: int
    stride: int
    before: int

    @classmethod
    def of(cls, block: int, out: int, kernel: int, stride: int, pad: int) -> Self:
        """Those of a side of a call, whose blocks begin with the input where that takes no more taps."""
        with_input = -pad % block
        before = with_input if ceil_div(kernel + with_input, block) == ceil_div(kernel, block) else 0
        taps = ceil_div(kernel + before, block)
        return cls(block, pad + before, (out - 1) * (stride // block) + taps, taps, stride // block, before)


@dataclasses.dataclass(frozen=True, slots=True)
class Blocked:
    """A call by blocks of so many rows and columns."""

    call: Call
    block: tuple[int, int]

    @property
    def sides(self) -> tuple[Side, Side]:
        """Along h and w."""
        call = self.call
        lists = (self.block, call.shape("y")[2:], call.shape("w")[2:], call["stride"], call["padding"][:2])
        h, w = (Side.of(*values) for values in zip(*lists, strict=True))
        return h, w

    @property
    def channels(self) -> int:
        """Of a block."""
        return int(self.call.shape("x")[1]) * math.prod(self.block)

    @property
    def inside(self) -> Call:
        """The convolution of the blocks: with all that follows the sums, and without padding."""
        call, (h, w) = self.call, self.sides
        dtype = call.half or DType.F32
        x = TensorSpec((call.shape("x")[0], self.channels, h.count, w.count), dtype)
        weights = TensorSpec((call.shape("w")[0], self.channels, h.taps, w.taps), dtype)
        attrs = {**call.attrs, "stride": (h.stride, w.stride), "padding": (0, 0, 0, 0)}
        return dataclasses.replace(call, operands={**call.operands, "x": x, "w": weights}, attrs=attrs)

    def size(self, last: bool) -> int:
        """Elements of the blocks, as vectors of channels or as planes."""
        n, channels, *plane = self.inside.shape("x")
        return int(n) * (ceil_div(channels, EIGHT) * EIGHT if last else channels) * math.prod(plane)

    @property
    def weights_size(self) -> int:
        """Elements of the weights for blocks."""
        return math.prod(self.inside.shape("w"))

    def of_input(self, device: Device, last: bool) -> Dispatch:
        """The launch that makes ``blocks`` of the input."""
        h, w = self.sides
        return self._dispatch(device, "x", "blocks", (h.count, w.count), (h.origin, w.origin), last)

    def of_weights(self, device: Device) -> Dispatch:
        """The launch that arranges the weights as ``arranged``: tap i of a block's row j is tap i * block + j - before
        of the kernel."""
        h, w = self.sides
        return self._dispatch(device, "w", "arranged", (h.taps, w.taps), (h.before, w.before), False)

    def _dispatch(
        self, device: Device, source: str, target: str, made: tuple[int, int], origin: tuple[int, int], last: bool
    ) -> Dispatch:
        n, channels, h, w = self.call.shape(source)
        (to_h, to_w), (top, left), (rows, columns) = made, origin, self.block
        word = next(word for word in _WORDS if not any(extent % word for extent in (w, left, columns)))
        constants: dict[str, Word] = {"C": channels, "BH": rows, "BW": columns}
        return Dispatch(
            BLOCKS_LAST if last else BLOCKS,
            {"x": source, "y8" if last else "y": target},
            *over_invocations(n * to_h * to_w, _LANES[last], device),
            {
                **{"n": n, "h": h, "w": w, "to_h": to_h, "to_w": to_w, "top": top, "left": left},
                **divisor("plane", to_h * to_w),
                **divisor("row", to_w),
            },
            {**constants, "WORD": word} if last else constants,
            loop_iterations=channels * rows * columns,
        )


def _named(name: str) -> tuple[int, int]:
    rows, columns = map(int, name.split("x"))
    return rows, columns


def _names(call: Call) -> list[str]:
    """Blocks of more than a pixel that divide the stride, the largest first."""
    if max(call["stride"]) > _MOST_STRIDE:
        return []
    sides = itertools.product(*(reversed(divisors(int(stride))) for stride in call["stride"]))
    return [shape_str(block) for block in sides if math.prod(block) > 1]


def _bytes(call: Call, name: str) -> int:
    """Of the larger of both that are made, however the blocks are."""
    blocked = Blocked(call, _named(name))
    return (call.half or DType.F32).nbytes * max(blocked.size(True), blocked.weights_size)


def _least_bytes(call: Call) -> int:
    return min((_bytes(call, name) for name in _names(call)), default=0)


def _fits(call: Call, name: str, device: Device) -> bool:
    nbytes = _bytes(call, name)
    return nbytes <= most_bound(device) and nbytes // (call.half or DType.F32).nbytes <= MOST_INT


def _fitting(call: Call, device: Device) -> list[str]:
    return [name for name in _names(call) if _fits(call, name, device)]


def _as_vectors(call: Call, name: str, device: Device) -> bool:
    """Whether matrix units take the blocks with channels last."""
    return may_take(COOPERATIVE_AS_IT_LIES, Blocked(call, _named(name)).inside, device)


def _params(call: Call, device: Device) -> Legal:
    names = _fitting(call, device)
    vectors = all(_as_vectors(call, name, device) for name in names)
    return {"block": tuple(names), "last": (1, 0) if vectors else (0,)}


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    legal = _params(call, device)
    if any(params[name] not in values for name, values in legal.items()):
        return {}  # which is told where parameters are resolved
    routes = _OF_VECTORS if params["last"] else _OF_PLANES
    return {_INNER: Sub(Blocked(call, _named(params["block"])).inside, routes)}


def _build(call: Call, device: Device, params: Params) -> Composite:
    blocked, last = Blocked(call, _named(params["block"])), bool(params["last"])
    # Scratch is counted in f32, whatever elements have.
    packed, scratch = {"arranged": 4 * blocked.weights_size}, {"blocks": 4 * blocked.size(last)}
    step = Inner(_INNER, {"x": "blocks", "w": "arranged"})
    prepack = (blocked.of_weights(device),)
    return Composite((blocked.of_input(device, last), step), prepack, packed, scratch, frozenset({*packed, *scratch}))


def _note(call: Call, device: Device, params: Params) -> str:
    blocked = Blocked(call, _named(params["block"]))
    (kernel, steps), (inside, inside_steps) = (
        (shape_str(one.shape("w")[2:]), shape_str(one["stride"])) for one in (call, blocked.inside)
    )
    return (
        f"blocks of {params['block']} pixels: {kernel} over {call.shape('x')[1]} channels, stride {steps}, as {inside} "
        f"over {blocked.channels}, stride {inside_steps}, {'channels last' if params['last'] else 'in planes'}"
    )


STRIDED = Requirement.of(
    f"a stride above 1 along a side, and of at most {_MOST_STRIDE}",
    lambda call: call["stride"],
    lambda steps: 1 < max(steps) <= _MOST_STRIDE,
    shape_str,
)
BLOCKS_FIT = Requirement(
    "blocks of the input, and weights for them, that a binding can hold",
    lambda call, device: bool(_fitting(call, device)),
    lambda call, device: f"{bytes_str(_least_bytes(call))}, {bytes_str(most_bound(device))} is the most",
)
OVERLAPS = Requirement(
    "a kernel larger than the stride, so that windows share pixels",
    lambda call, device: all(k > s for k, s in zip(call.shape("w")[2:], call["stride"], strict=True)),
    lambda call, device: f"{shape_str(call.shape('w')[2:])}, stride {shape_str(call['stride'])}",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Stems:
    """It is taken up to so many input channels (0: none), of kernels of ``least_taps`` and more, from so many elements
    of all windows on, which cooperative would gather. On a CPU driver it is taken in f32 where making blocks and their
    tiles by subgroups should take at most such a ``share`` of what the tiles of the call do (0: never)."""

    channels: int = 0
    least_taps: int = 0
    least_elements: int = 0
    share: float = 0.0


_STEMS = Policy("conv2d.space_to_depth", Stems)


def _taps(call: Call) -> int:
    return math.prod(call.shape("w")[2:])


def _elements(call: Call) -> int:
    n, _, oh, ow = call.shape("y")
    return n * oh * ow * math.prod(call.shape("w")[1:])


FEW_CHANNELS = Requirement(
    "as few input channels as are taken in blocks on such devices",
    lambda call, device: call.shape("x")[1] <= _STEMS.of(device).channels,
    lambda call, device: f"{call.shape('x')[1]}, at most {_STEMS.of(device).channels} ({_STEMS.said(device)})",
)
MANY_ELEMENTS = Requirement(
    "as many taps, and elements of windows, as a launch that makes blocks pays for",
    lambda call, device: (
        _taps(call) >= _STEMS.of(device).least_taps and _elements(call) >= _STEMS.of(device).least_elements
    ),
    lambda call, device: (
        f"{_taps(call)} and {_elements(call)}, at least {_STEMS.of(device).least_taps} and "
        f"{_STEMS.of(device).least_elements} ({_STEMS.said(device)})"
    ),
)


_BY_STRIDE = View(lambda call: Blocked(call, call["stride"]).inside, {})


def _verdict(call: Call, device: Device) -> Verdict:
    return judge(COOPERATIVE_AS_IT_LIES, Blocked(call, call["stride"]).inside, device)


def _share(call: Call, device: Device) -> float:
    """Of the time of the call's tiles by subgroups, what blocks take: the launch that makes them, and theirs. Nothing
    where no such tile takes the call, more than any share where none takes the blocks."""
    blocked, costs, target = Blocked(call, call["stride"]), COSTS.of(device), target_of(device)
    moved = ceil_div(blocked.size(False), device.subgroup_size) * (2 * costs.load + costs.iteration)
    launch = 1e3 * target.value("launch_us") * target.compute_units
    own, inside = estimated_ns(call, device), estimated_ns(blocked.inside, device)
    if own is None or inside is None:
        return 0.0 if own is None else math.inf
    return (inside + moved + launch) / own


def _fewer_ns(call: Call, device: Device) -> bool:
    most = _STEMS.of(device).share
    if not lane_by_lane(device):
        return True
    return most > 0 and unrolls(device) and call.half is None and _share(call, device) <= most


def _on_gpu(need: Requirement) -> Requirement:
    """A requirement of what matrix units take, which is not asked of a CPU driver."""
    return Requirement(
        f"a CPU driver, or {need.text}",
        lambda call, device: lane_by_lane(device) or need.test(call, device),
        need.actual,
    )


FEWER_NS = Requirement(
    "a GPU, or a CPU driver whose tiles by subgroups should take much less time for the blocks, in f32",
    _fewer_ns,
    lambda call, device: (
        f"{_share(call, device):.2f} times as much, at most {_STEMS.of(device).share:g} ({_STEMS.said(device)})"
        if lane_by_lane(device)
        else target_of(device).device_class
    ),
)
BY_VECTORS = Requirement(
    "blocks whose channels matrix units read as 8-wide vectors",
    lambda call, device: bool(_params(call, device)["last"][0]),
    lambda call, device: f"no {_verdict(call, device).refused_by} ({_verdict(call, device).actual})",
)

SPACE_TO_DEPTH = Route(
    "space_to_depth",
    _build,
    tuple(dict.fromkeys((BLOCKS, BLOCKS_LAST, *(s for route in (*_OF_VECTORS, *_OF_PLANES) for s in route.shaders)))),
    why="few channels are gathered element by element, and whole vectors where blocks of as many pixels as the stride "
    "are channels, which one launch makes: a convolution of stride 1 of more channels and fewer taps, some of them "
    "zeros; an input that is not finite makes NaN of all windows that have its block",
    must=(
        FLOATS,
        GROUPS_1,
        NO_DILATION,
        STRIDED,
        LARGER_THAN_1X1,
        INT32,
        BLOCKS_FIT,
        loop_iterations(lambda call, device: call.shape("x")[1] * math.prod(call["stride"])),
    ),
    prefer=(
        FEWER_NS,
        *map(
            _on_gpu,
            (FEW_CHANNELS, WIDE_IN_HALVES, MANY_ELEMENTS, OVERLAPS, BY_VECTORS, _BY_STRIDE.need(FILLS_MATRICES)),
        ),
    ),
    params=_params,
    inner=_inner,
    note=_note,
    source="TensorFlow's tf-tpu-space-to-depth-pass",
)
