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
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.ops.fused.addends import BROADCASTING, Added, added, count_bound
from vkconv.ops.fused.definition import OUTPUTS, SUMS, functions, is_single
from vkconv.ops.kernels.epilogue import RESIDUAL_ADDED
from vkconv.ops.kernels.zero_insertion import FILL
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

# By name: FUNCTION of shaders/include/reduced.glsl and its identity as u32 bits.
_ADD, _MAX, _MIN = (0, 0x00000000), (1, 0xFF800000), (2, 0x7F800000)
_SQUARES, _NORM = (3, 0x00000000), (4, 0x00000000)
FUNCTIONS: Mapping[str, tuple[int, int]] = {
    **{"sum": _ADD, "mean": _ADD, "max": _MAX, "min": _MIN},
    **{"sum_square": _SQUARES, "l2": _NORM},
}

COMBINE = Shader(shaders.fused.GEMM_REDUCE_COMBINE)
_REDUCE, _CAS, _NATIVE = ("REDUCE", ""), ("ATOMIC_CAS", ""), ("ATOMIC_FLOAT", "")
_ALSO, _PRODUCT = ("ALSO", ""), ("PRODUCT", "")
# Variants that store what they reduce, one number or two of it, and the product or not.
_STORING = tuple((_REDUCE, *more) for more in ((), (_ALSO,), (_PRODUCT,), (_ALSO, _PRODUCT)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Combining:
    """Outputs of a workgroup, alone and where ``lanes`` share one, which they do from so ``many`` parts on."""

    outputs: int
    shared_outputs: int
    lanes: int
    many: int


_COMBINING = Policy("fused.combine", _Combining)
_BUFFERS, _LEAST_BUFFERS = "maxPerStageDescriptorStorageBuffers", 4
_KEPT = Policy("fused.kept", bool)
KEPT = Requirement(
    "one reduction alone, or a device where a product that is kept, or is reduced twice, is best reduced as it is made",
    lambda call, device: is_single(call) or _KEPT.of(device),
    lambda call, device: _KEPT.said(device),
)
_BY_MATRICES = Policy("fused.matrices", bool)
MATRICES_PAY = Requirement(
    "a device where matrix units that reduce their tiles are as fast as a product of them and its reduction",
    lambda call, device: _BY_MATRICES.of(device),
    lambda call, device: _BY_MATRICES.said(device),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """``batches`` of ``rows`` x (``segments`` of ``extent`` columns each, padding included), cut into tiles of
    ``block`` columns. ``count`` elements are reduced to one. ``lines`` segments lie behind each other in the output,
    which is (batches * segments / lines, rows, lines). ``functions`` are 2 where all is reduced twice: parts of the
    second lie behind those of the first, always in scratch."""

    batches: int
    rows: int
    segments: int
    extent: int
    block: int
    count: int
    lines: int = 1
    functions: int = 1

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
        """Whether tiles come to outputs: no segment lies in several of them, and there is one reduction."""
        return self.functions == 1 and (self.tiles == 1 or self.block % self.extent == 0)

    @property
    def most_parts(self) -> int:
        """The most tiles that a segment lies in."""
        return 1 if self.uncut else min(self.tiles, ceil_div(self.extent, self.block) + 1)

    @property
    def parts(self) -> int:
        """Numbers in scratch, of each reduction."""
        return 0 if self.uncut else self.batches * self.tiles * self.slots * self.rows

    @property
    def scratch_bytes(self) -> int:
        """That all of them take."""
        return 4 * self.functions * self.parts

    @property
    def outputs(self) -> int:
        return self.batches * self.segments * self.rows


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What a launch that makes parts does with them: the buffer that takes them, the variant of the shader, its
    specialization constants, what results are divided by, where parts of a second reduction begin, and the buffers that
    the variant binds besides."""

    target: str
    defines: tuple[tuple[str, str], ...]
    constants: Mapping[str, Word]
    divisor: float
    push: Mapping[str, Word] = dataclasses.field(default_factory=dict)
    buffers: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def adding(self, more: Added) -> "Ending":
        """The same of a launch that takes addends too."""
        return dataclasses.replace(
            self,
            defines=(*more.defines, *self.defines),
            constants={**self.constants, **more.constants},
            buffers={**self.buffers, **more.buffers},
        )


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
        buffers={**made.buffers, "y": end.target, **end.buffers},
        push=shader.taking({**made.push, **(push or {}), "divisor": end.divisor, **end.push}),
        constants=shader.taking({**made.constants, **end.constants, **(constants or {})}),
    )


def _reducing_by(function: int, to_parts: bool) -> Mapping[str, Word]:
    return {"FUNCTION": function, "TO_PARTS": to_parts}


def _divisor(function: str, r: Reduction) -> float:
    return float(r.count) if function == "mean" else 1.0


def _defines(call: Call) -> tuple[tuple[str, str], ...]:
    """What makes the variant of a kernel that reduces all that the call wants of its product."""
    return (_REDUCE, *((_ALSO,) if call["also"] else ()), *((_PRODUCT,) if call["product"] else ()))


def _by_parts(
    call: Call, r: Reduction, launch: Launch, device: Device, to_parts: tuple[tuple[str, str], ...]
) -> Program:
    """The parts of all tiles to scratch, then combined in their order; one launch where no segment is cut."""
    first, *second = (FUNCTIONS[name][0] for name in functions(call))
    defines, buffers = _defines(call), {"product": "product"} if call["product"] else {}
    if r.uncut:
        divisor = _divisor(call["op"], r)
        return Program((launch(Ending("y", defines, _reducing_by(first, False), divisor, buffers=buffers)),))
    by, push = _reducing_by(first, True), {"also_at": r.parts} if second else {}
    made = launch(
        Ending("parts", (*to_parts, *defines), {**by, **({"SECOND": second[0]} if second else {})}, 1.0, push, buffers)
    )
    combines = (
        _combine(r, device, name, function, i * r.parts)
        for i, (name, function) in enumerate(zip(OUTPUTS, functions(call), strict=False))
    )
    return Program((made, *combines), scratch={"parts": r.scratch_bytes})


def _combine(r: Reduction, device: Device, output: str, function: str, base: int) -> Dispatch:
    """The launch that combines parts, from ``base`` on, to an output."""
    combining = _COMBINING.of(device)
    lanes = combining.lanes if r.most_parts >= combining.many else 1
    outputs = combining.shared_outputs if lanes > 1 else combining.outputs
    sizes = {"total": r.outputs, "rows": r.rows, "segments": r.segments, "extent": r.extent}
    tiles = {"block": r.block, "tiles": r.tiles, "slots": r.slots, "lines": r.lines}
    return Dispatch(
        COMBINE,
        {"parts": "parts", "y": output},
        *over_workgroups(ceil_div(r.outputs, outputs), lanes * outputs, device),
        {**sizes, **tiles, "base": base, "divisor": _divisor(function, r)},
        {"FUNCTION": FUNCTIONS[function][0], "LANES": lanes, "OUTPUTS": outputs},
        4 * lanes * outputs,
        r.most_parts,
    )


def _by_atomics(call: Call, r: Reduction, launch: Launch, device: Device, native: bool) -> Program:
    """The identity everywhere, then the part of every tile onto it."""
    function, identity = FUNCTIONS[call["op"]]
    push = {"total": r.outputs, "value": identity}
    fill = Dispatch(FILL, {"y": "y"}, *over_invocations(r.outputs, alone_by_default(device), device), push)
    ending = Ending("y", (_REDUCE, _NATIVE if native else _CAS), _reducing_by(function, False), _divisor(call["op"], r))
    return Program((fill, launch(ending)))


_SINGLE = Requirement(
    "one reduction, and the product not wanted besides",
    lambda call, device: is_single(call),
    lambda call, device: ", ".join(call.outputs),
)


def _all_bound(product: Callable[[Call], Call]) -> Requirement:
    """Storage buffers for the addends of a call, and for the product where that is kept."""

    def count(call: Call) -> int:
        return _LEAST_BUFFERS + count_bound(call, product(call)) + bool(call["product"])

    return Requirement(
        "a storage buffer for each that a launch binds: residuals and a product that is kept beside the other four",
        lambda call, device: device.limit(_BUFFERS) >= count(call),
        lambda call, device: f"{count(call)} of {device.limit(_BUFFERS)}",
    )


NO_ROOT = Requirement(
    "no l2, whose root would have to be taken when all is added",
    lambda call, device: call["op"] != "l2",
    lambda call, device: str(call["op"]),
)
Reduced = Callable[[Call, Device], Reduction]


def _parts_within_scratch(of: Reduced) -> Requirement:
    """The parts of a call, by the default of its parameters, within the budget."""
    return within_scratch(lambda call, device: of(call, device).scratch_bytes, "parts")


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
        return max(r.segments * r.extent + r.block, r.functions * r.batches * r.tiles * r.rows, 4 * r.rows)

    return Requirement(
        f"numbers of columns and tiles up to {MOST_INT}",
        lambda call, device: most(call, device) <= MOST_INT,
        lambda call, device: str(most(call, device)),
    )


def _parts_note(call: Call, r: Reduction) -> str:
    """What a route by parts comes to."""
    bytes_saved = 4 * r.outputs * r.count * (len(functions(call)) + (not call["product"]))
    saved = f"{bytes_str(bytes_saved)} less to write and read"
    if r.uncut:
        return f"each output from one tile of {r.block} columns, {saved}"
    return (
        f"up to {r.most_parts} tiles of {r.block} columns for an output, {bytes_str(r.scratch_bytes)} scratch, {saved}"
    )


def _atomic_note(call: Call, params: Params) -> str:
    """What a route by atomics comes to."""
    if call["op"] not in SUMS:
        return "integer atomics in the order of floats: the same each time"
    return f"{'float atomics' if params['native'] else 'compare-and-swap'}; not deterministic"


@dataclasses.dataclass(frozen=True)
class Fusion:
    """A kernel of a product that reduces its tiles, for the routes that are made of it.

    ``product`` is the call of the product, and ``sides`` the dimension of that along which the kernel has rows and
    those along which it has columns. ``params`` are its parameters for a call; ``of`` is what it reduces by values of
    these, ``launch`` how. ``must`` is what it requires, ``shaders`` are others that it needs, and ``around`` adds to
    the program what these are for. ``to_parts`` makes the variants whose parts are f32, of kernels that have no other
    way to say so.
    """

    shader: Shader
    product: Callable[[Call], Call]
    sides: Callable[[Call, Params], tuple[int, tuple[int, ...]]]
    params: Callable[[Call, Device], Legal]
    of: Callable[[Call, Device, Params], Reduction]
    launch: Callable[[Call, Device, Params], Launch]
    must: tuple[Requirement, ...]
    shaders: tuple[Shader, ...] = ()
    to_parts: tuple[tuple[str, str], ...] = ()
    around: Callable[[Program, Call, Device, Params], Program] = lambda program, call, device, params: program

    @property
    def variants(self) -> tuple[Shader, ...]:
        """The kernel, and the variants that add a residual, and such as repeat along dimensions."""
        return self.shader, self.shader.having(RESIDUAL_ADDED), self.shader.having(*BROADCASTING)

    def default(self, call: Call, device: Device) -> Reduction:
        """What is reduced by the default of every parameter."""
        return self.reduced(call, device, defaults(self.params(call, device)))

    def reduced(self, call: Call, device: Device, params: Params) -> Reduction:
        """What is reduced by values of the parameters, as often as the call wants it."""
        return dataclasses.replace(self.of(call, device, params), functions=len(functions(call)))

    def _launch(self, call: Call, device: Device, params: Params) -> Launch:
        """How it reduces, with what it adds before."""
        more, launch = added(call, self.product(call), *self.sides(call, params)), self.launch(call, device, params)
        return lambda end: launch(end.adding(more))

    def in_order(self, name: str, why: str, prefer: tuple[Requirement, ...], source: str = "vkconv") -> Route:
        """The route that stores partial results and combines them in their order."""

        def program(call: Call, device: Device, params: Params) -> Program:
            r, launch = self.reduced(call, device, params), self._launch(call, device, params)
            made = _by_parts(call, r, launch, device, self.to_parts)
            return self.around(made, call, device, params)

        # What is reduced twice always goes by way of parts.
        whole = [how for how in _STORING if not self.to_parts or _ALSO not in how]
        storing = dict.fromkeys((*whole, *((*self.to_parts, *how) for how in _STORING)))
        return Route(
            name,
            program,
            (*(s.having(*how) for s in self.variants for how in storing), COMBINE, *self.shaders),
            why,
            (
                FLOATS,
                *self.must,
                _all_bound(self.product),
                _columns_in_32_bits(self.default),
                _parts_within_scratch(self.default),
            ),
            (*prefer, KEPT),
            source,
            self.params,
            note=lambda call, device, params: _parts_note(call, self.reduced(call, device, params)),
        )

    def atomic(self, name: str, why: str, prefer: tuple[Requirement, ...], source: str) -> Route:
        """The route that adds partial results to the output by atomic operations, where there are too many of them."""

        def program(call: Call, device: Device, params: Params) -> Program:
            launch, native = self._launch(call, device, params), bool(params["native"])
            made = _by_atomics(call, self.of(call, device, params), launch, device, native)
            return self.around(made, call, device, params)

        return Route(
            name,
            program,
            (*(s.having(_REDUCE, how) for s in self.variants for how in (_CAS, _NATIVE)), FILL, *self.shaders),
            why,
            (
                FLOATS,
                NO_HALVES,
                _SINGLE,
                NO_ROOT,
                *self.must,
                _all_bound(self.product),
                _columns_in_32_bits(self.default),
            ),
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
