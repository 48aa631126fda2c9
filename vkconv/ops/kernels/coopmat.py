"""Cooperative matrices: which of a device fit products of 16-bit floats, tiles as data, their cost, and requirements.

The matrices have f16 or bf16 elements and sum in f32. Programs are written for f32 (vkconv/storage.py) but for the
shader that multiplies, which there is for f16 and, made from that (vkconv/bfloat16.py), for bf16.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from vkconv.call import Call
from vkconv.core import DType, bytes_str, ceil_div
from vkconv.cost import compute_units
from vkconv.device import Device, target_of
from vkconv.ops.core.base import first, holds_workgroup, most_invocations, most_shared_bytes
from vkconv.ops.core.requirements import types_of
from vkconv.ops.kernels.epilogue import binds_residual
from vkconv.ops.kernels.gemm_tile import by_name
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.policy import Policy
from vkconv.program import Word
from vkconv.requirement import Requirement
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
# Rows in shared memory: vectors of so many elements, padded by one against bank conflicts.
EIGHT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """Rows and columns of a matrix of sums, and the depth of one step."""

    m: int
    n: int
    k: int


@functools.lru_cache(maxsize=256)
def matrices_of(device: Device, dtype: DType) -> tuple[Matrix, ...]:
    """The matrices of a 16-bit float type that sum in f32 and whose sides are whole eights."""
    kind = {"AType": _COMPONENT[dtype], "BType": _COMPONENT[dtype], **_SUMS}
    found = [
        Matrix(row["MSize"], row["NSize"], row["KSize"])
        for row in device.cooperative_matrices
        if all(row[name] == value for name, value in kind.items())
    ]
    return tuple(one for one in found if not any(side % EIGHT for side in (one.m, one.n, one.k)))


@functools.lru_cache(maxsize=256)
def matrix_of(device: Device) -> Matrix | None:
    """What tiles are made of, if the device has such: the largest of f16, a size that bf16 must have too."""
    found = matrices_of(device, DType.F16) or matrices_of(device, DType.BF16)
    return max(found, key=lambda matrix: matrix.m * matrix.n * matrix.k, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class CooperativeTile:
    """Rows x columns of a workgroup, the depth of a k-tile, rows x columns of a subgroup, and teams that divide the
    depth (sliced-K), of which each is a subgroup that has the whole tile."""

    rows: int
    columns: int
    depth: int
    subgroup_rows: int
    subgroup_columns: int
    teams: int = 1

    @property
    def short(self) -> str:
        """Rows x columns x k-tile, with the teams where there are several: ``128x256x32``, ``32x64x128t8``."""
        return f"{self.rows}x{self.columns}x{self.depth}{f't{self.teams}' if self.teams > 1 else ''}"

    @property
    def name(self) -> str:
        """The tile of a subgroup too: ``128x128x32_64x64``."""
        return f"{self.short}_{self.subgroup_rows}x{self.subgroup_columns}"

    @property
    def products(self) -> int:
        """Multiply-adds of a k-tile."""
        return self.rows * self.columns * self.depth

    @property
    def subgroups(self) -> int:
        return self.teams * self._team_subgroups

    @property
    def team_depth(self) -> int:
        """Of a k-tile, what a team has of it at a time."""
        return self.depth // self.teams

    @property
    def _team_subgroups(self) -> int:
        return self.rows // self.subgroup_rows * (self.columns // self.subgroup_columns)

    @property
    def shared_bytes(self) -> int:
        """Of k-tiles, the maximum over operand layouts: rows along the shorter side are more, each padded."""
        return self._k_tile_bytes(max)

    def local(self, device: Device) -> int:
        """Invocations of a workgroup."""
        return self.teams * self.team_local(device)

    def team_local(self, device: Device) -> int:
        """Invocations of a team, which load a k-tile together."""
        return self._team_subgroups * device.subgroup_size

    def fits(self, device: Device) -> bool:
        """Whether it is made of whole matrices of the device, and a workgroup can hold it."""
        matrix = matrix_of(device)
        if matrix is None:
            return False
        whole = self.subgroup_rows % matrix.m, self.subgroup_columns % matrix.n, self.team_depth % matrix.k
        if any(whole) or not holds_workgroup(device, self.local(device), self.shared_bytes):
            return False
        # Half of the teams hand over a matrix of each subgroup at a time, where rows are reduced the first one does, in
        # rows of 16 more bytes.
        handed = max(self.teams // 2, 1) * self._team_subgroups * matrix.m * (4 * matrix.n + 16)
        return handed <= self.least_shared_bytes and self._staged(matrix, device) > (0, 0)

    def _staged(self, matrix: Matrix, device: Device) -> tuple[int, int]:
        """Rows and columns of matrices that a subgroup has in shared memory at a time, on their way out; none where
        not one fits. They may take half as much again as k-tiles do: registers hold fewer workgroups than those, where
        tiles are large. Teams have as many rows as fit, since each turn is a barrier of the workgroup."""
        rows, columns = self.subgroup_rows // matrix.m, self.subgroup_columns // matrix.n
        most, at_once = most_shared_bytes(device), range(1, rows + 1)
        if self.teams == 1:
            most, at_once = min(most, self.least_shared_bytes * 3 // 2), range(1, 2)
        wide = [n for n in (1, 2, 3, 4) if columns % n == 0]
        ways = itertools.product((n for n in at_once if rows % n == 0), wide)
        fitting = (way for way in ways if self._staged_bytes(way, matrix) <= most)
        return max(fitting, key=lambda way: (math.prod(way), way[1]), default=(0, 0))

    def _staged_bytes(self, staged: tuple[int, int], matrix: Matrix) -> int:
        rows, columns = staged
        return 4 * self.subgroups * rows * matrix.m * (columns * matrix.n + EIGHT - 4 * (columns % 2))

    def workgroup_bytes(self, device: Device) -> int:
        """Shared memory of a workgroup that stores its sums: of k-tiles, or of sums on their way out."""
        matrix = matrix_of(device)
        staged = self._staged_bytes(self._staged(matrix, device), matrix) if matrix else 0
        return max(self.shared_bytes, staged)

    @property
    def least_shared_bytes(self) -> int:
        """The minimum over operand layouts."""
        return self._k_tile_bytes(min)

    def _k_tile_bytes(self, longer: Callable[[int, int], int]) -> int:
        """Shared memory of the k-tiles of all teams, a vector more in each line."""
        depth = self.team_depth
        lines = longer(self.rows, depth) + longer(self.columns, depth)
        return 2 * self.teams * (depth * (self.rows + self.columns) + EIGHT * lines)

    def totals_bytes(self, device: Device) -> int:
        """Shared memory for what the rows of a tile come to, of one reduction of them (matmul_cooperative.comp)."""
        matrix = matrix_of(device)
        rows = max(1, device.subgroup_size // matrix.m) if matrix else 1
        return 4 * self.rows * (self.columns // self.subgroup_columns) * rows

    def constants(self, device: Device, a_by_column: bool, b_by_row: bool) -> Mapping[str, Word]:
        """The constants of shaders/include/cooperative.glsl."""
        matrix = matrix_of(device)
        assert matrix is not None
        return {
            **{"BM": self.rows, "BN": self.columns, "BK": self.team_depth},
            **{"SM": self.subgroup_rows, "SN": self.subgroup_columns, "TEAMS": self.teams},
            **dict(zip(("STAGED_ROWS", "STAGED"), self._staged(matrix, device), strict=True)),
            **{"MM": matrix.m, "MN": matrix.n, "MK": matrix.k},
            **{"SUBGROUP": device.subgroup_size, "A_COL": int(a_by_column), "B_ROW": int(b_by_row)},
        }


@dataclasses.dataclass(frozen=True, slots=True)
class FragmentTile(CooperativeTile):
    """One whose operands go from memory into registers, where those of so many ``stages`` are at a time: the step that
    is multiplied and the ones that are read ahead. Its depth is that of the shared memory for sums on their way out."""

    stages: int = 2

    @property
    def short(self) -> str:
        """With the stages where they are not two: ``128x96x32s3``."""
        return f"{self.rows}x{self.columns}x{self.depth}{f's{self.stages}' if self.stages != 2 else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Costs(TileCosts):
    """``split``: tiles that were measured with split-K."""

    split: tuple[str, ...] = ()


# Forms of a kernel. Words are shifted where rows of an operand are no whole vectors. An operand is gathered element by
# element, as windows have it, its channels up to whole k-tiles tap by tap, or in one run through channels and taps. Or
# operands go straight into registers, as fragments of matrices.
SHIFTED, GATHERED, GATHERED_AS_ONE, FRAGMENTS = "shifted", "gathered", "gathered_as_one", "fragments"
_COSTS = Policy("cooperative.tiles", Costs)
_SHIFTED_COSTS = Policy("cooperative.shifted_tiles", Costs)
_GATHERED_COSTS = Policy("cooperative.gathered_tiles", Costs)
_FRAGMENT_COSTS = Policy("cooperative.fragment_tiles", Costs)
_OF_FORM = {
    SHIFTED: _SHIFTED_COSTS,
    GATHERED: _GATHERED_COSTS,
    GATHERED_AS_ONE: _GATHERED_COSTS,
    FRAGMENTS: _FRAGMENT_COSTS,
}


# The parameter ``tile`` of the routes.
TILES: Mapping[str, CooperativeTile] = by_name(
    CooperativeTile(128, 256, 32, 64, 64),
    CooperativeTile(128, 128, 64, 64, 32),
    CooperativeTile(128, 96, 64, 64, 48),
    CooperativeTile(64, 256, 64, 64, 32),
    CooperativeTile(64, 128, 32, 64, 32),
    CooperativeTile(128, 64, 64, 64, 32),
    CooperativeTile(64, 128, 64, 64, 32),
    CooperativeTile(64, 64, 64, 32, 32),
    CooperativeTile(32, 128, 64, 32, 32),
    CooperativeTile(128, 128, 32, 64, 32),
    CooperativeTile(64, 64, 32, 32, 32),
    CooperativeTile(32, 64, 64, 16, 32),
    CooperativeTile(32, 32, 64, 16, 16),
    CooperativeTile(32, 32, 32, 16, 16),
    CooperativeTile(128, 256, 48, 64, 64),
    CooperativeTile(32, 128, 32, 32, 32),
    CooperativeTile(128, 128, 32, 64, 64),
    CooperativeTile(128, 64, 32, 32, 32),
    CooperativeTile(128, 64, 64, 32, 32),
    CooperativeTile(64, 128, 64, 32, 32),
    CooperativeTile(64, 64, 128, 32, 32),
    CooperativeTile(16, 32, 256, 16, 32, 8),
    CooperativeTile(16, 32, 256, 16, 32, 4),
    CooperativeTile(16, 64, 128, 16, 64, 8),
    CooperativeTile(16, 64, 128, 16, 64, 4),
    CooperativeTile(32, 32, 256, 32, 32, 8),
    CooperativeTile(32, 32, 128, 32, 32, 4),
    CooperativeTile(32, 64, 128, 32, 64, 8),
    CooperativeTile(32, 64, 128, 32, 64, 4),
    CooperativeTile(64, 32, 128, 64, 32, 8),
)
# The parameter ``tile`` of routes whose operands are fragments.
FRAGMENT_TILES: Mapping[str, FragmentTile] = by_name(
    FragmentTile(64, 96, 32, 64, 48),
    FragmentTile(64, 192, 32, 64, 48),
    FragmentTile(64, 256, 32, 64, 64),
    FragmentTile(128, 96, 32, 64, 48, stages=3),
    FragmentTile(96, 96, 32, 48, 48),
    FragmentTile(96, 96, 32, 48, 48, stages=3),
    FragmentTile(96, 128, 32, 48, 64),
    FragmentTile(48, 256, 32, 48, 64),
    FragmentTile(64, 128, 32, 64, 32),
    FragmentTile(64, 128, 32, 64, 32, stages=3),
    FragmentTile(128, 64, 32, 64, 32),
    FragmentTile(64, 64, 32, 64, 32),
    FragmentTile(64, 64, 32, 32, 32, stages=3),
    FragmentTile(32, 256, 32, 32, 64),
    FragmentTile(32, 256, 32, 32, 64, stages=3),
    FragmentTile(32, 128, 32, 32, 32, stages=3),
    FragmentTile(32, 64, 32, 16, 32),
    FragmentTile(32, 32, 32, 16, 16),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """Products of matrices as tiles of cooperative matrices make them: rows, columns, how many, the products of a sum,
    the form of the kernel, and elements of operands and results. A sum may have several ``runs`` of ``depth`` products,
    each padded to whole k-tiles."""

    rows: int
    columns: int
    batches: int
    depth: int
    form: str = ""
    elements: int = 0
    runs: int = 1

    @property
    def tiles(self) -> Mapping[str, CooperativeTile]:
        """Those of its form."""
        return FRAGMENT_TILES if self.form == FRAGMENTS else TILES

    def work(self, name: str) -> Work:
        """What the tile of that name makes of it."""
        tile = self.tiles[name]
        outputs = self.rows * self.columns * self.batches
        workgroups = blocks(tile, self.rows, self.columns, self.batches)
        k_tiles = ceil_div(self.runs * ceil_div(self.depth, tile.team_depth), tile.teams)
        return Work(workgroups, k_tiles, outputs, self.form, tile.products, 2 * self.elements)

    def costs(self, device: Device) -> Costs:
        """Those of tiles in this form."""
        return _OF_FORM.get(self.form, _COSTS).of(device)


@functools.lru_cache(maxsize=64)  # each way of each call asks more than once
def _costing(product: Product, device: Device) -> Callable[[str, int], tuple[float, float]]:
    """Microseconds by a tile in so many slices, as those of `TileCosts.times`."""
    costs, target = product.costs(device), target_of(device)
    times = functools.cache(lambda name: costs.times(name, product.work(name), target))
    return functools.cache(lambda name, slices: times(name)(slices))


def estimated_us(product: Product, tile: str, slices: int, device: Device) -> float | None:
    """Microseconds of a product by the tile of that name in so many slices; None without its costs."""
    return _costing(product, device)(tile, slices)[0] if tile in product.costs(device).costs else None


@functools.lru_cache(maxsize=64)  # each way of each call asks
def _held(device: Device, form: str) -> tuple[str, ...]:
    """Tiles of a form that a device can hold."""
    return tuple(name for name, tile in Product(1, 1, 1, 1, form).tiles.items() if tile.fits(device))


def tiles_by_rule(
    product: Product, device: Device, takes: Callable[[CooperativeTile], bool] = lambda tile: True
) -> tuple[str, ...]:
    """Tiles that a device can hold and that ``takes`` a product, the one first that should take the least time of those
    whose costs are known."""
    fitting = [name for name in _held(device, product.form) if takes(product.tiles[name])]
    costs, us = product.costs(device), _costing(product, device)
    known = [name for name in fitting if costs.has(name, product.form)]
    return first(min(known, key=lambda name: us(name, 1), default=next(iter(fitting), "")), fitting)


def split_by_rule(product: Product, slices: Sequence[int], device: Device, tiles: Sequence[str]) -> tuple[str, int]:
    """Which of some tiles and which of the ``slices`` of K should take the least time: none, or as many as there are
    compute units for, and k-tiles in each of them."""
    costs, us = product.costs(device), _costing(product, device)

    def most(name: str) -> int:
        work = product.work(name)
        units = compute_units(device) // max(work.workgroups, 1)
        return min(work.k_tiles // costs.least_k_tiles, units) if name in costs.split else 1

    known = {name: most(name) for name in tiles if costs.has(name, product.form)}
    ways = [(name, count) for name in known for count in slices if count == 1 or count <= known[name]]
    return min(ways, key=lambda way: us(*way), default=(tiles[0], 1))


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


_LEAST = min(TILES.values(), key=lambda tile: tile.shared_bytes)

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
FITS = Requirement(
    "a workgroup that holds a tile of whole matrices",
    lambda call, device: any(tile.fits(device) for tile in TILES.values()),
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
NEEDS = (HALF, MATRICES, FITS, BINDS_RESIDUAL)
