"""How gemm_reduce and conv_reduce reduce a product before it is stored.

A product is a matrix for each batch, whose columns lie in segments that are each reduced to one number for every row:
the columns of a matrix product are one segment, the pixels of each image of a convolution are one. A workgroup reduces
its tile, which makes a part for each row and each segment that the tile touches. A second launch combines the parts of
an output in their order, or the workgroups add them to the output by atomic operations.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import defaults, over_invocations, over_workgroups
from vkconv.ops.core.requirements import FLOATS, MOST_INT, NO_HALVES, float_atomics, within_scratch
from vkconv.ops.fused.definition import SUMS
from vkconv.ops.kernels.epilogue import RESIDUAL_ADDED
from vkconv.ops.kernels.zero_insertion import FILL
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.route import Legal, Params, Requirement, Route

# By name: FUNCTION of shaders/include/reduced.glsl and its identity as u32 bits.
_ADD, _MAX, _MIN = (0, 0x00000000), (1, 0xFF800000), (2, 0x7F800000)
_SQUARES, _NORM = (3, 0x00000000), (4, 0x00000000)
FUNCTIONS: Mapping[str, tuple[int, int]] = {
    **{"sum": _ADD, "mean": _ADD, "max": _MAX, "min": _MIN},
    **{"sum_square": _SQUARES, "l2": _NORM},
}

COMBINE = Shader(shaders.fused.GEMM_REDUCE_COMBINE)
_REDUCE, _CAS, _NATIVE = ("REDUCE", ""), ("ATOMIC_CAS", ""), ("ATOMIC_FLOAT", "")


@dataclasses.dataclass(frozen=True, slots=True)
class _Combining:
    """Outputs of a workgroup, alone and where ``lanes`` share one, which they do from so ``many`` parts on."""

    outputs: int
    shared_outputs: int
    lanes: int
    many: int


_COMBINING = Policy("fused.combine", _Combining)


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """``batches`` of ``rows`` x (``segments`` of ``extent`` columns each, padding included), cut into tiles of
    ``block`` columns. ``count`` elements are reduced to one. ``lines`` segments lie behind each other in the output,
    which is (batches * segments / lines, rows, lines)."""

    batches: int
    rows: int
    segments: int
    extent: int
    block: int
    count: int
    lines: int = 1

    @property
    def tiles(self) -> int:
        """Of a batch, along its columns."""
        return ceil_div(self.segments * self.extent, self.block)

    @property
    def slots(self) -> int:
        """The most segments that a tile touches."""
        step = math.gcd(self.extent, self.block)
        return min(self.segments, ceil_div(self.block - step, self.extent) + 1)

    @property
    def uncut(self) -> bool:
        """Whether no segment lies in several tiles."""
        return self.tiles == 1 or self.block % self.extent == 0

    @property
    def most_parts(self) -> int:
        """The most tiles that a segment lies in."""
        return 1 if self.uncut else min(self.tiles, ceil_div(self.extent, self.block) + 1)

    @property
    def parts(self) -> int:
        """Numbers in scratch."""
        return 0 if self.uncut else self.batches * self.tiles * self.slots * self.rows

    @property
    def outputs(self) -> int:
        return self.batches * self.segments * self.rows


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What a launch that makes parts does with them: the buffer that takes them, the variant of the shader, its
    specialization constants and what results are divided by."""

    target: str
    defines: tuple[tuple[str, str], ...]
    constants: Mapping[str, Word]
    divisor: float


Launch = Callable[[Ending], Dispatch]


def reducing(
    made: Dispatch,
    end: Ending,
    *,
    push: Mapping[str, Word] | None = None,
    constants: Mapping[str, Word] | None = None,
) -> Dispatch:
    """The launch of a product to y by the variant of its shader that reduces it, with what that takes besides."""
    shader = made.shader.having(*end.defines)
    return dataclasses.replace(
        made,
        shader=shader,
        buffers={**made.buffers, "y": end.target},
        push=shader.taking({**made.push, **(push or {}), "divisor": end.divisor}),
        constants=shader.taking({**made.constants, **end.constants, **(constants or {})}),
    )


def _reducing_by(function: int, to_parts: bool) -> Mapping[str, Word]:
    return {"FUNCTION": function, "TO_PARTS": to_parts}


def _divisor(call: Call, r: Reduction) -> float:
    return float(r.count) if call["op"] == "mean" else 1.0


def _by_parts(call: Call, r: Reduction, launch: Launch, device: Device) -> Program:
    """The parts of all tiles to scratch, then combined in their order; one launch where no segment is cut."""
    function = FUNCTIONS[call["op"]][0]
    if r.uncut:
        return Program((launch(Ending("y", (_REDUCE,), _reducing_by(function, False), _divisor(call, r))),))
    made = launch(Ending("parts", (_REDUCE,), _reducing_by(function, True), 1.0))
    combining = _COMBINING.of(device)
    lanes = combining.lanes if r.most_parts >= combining.many else 1
    outputs = combining.shared_outputs if lanes > 1 else combining.outputs
    sizes = {"total": r.outputs, "rows": r.rows, "segments": r.segments, "extent": r.extent}
    tiles = {"block": r.block, "tiles": r.tiles, "slots": r.slots, "lines": r.lines}
    combine = Dispatch(
        COMBINE,
        {"parts": "parts", "y": "y"},
        *over_workgroups(ceil_div(r.outputs, outputs), lanes * outputs, device),
        {**sizes, **tiles, "divisor": _divisor(call, r)},
        {"FUNCTION": function, "LANES": lanes, "OUTPUTS": outputs},
        4 * lanes * outputs,
        r.most_parts,
    )
    return Program((made, combine), scratch={"parts": 4 * r.parts})


