"""Strided insertion into zeros as steps of a program: by one launch that gathers, or by a fill and a scatter."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.shapes import row_major
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.strided import STRIDED_COPY, dispatch_each, dispatch_rows, strided_copy, tables
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Word
from vkconv.requirement import Requirement
from vkconv.route import Params

MAX_RANK = 5
GATHER = Shader(shaders.kernels.SCATTER_STRIDED, DType.U32)
GATHER_EPILOGUE = Shader(shaders.kernels.SCATTER_STRIDED, defines=(("EPILOGUE", ""),))
FILL = Shader(shaders.kernels.FILL, DType.U32)
FILL_SCATTER = (FILL, STRIDED_COPY)
_NONE: Mapping[str, Word] = {}


@dataclasses.dataclass(frozen=True)
class Insertion:
    """y, zeros of shape ``y``, with element i of x at ``offset`` + i ``stride``, each along every dimension; what lies
    outside y is dropped."""

    x: Sequence[int]
    y: Sequence[int]
    offset: Sequence[int]
    stride: Sequence[int]

    def _axes(self) -> list[tuple[int, int, int, int, bool]]:
        """(y, x, offset, stride, passed through) of every dimension."""
        rows = zip(self.y, self.x, self.offset, self.stride, strict=True)
        return [(y, x, o, s, y == x and o == 0 and s == 1) for y, x, o, s in rows]

    @property
    def passed_through(self) -> int:
        """Elements of the dimensions that y has as x has them, without the first dimension."""
        return math.prod(y for y, *_, plain in self._axes()[1:] if plain)

    def _collapsed(self, apart: int) -> list[tuple[int, int, int, int]]:
        """(y, x, offset, stride), neighbouring dimensions that are passed through joined, but the first ``apart`` ones
        with none of the others."""
        rows: list[tuple[int, int, int, int]] = []
        axes = enumerate(self._axes())
        for (plain, _), run in itertools.groupby(axes, key=lambda axis: (axis[1][-1], axis[0] < apart)):
            together = [axis for _, axis in run]
            if plain:
                extent = math.prod(y for y, *_ in together)
                rows.append((extent, extent, 0, 1))
            else:
                rows += [axis[:4] for axis in together]
        return rows

    def gather(self, device: Device, params: Params, source: str, target: str) -> Dispatch:
        """The launch that writes every element of y once."""
        return self.gather_by(GATHER, device, params, {"x": source, "y": target})

    def gather_finished(self, device: Device, params: Params, source: str, e: Epilogue, channels: int) -> Dispatch:
        """The same with an epilogue, of the zeros too. The outermost dimensions are images and channels."""
        buffers = {"x": source, "y": e.target, **e.buffers}
        push = {"channels": channels, **e.push}
        return self.gather_by(GATHER_EPILOGUE, device, params, buffers, push, e.constants, apart=2)

    def gather_by(
        self,
        shader: Shader,
        device: Device,
        params: Params,
        buffers: Mapping[str, str | None],
        push: Mapping[str, Argument] = _NONE,
        constants: Mapping[str, Word] = _NONE,
        apart: int = 0,
    ) -> Dispatch:
        """`gather` by a variant of the shader: ``push`` and ``constants`` are what it has on top, ``apart`` the first
        dimensions that it takes as its outermost one."""
        rows = self._collapsed(apart)
        shift = all(s & (s - 1) == 0 for *_, s in rows)
        y, x, offset, stride = zip(*rows, strict=True)
        stride = tuple(s.bit_length() - 1 for s in stride) if shift else stride
        push = {**tables(shader, y, x, offset, stride), **push}
        constants = {"RANK": len(rows), "SHIFT": shift, **constants}
        return dispatch_rows(shader, math.prod(y[:-1]), y[-1], device, params, push, constants, buffers)

    def fill_scatter(self, device: Device, params: Params, source: str, target: str) -> tuple[Dispatch, ...]:
        """The launch that fills y with zeros, and the one that writes x over them, unless nothing of it is inside."""
        zeros = fill(math.prod(self.y), 0, device, params, target)
        first = [max(0, ceil_div(-o, s)) for _, _, o, s, _ in self._axes()]
        last = [min(x, ceil_div(y - o, s)) for y, x, o, s, _ in self._axes()]
        dims = [max(0, end - begin) for begin, end in zip(first, last, strict=True)]
        steps = row_major(self.x), [a * s for a, s in zip(row_major(self.y), self.stride, strict=True)]
        source_base = sum(i * a for i, a in zip(first, steps[0], strict=True))
        corner = (o + i * s for o, i, s in zip(self.offset, first, self.stride, strict=True))
        target_base = sum(i * a for i, a in zip(corner, row_major(self.y), strict=True))
        return zeros, *strided_copy(device, params, source, target, dims, *steps, source_base, target_base)


def fill(total: int, word: int, device: Device, params: Params, target: str) -> Dispatch:
    """The launch that writes one word to so many elements."""
    items = params["items"]
    push, constants = {"total": total, "value": word}, {"ITEMS": items}
    return dispatch_each(FILL, ceil_div(total, items), device, params, push, constants, {"y": target})


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """Up to how many elements that pass through one launch gathers; None: always."""

    most: int | None = None

    def __str__(self) -> str:
        return "always" if self.most is None else f"up to {self.most}" if self.most else "never"


_LIMIT = Policy("dgrad.zero_insertion", Limit)


def gathers(x: Insertion, device: Device) -> bool:
    """Whether one launch gathers by rule."""
    most = _LIMIT.of(device).most
    return most is None or x.passed_through <= most


def few_passed_through(of: Callable[[Call], Insertion]) -> Requirement:
    """`gathers` of the insertion that a call makes."""
    return Requirement(
        "no more elements of dimensions that pass through than such devices gather",
        lambda call, device: gathers(of(call), device),
        lambda call, device: (
            f"{of(call).passed_through}; one launch gathers {_LIMIT.of(device)} ({_LIMIT.said(device)})"
        ),
    )
