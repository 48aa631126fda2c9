"""Cooperative matrices: which of a device fit products of 16-bit floats, workgroups' tiles as data, and needs.

The matrices have f16 or bf16 elements and sum in f32. Programs are written for f32 (vkconv/storage.py) but for the
shader that multiplies, which there is for f16 and, made from that (vkconv/bfloat16.py), for bf16.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import most_invocations
from vkconv.ops.core.occupancy import compute_units
from vkconv.ops.core.requirements import shuffles, types_of
from vkconv.ops.kernels.epilogue import binds_residual
from vkconv.program import Word
from vkconv.route import Requirement
from vkconv.storage import NATIVE

EXTENSION = "VK_KHR_cooperative_matrix"
_FEATURES = (
    ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "cooperativeMatrix"),
    ("VkPhysicalDeviceVulkanMemoryModelFeatures", "vulkanMemoryModel"),
    NATIVE,
)
_OF_TYPE: Mapping[DType, tuple[tuple[str, str], ...]] = {
    DType.F16: (("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16"),),
    DType.BF16: (
        ("VkPhysicalDeviceShaderBfloat16FeaturesKHR", "shaderBFloat16Type"),
        ("VkPhysicalDeviceShaderBfloat16FeaturesKHR", "shaderBFloat16CooperativeMatrix"),
    ),
}
# Results in f16 are rounded by the device, to nearest even, a mode that must be there for 16 bits alone.
_CONTROLS = "VkPhysicalDeviceFloatControlsProperties"
_ROUNDING, _NOT_ALONE = "shaderRoundingModeRTEFloat16", "VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE"
_COMPONENT = {DType.F16: "VK_COMPONENT_TYPE_FLOAT16_KHR", DType.BF16: "VK_COMPONENT_TYPE_BFLOAT16_KHR"}
_SUMS: Mapping[str, str] = {
    "CType": "VK_COMPONENT_TYPE_FLOAT32_KHR",
    "ResultType": "VK_COMPONENT_TYPE_FLOAT32_KHR",
    "scope": "VK_SCOPE_SUBGROUP_KHR",
}
# Lines of a tile are words of so many elements, and so much longer than they need to be.
EIGHT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """Rows and columns of a matrix of sums, and the depth of one step."""

    m: int
    n: int
    k: int


def matrices_of(device: Device, dtype: DType) -> list[Matrix]:
    """The matrices of a 16-bit float type that sum in f32 and whose sides are whole eights."""
    kind = {"AType": _COMPONENT[dtype], "BType": _COMPONENT[dtype], **_SUMS}
    found = [
        Matrix(row["MSize"], row["NSize"], row["KSize"])
        for row in device.facts.get("cooperativeMatrices", ())
        if all(row[name] == value for name, value in kind.items())
    ]
    return [matrix for matrix in found if not any(side % EIGHT for side in dataclasses.astuple(matrix))]


def matrix_of(device: Device) -> Matrix | None:
    """What tiles are made of, if the device has such: the largest of f16, a size that bf16 must have too."""
    found = matrices_of(device, DType.F16) or matrices_of(device, DType.BF16)
    return max(found, key=lambda matrix: matrix.m * matrix.n * matrix.k, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class CooperativeTile:
    """Rows x columns of a workgroup, the depth of a slice, rows x columns of a subgroup."""

    rows: int
    columns: int
    depth: int
    subgroup_rows: int
    subgroup_columns: int

    @property
    def subgroups(self) -> int:
        return self.rows // self.subgroup_rows * (self.columns // self.subgroup_columns)

    @property
    def shared_bytes(self) -> int:
        """Of a workgroup, however its operands lie: lines along the shorter side have more of them."""
        pads = EIGHT * (max(self.rows, self.depth) + max(self.columns, self.depth))
        return 2 * (self.depth * (self.rows + self.columns) + pads)

    def local(self, device: Device) -> int:
        """Invocations of a workgroup."""
        return self.subgroups * device.subgroup_size

    def fits(self, device: Device) -> bool:
        """Whether it is made of whole matrices of the device, and a workgroup can hold it."""
        matrix = matrix_of(device)
        if matrix is None:
            return False
        whole = self.subgroup_rows % matrix.m, self.subgroup_columns % matrix.n, self.depth % matrix.k
        return (
            not any(whole)
            and self.local(device) <= most_invocations(device)
            and self.shared_bytes <= device.limit("maxComputeSharedMemorySize")
            and self._staged(matrix) > 0
        )

    def _staged(self, matrix: Matrix) -> int:
        """Matrices of a row of sums that a subgroup has in shared memory at a time, on their way out; 0 if not one."""
        columns = self.subgroup_columns // matrix.n

        def nbytes(count: int) -> int:
            return 4 * self.subgroups * matrix.m * (count * matrix.n + 8 - 4 * (count % 2))

        fitting = (count for count in (1, 2, 3, 4) if columns % count == 0 and nbytes(count) <= self.least_shared_bytes)
        return max(fitting, default=0)

    @property
    def least_shared_bytes(self) -> int:
        """What of the shared memory there is at least, however the operands lie."""
        pads = EIGHT * (min(self.rows, self.depth) + min(self.columns, self.depth))
        return 2 * (self.depth * (self.rows + self.columns) + pads)

    def constants(self, device: Device, a_by_column: bool, b_by_row: bool) -> tuple[Word, ...]:
        """The constants of shaders/include/cooperative.glsl."""
        matrix = matrix_of(device)
        assert matrix is not None
        tile = self.rows, self.columns, self.depth, self.subgroup_rows, self.subgroup_columns, self._staged(matrix)
        return *tile, *dataclasses.astuple(matrix), device.subgroup_size, int(a_by_column), int(b_by_row)


@dataclasses.dataclass(frozen=True, slots=True)
class _Pace:
    """What a unit of a GPU takes for tiles of a product, us: for the first one, with the launch, and for a slice of it;
    for each further one, which another may hide, and a slice of it; of so many further ones at a time."""

    first_us: float
    slice_us: float
    next_us: float
    next_slice_us: float
    together: int = 1

    def us(self, tiles: int, slices: int) -> float:
        further = align(tiles, self.together) - 1 if tiles > 1 else 0
        return self.first_us + slices * self.slice_us + further * (self.next_us + slices * self.next_slice_us)


# By number: the parameter ``tile`` of the routes. Paces are of an H200 (f16, driver 580.159), fitted to 92 products of
# matmul and conv2d by each of 12 tiles, to 18 of these by 32x32x64: what is then chosen takes 0.7 % longer than the
# best that was measured in the mean, 9 % at the most. Tiles 9 and 13 to 15 were not among them: 48 deep 4096^3 takes
# 465 us, by the first tile 442; 32x128x32 takes 124 for 32x341220 over 224, 32x64x64 158. Tried and no faster: 64x192,
# 64x96, 128x48, 64x256x32, 128x96x32, 128x96 by subgroups of 32x48.
_MADE: tuple[tuple[CooperativeTile, _Pace], ...] = (
    (CooperativeTile(128, 256, 32, 64, 64), _Pace(5.9, 0.84, 4.8, 0.84)),
    (CooperativeTile(128, 128, 64, 64, 32), _Pace(4.6, 0.89, 2.5, 0.98)),
    (CooperativeTile(128, 96, 64, 64, 48), _Pace(5.4, 0.66, 3.1, 0.78)),
    (CooperativeTile(64, 256, 64, 64, 32), _Pace(4.9, 1.0, 3.0, 1.06)),
    (CooperativeTile(64, 128, 32, 64, 32), _Pace(3.5, 0.44, 0.8, 0.29)),
    (CooperativeTile(128, 64, 64, 64, 32), _Pace(4.1, 0.55, 2.1, 0.67)),
    (CooperativeTile(64, 128, 64, 64, 32), _Pace(4.4, 0.63, 2.3, 0.66)),
    (CooperativeTile(64, 64, 64, 32, 32), _Pace(3.0, 0.44, 0.8, 0.4)),
    (CooperativeTile(32, 128, 64, 32, 32), _Pace(3.6, 0.47, 0.8, 0.43)),
    (CooperativeTile(128, 128, 32, 64, 32), _Pace(4.7, 0.6, 1.5, 0.6)),
    (CooperativeTile(64, 64, 32, 32, 32), _Pace(2.9, 0.35, 0.6, 0.17)),
    (CooperativeTile(32, 64, 64, 16, 32), _Pace(2.6, 0.38, 0.4, 0.25)),
    (CooperativeTile(32, 32, 64, 16, 16), _Pace(2.2, 0.34, 1.0, 0.11)),
    (CooperativeTile(32, 32, 32, 16, 16), _Pace(2.2, 0.3, 1.0, 0.1)),
    (CooperativeTile(128, 256, 48, 64, 64), _Pace(5.9, 1.3, 4.8, 1.31)),
    (CooperativeTile(32, 128, 32, 32, 32), _Pace(3.2, 0.3, 0.6, 0.2)),
    (CooperativeTile(128, 128, 32, 64, 64), _Pace(4.7, 0.54, 1.5, 0.44, 2)),
)
TILES = tuple(tile for tile, _ in _MADE)
# Tiles that were measured with sums in parts, and for these, us: the launch that adds parts up, and a MiB of them, as
# it is written and read.
_IN_PARTS = (1, 4, 5, 6, 7, 8, 11)
_SUM_US, _SUM_MIB_US = 2.1, 0.2


def _product_us(i: int, rows: int, columns: int, batches: int, device: Device, depth: int, splits: int = 1) -> float:
    """The us of a product of so many rows and columns and sums of so many products, each in so many parts, by the i-th
    of the tiles."""
    tile, pace = _MADE[i]
    each = ceil_div(splits * blocks(tile, rows, columns, batches), compute_units(device))
    us = pace.us(each, ceil_div(ceil_div(depth, tile.depth), splits))
    moved = 8 * splits * rows * columns * batches
    return us + (_SUM_US + _SUM_MIB_US * moved / 2**20 if splits > 1 else 0)


def tiles_by_rule(
    rows: int,
    columns: int,
    batches: int,
    device: Device,
    takes: Callable[[CooperativeTile], bool] = lambda tile: True,
    *,
    depth: int,
) -> tuple[int, ...]:
    """Numbers of the tiles that a device can hold and that ``takes`` a product of so many rows and columns and sums of
    so many products, the one first that should take the least time."""
    fitting = [i for i, tile in enumerate(TILES) if tile.fits(device) and takes(tile)]
    best = min(fitting, key=lambda i: _product_us(i, rows, columns, batches, device, depth))
    return (best, *(i for i in fitting if i != best))


def cut_by_rule(
    cuts: Sequence[int], rows: int, columns: int, batches: int, device: Device, tiles: Sequence[int], *, depth: int
) -> tuple[int, int]:
    """Which of some tiles, by number, and which of the ``cuts``, numbers of parts of a sum, should take the least time:
    one part, or as many as there are units and slices for."""

    def pays(i: int, splits: int) -> bool:
        work = splits * blocks(TILES[i], rows, columns, batches)
        return i in _IN_PARTS and work <= compute_units(device) and splits <= ceil_div(depth, TILES[i].depth)

    ways = [(i, splits) for i, splits in itertools.product(tiles, cuts) if splits == 1 or pays(i, splits)]
    return min(ways, key=lambda way: _product_us(way[0], rows, columns, batches, device, depth, way[1]))


def blocks(tile: CooperativeTile, rows: int, columns: int, batches: int) -> int:
    """Workgroups of a product."""
    return batches * ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)


def _missing(dtype: DType, device: Device) -> list[str]:
    """What the device lacks of matrices of a 16-bit float type."""
    features = (*_FEATURES, *_OF_TYPE[dtype])
    missing = [] if device.has(EXTENSION) else [EXTENSION]
    missing += [name for struct, name in features if not device.feature(struct, name)]
    if dtype is DType.F16:
        alone = device.fact(_CONTROLS, "roundingModeIndependence") != _NOT_ALONE
        missing += [] if alone and device.fact(_CONTROLS, _ROUNDING) else [_ROUNDING]
    matrix = matrix_of(device)
    if not missing and matrix not in matrices_of(device, dtype):
        size = f", {matrix.m}x{matrix.n}x{matrix.k}" if matrix else ""
        missing = [f"matrix of {dtype} by {dtype} to f32{size}"]
    return missing


def _has(call: Call, device: Device) -> str:
    assert call.half is not None
    missing = _missing(call.half, device)
    return f"no {', '.join(missing)}" if missing else str(matrix_of(device))


_LEAST = min(TILES, key=lambda tile: tile.shared_bytes)

HALF = Requirement(
    "elements of one 16-bit float type",
    lambda call, device: {spec.dtype for spec in call.specs.values()} in ({DType.F16}, {DType.BF16}),
    lambda call, device: types_of(call),
    halves=True,
)
MATRICES = Requirement(
    "cooperative matrices of that type that sum in f32, 16-bit storage and Vulkan's memory model",
    lambda call, device: call.half is not None and not _missing(call.half, device),
    _has,
)
ONE_SUBGROUP_SIZE = Requirement(
    "subgroups of one size",
    lambda call, device: shuffles(device),
    lambda call, device: " to ".join(str(size) for size in sorted(set(device.subgroup_sizes))),
)
FITS = Requirement(
    "a workgroup that holds a tile of whole matrices",
    lambda call, device: any(tile.fits(device) for tile in TILES),
    lambda call, device: (
        f"{most_invocations(device)} invocations, {bytes_str(device.limit('maxComputeSharedMemorySize'))}; the least "
        f"tile takes {_LEAST.local(device)} and {bytes_str(_LEAST.shared_bytes)}"
    ),
)
BINDS_RESIDUAL = Requirement(
    "no residual, or a fifth storage buffer for it",
    lambda call, device: not call.has("residual") or binds_residual(device),
    lambda call, device: f"{device.limit('maxPerStageDescriptorStorageBuffers')} buffers",
)
NEEDS = (HALF, MATRICES, ONE_SUBGROUP_SIZE, FITS, BINDS_RESIDUAL)
