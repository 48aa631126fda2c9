"""Lines of composable_kernel's ckProfiler for gradients of grouped convolutions as call strings, in the layout that
they name: ``ckProfiler grouped_conv_bwd_weight 0 2 1 1 0 1 2 2 64 8 8 1 1 7 7 1 1 1 1 0 0 0 0 1``.

Arguments are those of ROCm/composable_kernel, profiler/src/profile_grouped_conv_bwd_weight.cpp and _data.cpp: data
type, layout, four on how it measures, dimensions, G, N, K and C (of a group), then for each axis kernel, input, stride,
dilation and padding before and behind, and split-K.
"""

from collections.abc import Mapping, Sequence

from vkconv.core import UsageError, shape_str

_PROGRAM = "ckProfiler"
_HOW = 4  # verification, initialization, log, time
# The layouts of input and output, and of weights, by their numbers; W stands for all axes.
_LAYOUTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "grouped_conv_bwd_weight": (
        *(("GNCW", "GKCX"), ("GNWC", "GKXC"), ("NWGC", "GKXC"), ("NGCW", "GKXC"), ("NGCW", "GKCX")),
    ),
    "grouped_conv_bwd_data": (("GNWC", "GKXC"), ("NWGC", "GKXC"), ("NGCW", "GKXC"), ("NGCW", "GKCX")),
}
_DTYPES: Mapping[str, Mapping[int, str]] = {
    "grouped_conv_bwd_weight": {0: "f32", 1: "f16", 2: "bf16,dw_dtype=f32", 5: "bf16"},
    "grouped_conv_bwd_data": {0: "f32", 1: "f16", 2: "bf16"},
}
_AXES, _KERNEL = {2: "HW", 3: "DHW"}, {2: "YX", 3: "ZYX"}


def is_line(text: str) -> bool:
    """True for a text that begins as a line of ckProfiler does."""
    words = text.split()
    return bool(words) and (words[0].endswith(_PROGRAM) or (words[0] in _LAYOUTS and len(words) > 1))


def calls(line: str) -> list[tuple[str, str]]:
    """The call of a line, and a note on what of it is left out. Raises UsageError naming what does not fit."""
    words = line.split()
    words = words[1:] if words[0].endswith(_PROGRAM) else words
    if not words or words[0] not in _LAYOUTS:
        raise UsageError(f"{line!r}: of {_PROGRAM} vkconv takes {', '.join(_LAYOUTS)}")
    name = words[0]
    try:
        values = [int(word) for word in words[1:]]
    except ValueError:
        raise UsageError(f"{line!r}: the arguments behind {name} are whole numbers") from None
    if len(values) < _HOW + 3 or values[_HOW + 2] not in (1, 2, 3):
        raise UsageError(f"{line!r}: argument 8 is the number of dimensions, 1 to 3")
    rank = values[_HOW + 2]
    count = _HOW + 3 + 4 + 6 * rank + 1
    if len(values) != count:
        raise UsageError(
            f"{line!r} has {len(values)} arguments behind {name}; with {rank} dimensions there are {count}"
        )
    (dtype, layout), sizes, split = values[:2], values[_HOW + 3 : -1], values[-1]
    if dtype not in _DTYPES[name] or layout not in range(len(_LAYOUTS[name])):
        known = ", ".join(map(str, _DTYPES[name]))
        raise UsageError(
            f"{line!r}: data type {dtype}, of which vkconv takes {known}, and layout {layout}, 0 to "
            f"{len(_LAYOUTS[name]) - 1}"
        )
    text = _text(line, name, rank, sizes, _LAYOUTS[name][layout])
    note = f"split-K {split} is left out: it is a parameter of routes" if split > 1 else ""
    return [(f"{text},dtype={_DTYPES[name][dtype]}", note)]


def _text(line: str, name: str, rank: int, sizes: Sequence[int], layouts: tuple[str, str]) -> str:
    (groups, n, k, c), axes = sizes[:4], [list(sizes[4 + i * rank : 4 + (i + 1) * rank]) for i in range(6)]
    if rank == 1:  # one of height 1
        axes = [[one, *axis] for one, axis in zip((1, 1, 1, 1, 0, 0), axes, strict=True)]
    kernel, extent, stride, dilation, before, behind = axes
    if min(groups, n, k, c, *kernel, *extent, *stride, *dilation) < 1 or min(*before, *behind) < 0:
        raise UsageError(f"{line!r}: sizes, strides and dilations are at least 1, paddings at least 0")
    rows = zip(extent, kernel, stride, dilation, before, behind, strict=True)
    out = [(e + b + a - d * (t - 1) - 1) // s + 1 for e, t, s, d, b, a in rows]
    if min(out) < 1:
        raise UsageError(f"{line!r}: the {shape_str(kernel)} kernel does not fit {shape_str(extent)}")
    axis, taps = _AXES[len(kernel)], _KERNEL[len(kernel)]
    layout, w_layout = layouts[0].replace("W", axis), layouts[1].replace("X", taps)

    def lies(letters: str, channels: int, extents: Sequence[int]) -> str:
        values = {"G": groups, "N": n, "K": k, "C": channels, **dict(zip(axis, extents, strict=True))}
        values |= dict(zip(taps, kernel, strict=True))
        return shape_str([values[letter] for letter in letters])

    x, dy, w = lies(layout, c, extent), lies(layout, k, out), lies(w_layout, c, extent)
    op = name.replace("grouped_conv_bwd", f"conv{len(axis)}d_backward")
    shapes = f"x={x},dy={dy},w_shape={w}" if op.endswith("weight") else f"dy={dy},w={w},x_shape={x}"
    numbers = f"s={shape_str(stride)},p={shape_str([*before, *behind])},d={shape_str(dilation)},g={groups}"
    return f"{op}:{shapes},{numbers},layout={layout},w_layout={w_layout}"
