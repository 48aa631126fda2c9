"""The kernels of reduce and how each is launched."""

import dataclasses

from vkconv import shaders
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import most_invocations, over_invocations, over_workgroups
from vkconv.ops.core.workgroups import WORKGROUPS, alone_or_spread
from vkconv.ops.kernels.strided import dispatch_each
from vkconv.ops.reduce.problem import FUNCTIONS, L2, LOG_SUM_EXP, PART_RANK, Problem, Split, whole
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Word

TREE, SUBGROUP, VEC4, ATOMIC_FLOAT = (
    ((name, ""),) for name in ("REDUCTION_TREE", "REDUCTION_SUBGROUP", "VEC4", "ATOMIC_FLOAT")
)
_DTYPES = (DType.F32, DType.I32)
SERIAL = tuple(Shader(shaders.reduce.REDUCE, t) for t in (*_DTYPES, DType.I64))
INT64_TREE = Shader(shaders.reduce.REDUCE, DType.I64, TREE)
ROWS_TREE = tuple(Shader(shaders.reduce.REDUCE_ROWS, t, TREE) for t in _DTYPES)
ROWS_SUBGROUP = tuple(Shader(shaders.reduce.REDUCE_ROWS, t, SUBGROUP) for t in _DTYPES)
COLUMNS_TREE = tuple(Shader(shaders.reduce.REDUCE_COLUMNS, t, (*TREE, *v)) for t in _DTYPES for v in ((), VEC4))
COLUMNS_ALONE = tuple(Shader(shaders.reduce.REDUCE_COLUMNS, t, v) for t in _DTYPES for v in ((), VEC4))
COMBINE = tuple(Shader(shaders.reduce.REDUCE_COMBINE, t, form) for t in _DTYPES for form in ((), TREE))
CLUSTERS = tuple(Shader(shaders.reduce.REDUCE_CLUSTERS, t) for t in _DTYPES)
ATOMIC = (
    *(Shader(shaders.reduce.REDUCE_ATOMIC, t, form) for t in _DTYPES for form in ((), TREE)),
    *(Shader(shaders.reduce.REDUCE_ATOMIC, DType.F32, (*form, *ATOMIC_FLOAT)) for form in ((), TREE)),
)


