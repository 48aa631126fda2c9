"""What CONTRIBUTING.md says of adding a route and an epilogue step, done to a copy of the checkout."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()

SHADER = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "extremes.glsl"

void main() {
    uint i = flat_index();
    if (i >= planes) return;
    float most = LOAD(x, i * SIZE);
    for (uint k = 1; k < SIZE; k++) most = larger(most, LOAD(x, i * SIZE + k));
    STORE(y, i, most);
}
"""

DECLARATION = """
POOL2D_WHOLE = Kernel(
    "pool2d_whole",
    bindings=(reads("ELEM x"), writes("ELEM y")),
    push=(*fields("uint", "planes"),),
    constants=(*constants("uint", SIZE=1),),
)
"""

MODULE = '''"""pool2d where one window is a whole image."""

import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import linear_groups
from vkconv.ops.core.requirements import FLOATS
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

SHADER = Shader(shaders.spatial.POOL2D_WHOLE)
MAXIMUM = Requirement(
    "the maximum of a whole image",
    lambda call, device: call["kind"] == "max" and tuple(call["kernel"]) == call.shape("x")[2:],
    lambda call, device: f"{call['kind']} of {call['kernel']}",
)


def _program(call: Call, device: Device, params: Params) -> Program:
    n, c, h, w = call.shape("x")
    step = Dispatch(
        SHADER,
        {"x": "x", "y": "y"},
        linear_groups(n * c, params["local"], device),
        (params["local"], 1, 1),
        {"planes": n * c},
        {"SIZE": h * w},
        loop_iterations=h * w,
    )
    return Program((step,))


WHOLE = Route(
    "whole",
    _program,
    (SHADER,),
    why="an invocation reads an image",
    must=(FLOATS, MAXIMUM),
    params=lambda call, device: {"local": (64, 32)},
)
'''