def _by_atomics(call: Call, r: Reduction, launch: Launch, device: Device, native: bool) -> Program:
    """The identity everywhere, then the part of every tile onto it."""
    function, identity = FUNCTIONS[call["op"]]
    push = {"total": r.outputs, "value": identity}
    fill = Dispatch(FILL, {"y": "y"}, *over_invocations(r.outputs, 64, device), push)
    ending = Ending("y", (_REDUCE, _NATIVE if native else _CAS), _reducing_by(function, False), _divisor(call, r))
    return Program((fill, launch(ending)))


NO_ROOT = Requirement(
    "no l2, whose root would have to be taken when all is added",
    lambda call, device: call["op"] != "l2",
    lambda call, device: str(call["op"]),
)
Reduced = Callable[[Call, Device], Reduction]


def _parts_within_scratch(of: Reduced) -> Requirement:
    """The parts of a call, by the default of its parameters, within the budget."""
    return within_scratch(lambda call, device: 4 * of(call, device).parts, "parts")


def _parts_beyond_scratch(of: Reduced) -> Requirement:
    """The other way round."""
    need = _parts_within_scratch(of)
    return Requirement(
        "parts beyond the device's budget of scratch: within it they are stored, and combined in a fixed order",
        lambda call, device: not need.test(call, device),
        need.actual,
    )


def _columns_in_32_bits(of: Reduced) -> Requirement:
    """Columns and tiles whose numbers a shader can hold."""

    def most(call: Call, device: Device) -> int:
        r = of(call, device)
        # Rows may be pixels, whose lines are padded to whole vec4.
        return max(r.segments * r.extent + r.block, r.batches * r.tiles * r.rows, 4 * r.rows)

    return Requirement(
        f"numbers of columns and tiles up to {MOST_INT}",
        lambda call, device: most(call, device) <= MOST_INT,
        lambda call, device: str(most(call, device)),
    )


def _parts_note(call: Call, r: Reduction) -> str:
    """What a route by parts comes to."""
    saved = f"{bytes_str(8 * r.outputs * r.count)} less to write and read"
    if r.uncut:
        return f"each output from one tile of {r.block} columns, {saved}"
    return f"up to {r.most_parts} tiles of {r.block} columns for an output, {bytes_str(4 * r.parts)} scratch, {saved}"


def _atomic_note(call: Call, params: Params) -> str:
    """What a route by atomics comes to."""
    if call["op"] not in SUMS:
        return "integer atomics in the order of floats: the same each time"
    return f"{'float atomics' if params['native'] else 'compare-and-swap'}; not deterministic"


@dataclasses.dataclass(frozen=True)
class Fusion:
    """A kernel of a product that reduces its tiles, for the routes that are made of it.

    ``params`` are its parameters for a call; ``of`` is what it reduces by values of these, ``launch`` how. ``must`` is
    what it requires, ``shaders`` are others that it needs, and ``around`` adds to the program what these are for; with
    ``adds`` it adds a residual before it reduces.
    """

    shader: Shader
    params: Callable[[Call, Device], Legal]
    of: Callable[[Call, Device, Params], Reduction]
    launch: Callable[[Call, Device, Params], Launch]
    must: tuple[Requirement, ...]
    shaders: tuple[Shader, ...] = ()
    adds: bool = False
    around: Callable[[Program, Call, Device, Params], Program] = lambda program, call, device, params: program

    @property
    def variants(self) -> tuple[Shader, ...]:
        """The kernel, and where it takes a residual the variant that adds one."""
        return (self.shader, self.shader.having(RESIDUAL_ADDED)) if self.adds else (self.shader,)

    def default(self, call: Call, device: Device) -> Reduction:
        """What is reduced by the default of every parameter."""
        return self.of(call, device, defaults(self.params(call, device)))

    def in_order(self, name: str, why: str, prefer: tuple[Requirement, ...], source: str = "vkconv") -> Route:
        """The route that stores partial results and combines them in their order."""

        def program(call: Call, device: Device, params: Params) -> Program:
            made = _by_parts(call, self.of(call, device, params), self.launch(call, device, params), device)
            return self.around(made, call, device, params)

        return Route(
            name,
            program,
            (*(s.having(_REDUCE) for s in self.variants), COMBINE, *self.shaders),
            why,
            (FLOATS, *self.must, _columns_in_32_bits(self.default), _parts_within_scratch(self.default)),
            prefer,
            source,
            self.params,
            note=lambda call, device, params: _parts_note(call, self.of(call, device, params)),
        )

    def atomic(self, name: str, why: str, prefer: tuple[Requirement, ...], source: str) -> Route:
        """The route that adds partial results to the output by atomic operations, where there are too many of them."""

        def program(call: Call, device: Device, params: Params) -> Program:
            launch, native = self.launch(call, device, params), bool(params["native"])
            made = _by_atomics(call, self.of(call, device, params), launch, device, native)
            return self.around(made, call, device, params)

        return Route(
            name,
            program,
            (*(s.having(_REDUCE, how) for s in self.variants for how in (_CAS, _NATIVE)), FILL, *self.shaders),
            why,
            (FLOATS, NO_HALVES, NO_ROOT, *self.must, _columns_in_32_bits(self.default)),
            (*prefer, _parts_beyond_scratch(self.default)),
            source,
            lambda call, device: {
                **self.params(call, device),
                # The device's own atomics of floats, or compare-and-swap; a maximum or minimum is one of integers.
                "native": (1, 0) if float_atomics(device) and call["op"] in SUMS else (0,),
            },
            note=lambda call, device, params: _atomic_note(call, params),
            deterministic=False,
        )