# From so many parts on, up to so many outputs: lanes for each and outputs of a workgroup.
_COMBINE = Policy("reduce.combine", tuple[tuple[int, int, int, int], ...])


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What becomes of combined terms: ``function`` finished in ``target``, or with ``to_parts`` as they are. ``peak``
    is the buffer of the maxima, where log_sum_exp has them from a launch before."""

    function: str
    target: str = "y"
    to_parts: bool = False
    peak: str = ""

    @property
    def buffers(self) -> dict[str, str | None]:
        return {"peaks": self.peak or None, "y": self.target}

    def constants(self, p: Problem) -> dict[str, Word]:
        ranks = {"KEPT_RANK": p.kept.rank, "LINE_RANK": p.line_rank}
        return {"FUNCTION": FUNCTIONS[self.function][0], **ranks}

    @property
    def ending(self) -> dict[str, Word]:
        """The constants of kernels that may finish what they combine."""
        return {"TO_PARTS": self.to_parts, "GIVEN_PEAK": bool(self.peak)}

    @property
    def passes(self) -> int:
        """Times that a kernel reads its elements."""
        return 2 if self.function == LOG_SUM_EXP and not self.peak else 1


def _push(p: Problem, split: Split, parts: int) -> dict[str, Argument]:
    kept, lines = (0,) * (PART_RANK - p.kept.rank), (0,) * (PART_RANK - 1 - p.line_rank)
    return {
        "outputs": p.outputs,
        "count": p.count,
        "lines": p.lines,
        "run": p.run,
        "run_stride": p.reduced.strides[0][-1],
        "part_lines": split.lines,
        "part_run": split.run,
        "line_splits": split.of_line(p),
        "parts": parts,
        "kept_n": (*p.kept.dims, *kept),
        "kept_stride": (*p.kept.strides[0], *kept),
        "line_n": (*p.reduced.dims[:-1], *lines),
        "line_stride": (*p.reduced.strides[0][:-1], *lines),
    }


def power_of_two(least: int) -> int:
    """The smallest one that is not below ``least``."""
    return 1 << max(0, least - 1).bit_length()


def _again(p: Problem, lines: int, run: int) -> int:
    """Iterations of l2 whose squares are out of range, which reads elements once more, one by one."""
    return lines * (run + 1 + p.line_rank) if p.function == L2 else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """A workgroup of ``local`` lanes takes a part of an output, ``loads`` vec4 loads of a lane at a time; lanes meet by
    ``form``."""

    local: int
    loads: int
    form: tuple[tuple[str, str], ...]

    def across(self, split: Split) -> int:
        """Lanes along a line."""
        return self.local if split.lines == 1 else min(self.local, power_of_two(ceil_div(split.run, 4)))

    def groups(self, p: Problem) -> int:
        """Workgroups of a reduction that is not split."""
        return p.outputs

    def iterations(self, p: Problem, split: Split, passes: int) -> int:
        across = self.across(split)
        line = ceil_div(split.run, 4 * across * self.loads) + self.loads + 4 + p.line_rank
        lines = ceil_div(split.lines, self.local // across)
        return passes * (line * lines + self.local) + _again(p, lines, ceil_div(split.run, across)) + p.kept.rank

    def launch(self, p: Problem, split: Split, output: Output, device: Device) -> Dispatch:
        parts, shader = split.count(p), Shader(shaders.reduce.REDUCE_ROWS, p.dtype, self.form)
        lanes = {"ACROSS": self.across(split), "LOADS": self.loads, "WHOLE": split.in_vec4(p)}
        return Dispatch(
            shader,
            shader.taking({"x": "x", **output.buffers}),
            *over_workgroups(p.outputs * parts, self.local, device),
            _push(p, split, parts),
            shader.taking({**output.constants(p), **output.ending, **lanes}),
            4 * self.local,
            self.iterations(p, split, output.passes),
        )

    def __str__(self) -> str:
        return f"{self.local} lanes along a row, {self.loads} vec4 loads at a time"


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """``across`` lanes take ``span`` neighbouring columns each, vec4 of them with ``width`` 4; the ``local`` lanes of a
    workgroup are so many slabs of rows, ``loads`` rows at a time."""

    local: int
    across: int
    loads: int
    span: int
    width: int

    @property
    def slabs(self) -> int:
        return self.local // self.across

    def run_slabs(self, split: Split) -> int:
        """Slabs along the run of a line; the others take further lines."""
        return self.slabs if split.lines == 1 else min(self.slabs, power_of_two(split.run))

    def groups(self, p: Problem) -> int:
        return p.planes * ceil_div(p.width, self.width * self.across * self.span)

    def iterations(self, p: Problem, split: Split, passes: int) -> int:
        run_slabs = self.run_slabs(split)
        line = ceil_div(split.run, run_slabs * self.loads) + self.loads + 2 + p.line_rank
        meet = 2 * self.span * self.slabs.bit_length()
        lines = ceil_div(split.lines, self.slabs // run_slabs)
        return passes * (line * lines + meet) + _again(p, lines, ceil_div(split.run, run_slabs)) + p.kept.rank

    def launch(self, p: Problem, split: Split, output: Output, device: Device) -> Dispatch:
        parts = split.count(p)
        form = (*(TREE if self.slabs > 1 else ()), *(VEC4 if self.width == 4 else ()))
        shape = {"ACROSS": self.across, "LOADS": self.loads, "SPAN": self.span, "RUN_SLABS": self.run_slabs(split)}
        shader = Shader(shaders.reduce.REDUCE_COLUMNS, p.dtype, form)
        return Dispatch(
            shader,
            shader.taking({"x": "x", **output.buffers}),
            *over_workgroups(self.groups(p) * parts, self.local, device),
            _push(p, split, parts),
            shader.taking({**output.constants(p), **output.ending, **shape}),
            4 * self.width * self.local if self.slabs > 1 else 0,
            self.iterations(p, split, output.passes),
        )

    def __str__(self) -> str:
        each = f"{self.width * self.span} columns of each of {self.across} lanes"
        return f"{each}, {self.slabs} slabs of rows, {self.loads} rows at a time"


Tiling = Rows | Columns


def combine(p: Problem, parts: int, source: str, output: Output, device: Device, *, keys: bool = False) -> Dispatch:
    """Parts in ``source`` to outputs; with none, the identity. ``keys`` are extremes as integers."""
    rows = _COMBINE.of(device)
    lanes, elements = next(row[2:] for row in rows if parts >= row[0] and p.outputs <= row[1])
    lanes = min(lanes, most_invocations(device) // elements)
    many, local = lanes > 1, lanes * elements
    shader = Shader(shaders.reduce.REDUCE_COMBINE, p.dtype, TREE if many else ())
    sizes = {"LANES": lanes, "ELEMENTS": elements}
    return Dispatch(
        shader,
        shader.taking({"part": source, **output.buffers}),
        *over_workgroups(ceil_div(p.outputs, elements), local, device),
        _push(p, whole(p), parts),
        shader.taking({**output.constants(p), "TO_PARTS": output.to_parts, **sizes, "KEYS": keys}),
        4 * local if many else 0,
        combine_iterations(parts),
    )


def combine_iterations(parts: int) -> int:
    return 2 * (parts // 4 + 16)  # of l2; others read parts once


def atomic(p: Problem, items: int, native: bool, local: int, output: Output, device: Device) -> Dispatch:
    """Every invocation combines up to ``items`` elements; a workgroup of a row meets, and one of columns does not,
    before an output is combined with them."""
    meets = not p.columns
    parts = max(1, ceil_div(p.count, items * local if meets else items))
    added = native and p.dtype is DType.F32 and output.function not in ("max", "min", "prod")
    form = (*(TREE if meets else ()), *(ATOMIC_FLOAT if added else ()))
    shader, total = Shader(shaders.reduce.REDUCE_ATOMIC, p.dtype, form), p.outputs * parts
    return Dispatch(
        shader,
        shader.taking({"x": "x", **output.buffers}),
        *(over_workgroups(total, local, device) if meets else over_invocations(total, local, device)),
        _push(p, whole(p), parts),
        {**output.constants(p), "ITEMS": items},
        4 * local if meets else 0,
        items * (1 + p.line_rank) + p.kept.rank + 1 + local.bit_length(),
    )


def clusters(p: Problem, cluster: int, local: int, device: Device) -> Dispatch:
    """``cluster`` lanes of a subgroup for each output."""
    shader, lanes = Shader(shaders.reduce.REDUCE_CLUSTERS, p.dtype), device.subgroup_size
    return Dispatch(
        shader,
        {"x": "x", "y": "y"},
        *over_workgroups(ceil_div(p.outputs, local // cluster), local, device),
        _push(p, whole(p), 1),
        {**Output(p.function).constants(p), "SUBGROUP": lanes, "CLUSTER": cluster},
        loop_iterations=clusters_iterations(p, cluster),
    )


def clusters_iterations(p: Problem, cluster: int) -> int:
    line = Output(p.function).passes * (ceil_div(p.run, cluster) + 1 + p.line_rank)
    return p.lines * line + _again(p, p.lines, ceil_div(p.run, cluster)) + p.kept.rank


def serial(p: Problem, local: int, device: Device) -> Dispatch:
    """An invocation for each output."""
    shader, constants = Shader(shaders.reduce.REDUCE, p.dtype), Output(p.function).constants(p)
    push, iterations = _push(p, whole(p), 1), serial_iterations(p)
    return dispatch_each(shader, p.outputs, device, {"local": local}, push, constants, loop_iterations=iterations)


def int64_tree(p: Problem, local: int, device: Device) -> Dispatch:
    """A workgroup for each output of 64-bit integers."""
    groups = over_workgroups(p.outputs, local, device)
    constants, iterations = Output(p.function).constants(p), ceil_div(p.count, local) * (1 + p.line_rank) + p.kept.rank
    push, size = _push(p, whole(p), 1), 8 * local
    return Dispatch(INT64_TREE, {"x": "x", "y": "y"}, *groups, push, constants, size, iterations + local + _dividing(p))


def serial_locals(elements: int, device: Device) -> tuple[int, ...]:
    """Workgroup sizes of an invocation for each output, of an input of so many elements."""
    return alone_or_spread(device, elements < WORKGROUPS.of(device).spread)


def serial_iterations(p: Problem) -> int:
    line = Output(p.function).passes * (p.run // 8 + p.run % 8 + 1 + p.line_rank)
    return p.lines * line + _again(p, p.lines, p.run) + p.kept.rank + _dividing(p)


def _dividing(p: Problem) -> int:
    """Iterations of dividing 64 bits, one by one."""
    return 64 if p.dtype is DType.I64 and p.function == "mean" else 0