# Run by the copy: `what` does something, whose result is printed as JSON.
RUN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from vkconv.compiler import spirv
from vkconv.glsl import shader_dir, source_files
from vkconv.device import load_device
from vkconv.kernel import Shader
from vkconv.ops import OPS, all_shaders
from vkconv.ops.core.calls import parse_call
from vkconv.plan.explain import explain_call
from vkconv.plan.planner import Options
from vkconv.route import choose
H200 = load_device("h200")
"""


def section(title: str) -> str:
    """The first paragraph under a title: the files. What follows says what goes into them."""
    (found,) = [part for part in re.split(r"\n\n(?=\*\*|Shaders:)", TEXT) if part.startswith(f"**{title}**")]
    return found.partition("\n\n")[0]


def paths(title: str, **names: str) -> set[str]:
    """The files that a section names, with these names in their places."""
    named = re.findall(r"`([\w.<>-]+/[\w./<>-]+\.(?:py|comp|glsl))`", section(title))
    return {re.sub(r"<(\w+)>", lambda match: names[match[1]], path) for path in named}


class Copy:
    """The checkout's package and shaders in another folder, and which of the files were touched there."""

    def __init__(self, folder: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__", "_spirv", "*.so")
        for name in ("vkconv", "shaders"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        self.folder = folder
        self.touched: set[str] = set()

    def add(self, path: str, text: str) -> None:
        self.touched.add(path)
        target = self.folder / path
        assert not target.exists()
        target.write_text(text)

    def edit(self, path: str, old: str, new: str) -> None:
        self.touched.add(path)
        target = self.folder / path
        text = target.read_text()
        assert text.count(old) == 1, f"{path}: {old!r} stands there {text.count(old)} times"
        target.write_text(text.replace(old, new))

    def run(self, code: str) -> object:
        """What the code, after `RUN`, leaves in ``result``; without the site's startup, which knows the checkout."""
        others = [path for path in sys.path if path and not Path(path).is_relative_to(ROOT / "tests")]
        found = json.dumps([str(self.folder), *(path for path in others if Path(path) != ROOT)])
        script = f"{RUN}\nassert str(shader_dir()).startswith({str(self.folder)!r})\n{code}\nprint(json.dumps(result))"
        command = [sys.executable, "-I", "-S", "-c", script, found]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=300)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_route_is_a_shader_with_its_declaration_a_module_and_a_row(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.add("shaders/spatial/pool2d_whole.comp", SHADER)
    declared = "\nPOOL2D_ARGMAX = Kernel("
    copy.edit("vkconv/shaders/spatial.py", declared, DECLARATION + declared)
    copy.add("vkconv/ops/spatial/pool2d_whole.py", MODULE)
    copy.edit("vkconv/ops/spatial/pool2d.py", "\nROUTES = (\n", "\nROUTES = (\n    WHOLE,\n")
    before = "from vkconv.program import Program"
    importing = "from vkconv.ops.spatial.pool2d_whole import WHOLE\n"
    copy.edit("vkconv/ops/spatial/pool2d.py", before, importing + before)
    assert copy.touched == paths("Add a route", room="spatial", name="pool2d_whole", op="pool2d")

    result = copy.run(
        """
call = parse_call("pool2d:x=2x3x13x17,kind=max,k=13x17,dtype=f16", OPS)
other = parse_call("pool2d:x=2x3x13x17,kind=max,k=2,s=2", OPS)
routes = OPS["pool2d"].routes
(whole,) = [route for route in routes if route.name == "whole"]
shader = whole.build(call, H200, {"local": 32}).steps[0].shader
said = explain_call(call, H200, Options(routes={"pool2d": "whole"}, params={"pool2d": {"local": 32}}))[1]
result = {
    "chosen": choose(routes, call, H200).route.name,
    "other": choose(routes, other, H200).route.name,
    "forced": choose(routes, call, H200, forced="whole", given=lambda route: {"local": 32}).params,
    "explained": [said["route"], said["by"], said["shaders"]],
    "shader": shader.key,
    "compiled": [len(spirv(one)) > 100 for one in (whole.shaders[0], shader)],
    "shipped": sorted(one.key for one in all_shaders() if one.kernel.name == "pool2d_whole"),
}
"""
    )
    assert isinstance(result, dict)
    assert (result["chosen"], result["other"], result["forced"]) == ("whole", "tiles", {"local": 32})
    assert result["explained"] == ["whole", "forced", ["pool2d_whole.f16"]]
    assert result["shader"] == "pool2d_whole.f16" and result["compiled"] == [True, True]
    assert result["shipped"] == ["pool2d_whole.bf16", "pool2d_whole.f16", "pool2d_whole.f32"]


@pytest.mark.long
def test_a_scalar_function_is_a_row_and_a_line_and_reaches_every_epilogue(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    row, line = '    Activation("tan", 32,', "#ifdef EVERY_FUNCTION\n"
    added = '    Activation("sloped", 42, (), lambda x, a, b: 1.28125 * x),\n'
    copy.edit("vkconv/ops/core/activation.py", row, added + row)
    copy.edit("shaders/include/activation.glsl", line, "    case 42: return 1.28125 * x;  // sloped\n" + line)
    assert copy.touched == paths("Add a scalar function")

    # In every kernel with an epilogue, in one variant, the factor is a constant: 1.28125 as f32.
    result = copy.run(
        """
kernels = {shader.kernel.name: shader for shader in reversed(all_shaders())}
ends = [s for name, s in kernels.items() if any(f.name == "epilogue.glsl" for f in source_files(name))]
conv = parse_call("conv2d:x=1x8x9x11,w=16x8x3x3,b=16,p=1,act=sloped", OPS)
steps = choose(OPS["conv2d"].routes, conv, H200).route.build(conv, H200).steps
result = {
    "reached": {s.kernel.name: (0x3FA40000).to_bytes(4, "little") in spirv(s) for s in ends},
    "op": choose(OPS["sloped"].routes, parse_call("sloped:x=3x5", OPS), H200).route.name,
    "ids": [step.constants["ACT"] for step in steps if "ACT" in step.constants],
}
"""
    )
    assert isinstance(result, dict)
    assert len(result["reached"]) >= 15 and all(result["reached"].values())
    assert result["op"] == "elementwise" and result["ids"] == [42]


def test_an_epilogue_step_is_at_most_six_files() -> None:
    named = paths("Add an epilogue step")
    assert 2 <= len(named) <= 6
    assert not [path for path in named if not (ROOT / path).is_file()]
