"""Faults planted into shaders for a test, as broken drivers and kernels have them: none of them is in vkconv."""

import contextlib
import dataclasses
import shutil
from pathlib import Path

from vkconv.backend import runtime
from vkconv.compiler import pipeline_spirv
from vkconv.fixed import Unfixed
from vkconv.glsl import shader_dir
from vkconv.glslang import compile_shader


@dataclasses.dataclass(frozen=True)
class Fault:
    """In the shader ``stem``, the text ``old`` of ``file`` (its own, or an include, in whatever folder) is replaced by
    ``new``."""

    stem: str
    file: str
    old: str
    new: str


def _macro(*lines):
    return "".join(f"{line:88}\\\n" for line in lines)


# The lanes of a first subgroup may read before others have written. These come late, or a GPU would hide it.
MISSING_BARRIER = Fault(
    "softmax",
    "include/reduction.glsl",
    _macro(
        "        if (index < count) space[slot] = value;",
        "        barrier();",
        "        for (uint left = count; left > 1;) {",
    ),
    _macro(
        "        uint late = slot;",
        "        for (uint i = 0; slot >= 32 && i < 5000; i++) late = late * 1664525u + 1013904223u;",
        "        if (index < count && late != 77777u) space[slot] = value;",
        "        for (uint left = count; left > 1;) {",
    ),
)
# As where a driver starts 32 invocations whatever is asked for.
WRONG_LOCAL_SIZE = Fault(
    "unary",
    "include/common.glsl",
    "return gl_GlobalInvocationID.y * (gl_NumWorkGroups.x * gl_WorkGroupSize.x) + gl_GlobalInvocationID.x;",
    "uint size = min(gl_WorkGroupSize.x, 32u), group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;\n"
    "    return group * size + min(gl_LocalInvocationID.x, size - 1);",
)
WRONG_TAIL = Fault("unary", "unary.comp", "if (i < count)", "if (i + 3 < count)")
SWAPPED_PADDING = Fault("conv2d_direct", "conv2d_direct.comp", "* sh - pt;", "* sh - pl;")
NAN_DROPPING_MAX = Fault("pool2d", "pool2d.comp", "best = larger(v, best);", "if (v > best) best = v;")
# By integer operations: packHalf2x16 and unpackHalf2x16 may cancel.
HALF_OVERFLOW = Fault(
    "unary",
    "unary.comp",
    '#include "activation.glsl"\n',
    """#include "activation.glsl"
float through_half(float v) {
    uint size = floatBitsToUint(v) & 0x7FFFFFFFu;
    if (size >= 0x7F800000u) return v;
    uint made = (size + 0xFFFu + ((size >> 13) & 1u)) & 0xFFFFE000u;
    if (made >= 0x47800000u) made = 0x7F800000u;
    return uintBitsToFloat(made | (floatBitsToUint(v) & 0x80000000u));
}
#define activate(id, x, a, b) through_half(activate(id, x, a, b))
""",
)
# Every workgroup writes the last element: which one comes last is up to the device.
RACE = Fault(
    "unary",
    "unary.comp",
    "if (i < count) STORE(y, i,",
    "if (i + 1 == chunk) y[count - 1] = 0.0;\n        else if (index > 0u && gl_LocalInvocationIndex == 0u) "
    "y[count - 1] = float(gl_WorkGroupID.x);\n        if (i < count - 1) STORE(y, i,",
)
# What the memory held before is added to: nothing clears it between two runs.
STALE_MEMORY = Fault(
    "unary",
    "unary.comp",
    "STORE(y, i, VALUE_OF(",
    "STORE(y, i, (i == 5u && !isnan(y[i]) ? y[i] : 0.0) + VALUE_OF(",
)


@contextlib.contextmanager
def planted(fault, folder, monkeypatch, device):
    """The shader with its fault in the place of the real one, on a device without pipelines of either."""
    made = folder / "shaders"
    shutil.copytree(shader_dir(), made)
    (path,) = made.rglob(Path(fault.file).name)
    text = path.read_text()
    assert fault.old in text, f"{fault.file} has changed: plant the fault anew"
    text = text.replace(fault.old, fault.new)
    path.write_text(text)
    if "y[" in fault.new:
        common = made / "include" / "common.glsl"
        common.write_text(common.read_text().replace("#define WRITEONLY writeonly", "#define WRITEONLY"))
    live = runtime.open_device(device)

    def forget():
        for key in [key for key in live._pipelines if key[0].partition(".")[0] == fault.stem]:
            del live._pipelines[key]

    forget()
    with monkeypatch.context() as patch:

        def code(shader, fixed):
            if shader.stem != fault.stem:
                return pipeline_spirv(shader, fixed)
            wrong = compile_shader(shader, made)
            return wrong if fixed is None else Unfixed.of(wrong, shader.key).fixed(fixed)

        patch.setattr(runtime, "pipeline_spirv", code)
        try:
            yield
        finally:
            forget()
