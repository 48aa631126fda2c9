"""Arrays as textures, four channels a texel, packed by a launch: operands of each inference and weights alike."""

import dataclasses

from vkconv import shaders
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import over_invocations
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.program import Dispatch
from vkconv.texture import CHANNELS, TexelFormat, Texture, lacks_format

TO_TEXTURE_3D = Shader(shaders.kernels.TO_TEXTURE)
TEXTURE_2D = ("TEXTURE_2D", "")
TO_TEXTURE_2D = TO_TEXTURE_3D.having(TEXTURE_2D)


@dataclasses.dataclass(frozen=True, slots=True)
class Texels:
    """An array [outer][lanes][rows][columns] of elements with these strides as texels: columns by rows, four lanes a
    texel, which is a slice; ``width`` columns of texels, zeros beyond those that there are. Slices lie one behind the
    other in three ``dims``, one below the other in two."""

    columns: int
    rows: int
    lanes: int
    column_stride: int
    row_stride: int
    lane_stride: int
    dims: int
    outer: int = 1
    outer_stride: int = 0
    column_step: int = 1

    @property
    def texture(self) -> Texture:
        width, layers = ceil_div(self.columns, self.column_step) * self.column_step, self.outer * self._slices
        return Texture(width, self.rows, layers) if self.dims == 3 else Texture(width, layers * self.rows)

    @property
    def _slices(self) -> int:
        return ceil_div(self.lanes, CHANNELS)

    def dispatch(self, source: str, target: str, device: Device) -> Dispatch:
        """The launch that makes the texture ``target`` of the buffer ``source``."""
        texture = self.texture
        push = {
            "total": texture.texels,
            "width": texture.width,
            "rows": self.rows,
            "slices": self._slices,
            "columns": self.columns,
            "lanes": self.lanes,
            "column_stride": self.column_stride,
            "row_stride": self.row_stride,
            "lane_stride": self.lane_stride,
            "outer_stride": self.outer_stride,
        }
        shader = TO_TEXTURE_3D if self.dims == 3 else TO_TEXTURE_2D
        grid = over_invocations(texture.texels, alone_by_default(device), device)
        return Dispatch(shader, {"x": source, "texels": target}, *grid, push)


def texel_format(half: bool) -> TexelFormat:
    """The texels of a call: of 16 bits where it is f16, else of f32, which hold bf16 too."""
    return "rgba16f" if half else "rgba32f"


def has_format(half: bool, device: Device) -> bool:
    """Whether the device samples and stores the texels of a call."""
    return not lacks_format(texel_format(half), device)
