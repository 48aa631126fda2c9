"""What convolutions and matrix products of 8-bit integers share: tiles in shared memory, requirements, types."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.device.facts import DOT_ACCELERATED
from vkconv.kernel import Shader
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import INT32, ON_GPU, invocations, shared_bytes
from vkconv.ops.kernels.gemm_tile import ENOUGH, Compilers, GemmTile, by_name, tile_by_rule
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

_EXTENSION, _FEATURE = "VK_KHR_shader_integer_dot_product", "shaderIntegerDotProduct"

DOT_PRODUCT = Requirement(
    f"integer dot products ({_EXTENSION})",
    lambda call, device: (
        device.has(_EXTENSION) and device.feature("VkPhysicalDeviceShaderIntegerDotProductFeatures", _FEATURE)
    ),
    lambda call, device: f"{'no ' * (not device.has(_EXTENSION))}{_EXTENSION}, {_FEATURE} off",
)

DOT_IS_FAST = Requirement(
    "dot products of bytes that the device has instructions for, as far as it says",
    lambda call, device: device.fact(*DOT_ACCELERATED) is not False,
    lambda call, device: f"{DOT_ACCELERATED[1]} off",
)


def is_signed(call: Call, name: str) -> bool:
    """Whether an operand or output is i8, not u8."""
    return call.specs[name].dtype is DType.I8


def result_of(call: Call) -> int:
    """The constant RESULT: i32 sums, u8 or i8."""
    return (DType.I32, DType.U8, DType.I8).index(call.outputs["y"].dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerTile(GemmTile):
    """Its k-tiles are of words, of four bytes each, and an invocation has four columns. The invocations are a multiple
    of the columns, as the shaders load."""

    @property
    def constants(self) -> dict[str, int]:
        """The specialization constants of a kernel by such tiles."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth, "TR": self.lane_rows}

    def blocks(self, rows: int, columns: int) -> int:
        """Workgroups of a product."""
        return ceil_div(rows, self.rows) * ceil_div(columns, self.columns)

    def iterations(self, words: int) -> int:
        """Of an invocation whose sums are over so many words."""
        return ceil_div(words, self.depth) * (1 + 3 * self.depth)


# The parameter ``tile`` of the routes.
TILES: Mapping[str, IntegerTile] = by_name(
    IntegerTile(64, 64, 8, 4, 4),
    IntegerTile(128, 64, 8, 8, 4),
    IntegerTile(32, 64, 8, 4, 4),
    IntegerTile(64, 32, 8, 4, 4),
    IntegerTile(32, 32, 8, 4, 4),
    IntegerTile(64, 64, 16, 4, 4),
    IntegerTile(64, 64, 8, 8, 4),
    IntegerTile(32, 64, 8, 2, 4),
    IntegerTile(32, 32, 8, 2, 4),
    IntegerTile(16, 64, 8, 1, 4),
    IntegerTile(16, 32, 8, 1, 4),
    IntegerTile(32, 32, 8, 1, 4),
)
# The first that makes enough workgroups, or the last.
_RULE = ("128x64x8", "64x64x8", "32x64x8", "32x32x8")
_SMALLEST = TILES["32x32x8"]
FITS_SMALLEST = invocations(_SMALLEST.local), shared_bytes(_SMALLEST.shared_bytes)


def tiles_by_rule(rows: int, blocks: Callable[[IntegerTile], int], compilers: Compilers) -> tuple[str, ...]:
    """The tiles that the device can hold. First the one for a product of so many rows: the largest that makes enough
    ``blocks`` to keep the device busy."""
    device = compilers.device
    fitting = {name: tile for name, tile in TILES.items() if tile.fits(device)}
    rule = [name for name in _RULE if name in fitting]
    wide = [name for name in rule if TILES[name].rows < 2 * rows] or rule[-1:]
    enough = ENOUGH.of(device).integers
    return first(tile_by_rule(wide, fitting, rows, lambda name: blocks(TILES[name]), enough, compilers), fitting)


Build = Callable[[Call, Device, Params, Shader], Program]


def routes_by_tiles(
    name: str,
    build: Build,
    params: Callable[[Call, Compilers], Legal],
    shaders: tuple[Shader, ...],
    why: str,
    must: tuple[Requirement, ...] = (),
    prefer: tuple[Requirement, ...] = (),
) -> tuple[Route, Route]:
    """The routes by tiles in shared memory, whose kernel is the first of the ``shaders``: by dot products of bytes,
    where the device has them, and without."""
    plain, *others = shaders

    def by(
        kernel: Shader,
        name: str,
        why: str,
        must: tuple[Requirement, ...],
        prefer: tuple[Requirement, ...],
        form: str = "",
        source: str = "vkconv",
    ) -> Route:
        return Route(
            name,
            lambda call, device, params: build(call, device, params, kernel),
            (kernel, *others),
            why,
            must=(INT32, *must, *FITS_SMALLEST),
            prefer=(ON_GPU, *prefer),
            params=lambda call, device: params(call, Compilers(kernel.kernel, device, form=form)),
            source=source,
        )

    by_dot = f"{why}, which one instruction multiplies and sums"
    dot = by(
        plain.having(("DOT", "")),
        "dot",
        by_dot,
        (*must, DOT_PRODUCT),
        (*prefer, DOT_IS_FAST),
        form="DOT",
        source="SPV_KHR_integer_dot_product",
    )
    return dot, by(plain, name, why, must, prefer)
