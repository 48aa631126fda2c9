"""What loads, shuffles and multiply-adds cost a subgroup of a CPU driver: the figures behind the routes by subgroups.

    python tools/lane_costs.py [--device INDEX]

Each row is a loop with several of one thing in its body, on workgroups of one subgroup that keep every core busy; the
time of an empty loop is taken off. CPU time of the process, least of several runs, so that other load on the machine
counts little. In ns of one core for a whole subgroup.
"""

import argparse
import struct
import tempfile
import time
from pathlib import Path

from vkconv.backend import _bridge
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader

ITERATIONS, WORKGROUPS, RUNS, ELEMENTS = 2000, 64, 25, 1 << 20
SHADER = """#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x_id = 0) in;
layout(set = 0, binding = 0) readonly restrict buffer X {{ {element} x[]; }};
layout(set = 0, binding = 1) writeonly restrict buffer Y {{ float y[]; }};
layout(push_constant) uniform Push {{ int iterations; float a; float b; }};
void main() {{
    int lane = int(gl_LocalInvocationID.x);
    int at = int(gl_WorkGroupID.x) * 64;
    float factor = a, addend = b;
    {element} s[{count}];
    [[unroll]] for (int c = 0; c < {count}; c++) s[c] = {element}(lane + c);
    for (int i = 0; i < iterations; i++) {{
        [[unroll]] for (int c = 0; c < {count}; c++) {body};
    }}
    {element} sum = s[0];
    [[unroll]] for (int c = 1; c < {count}; c++) sum += s[c];
    y[gl_GlobalInvocationID.x] = float(sum{part});
}}
"""
# What is measured: element type, how many in the body of the loop, and the body;.
ROWS = (
    ("load, an address per lane", "float", 8, "s[c] += x[at + i * 8 + c * 64 + lane]"),
    ("load, one address", "float", 8, "s[c] += x[at + i * 8 + c]"),
    ("load of two, an address per lane", "vec2", 4, "s[c] += x[at + i * 8 + c * 64 + lane]"),
    ("load of four, an address per lane", "vec4", 2, "s[c] += x[at + i * 8 + c * 64 + lane]"),
    ("shuffle", "float", 8, "s[c] += subgroupShuffle(s[(c + 1) % 8], c)"),
    ("multiply-add", "float", 64, "s[c] = s[c] * factor + addend"),
)


def pipeline(device: _bridge.Device, lanes: int, element: str, count: int, body: str) -> _bridge.Pipeline:
    part = ".x" if element.startswith("vec") else ""
    with tempfile.TemporaryDirectory() as folder:
        text = SHADER.format(element=element, count=count, body=body, part=part)
        (Path(folder) / "costs.comp").write_text(text)
        spirv = compile_shader(Shader("costs"), Path(folder))
    return device.pipeline(spirv, 2, 12, [lanes])


def loop_ns(device: _bridge.Device, lanes: int, element: str, count: int, body: str) -> float:
    """Nanoseconds of one iteration for one subgroup."""
    nbytes = 4 * ELEMENTS
    buffers = [(device.buffer(nbytes, "device"), 0, nbytes) for _ in range(2)]
    fill = device.recording()
    fill.fill(buffers[0][0], 0, nbytes, 0x3F800000)
    fill.end()
    fill.run()
    push = struct.pack("iff", ITERATIONS, 0.999, 0.001)
    recording = device.recording()
    recording.dispatch(pipeline(device, lanes, element, count, body), buffers, push, (WORKGROUPS, 1, 1))
    recording.end()
    recording.run()
    least = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        recording.run()
        least = min(least, time.process_time() - start)
    return least / (ITERATIONS * WORKGROUPS) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0)
    args = parser.parse_args()
    device = _bridge.Device(args.device)
    properties = device.facts["properties"]
    if "CPU" not in properties["VkPhysicalDeviceProperties"]["deviceType"]:
        raise SystemExit("this counts CPU time: give the index of a CPU driver (vkconv devices)")
    lanes = properties["VkPhysicalDeviceSubgroupProperties"]["subgroupSize"]
    empty = loop_ns(device, lanes, "float", 1, "s[c] += 1.0")
    print(f"{properties['VkPhysicalDeviceProperties']['deviceName']}, subgroups of {lanes}")
    print(f"{'an iteration of a loop':36s} {empty:6.2f} ns")
    for name, element, count, body in ROWS:
        print(f"{name:36s} {(loop_ns(device, lanes, element, count, body) - empty) / count:6.2f} ns")


if __name__ == "__main__":
    main()
