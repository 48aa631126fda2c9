"""Compiles products by all tiles of four rows or fewer an invocation, which GPUs of few registers choose from, where
``--sweep tile`` would take hours: the emulated compilers take minutes for each larger tile. As ``vkconv compile -o``:

    python tools/compile_tiles.py mali-g610 tiles.json ['regular expression of tiles']
    python tools/evidence.py tiles.json first_choices.json  # these of vkconv compile --no-fixed-push
"""

import re
import sys
from pathlib import Path

import msgspec

from vkconv.cli.compile import compile_wanted
from vkconv.compilers.gpus import find_gpu
from vkconv.compilers.live import planning_device
from vkconv.compilers.pipelines import Asked
from vkconv.compilers.rows import Result
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

# A route that has tiles, and calls that differ in what its kernel does.
CALLS = {
    "implicit_gemm": (
        "conv2d:x=1x64x56x56,w=64x64x3x3,b=64,p=1,act=relu",
        "conv2d:x=1x64x56x56,w=64x64x3x3,b=64,p=1,act=relu,dtype=f16",
        "conv2d:x=1x512x7x7,w=2048x512x1x1,b=2048",
        "conv2d:x=1x3x224x224,w=64x3x7x7,b=64,s=2,p=3,act=relu",
    ),
    "transposed_phases": ("conv_transpose2d:x=1x64x28x28,w=64x32x4x4,s=2,p=1",),
    "im2col_gemm": ("conv2d:x=1x32x32x32,w=176x32x3x3,p=1", "conv2d:x=1x8x64x64,w=16x8x3x3,p=1"),
    "transposed_gemm": ("conv_transpose2d:x=1x64x28x28,w=64x32x4x4,s=2,p=1",),
    "shared": (
        "matmul:a=512x512,b=512x512",
        "matmul:a=40x96,b=96x6625,bias=6625",
        "matmul:a=4096x4096,b=4096x4096,dtype=f16",
        "matmul:a=197x768,b=768x3072,bias=3072,act=gelu,dtype=bf16",
        "matmul_integer:a=128x768:u8,b=768x768:i8,a_zero=scalar:u8",
    ),
    "two_stage": (
        "conv2d_backward_weight:x=4x32x28x28,dy=4x64x28x28,w_shape=64x32x3x3,p=1",
        "conv2d_backward_weight:x=32x16x56x56,dy=32x64x56x56,w_shape=64x16x1x1",
        "conv2d_backward_weight:x=16x16x225x225,dy=16x64x225x225,w_shape=64x16x3x3,p=1,dtype=bf16",
    ),
    "gemm": (
        "qlinear_conv:x=1x64x56x56:u8,w=64x64x3x3:i8,w_scale=64,w_zero=64:i8,b=64:i32,x_scale=scalar,"
        "x_zero=scalar:u8,y_scale=scalar,y_zero=scalar:u8,p=1",
    ),
}
_SMALL = re.compile(r"(gemm_|shared_)?(16|32|64)x(32|64)x(4|8|16)(b2|loop)?(_[124]x4)?|register_[248]x4")
_NOT = "64x64x16"  # of 8 x 8
_MAX_SECONDS = 60


def main(name: str, path: str, only: str = ".*") -> None:
    """Compile them for a GPU."""
    gpu = find_gpu(name)
    facts, planned_with = planning_device(gpu, "")
    wanted = []
    for route_name, texts in CALLS.items():
        for text in texts:
            call = parse_call(text, OPS)
            (route,) = (route for route in OPS[call.op].routes if route.name == route_name)
            if not judge(route, call, facts).allowed:
                continue
            tiles = [tile for tile in route.params(call, facts)["tile"] if _SMALL.fullmatch(tile) and tile != _NOT]
            tiles = [tile for tile in tiles if re.fullmatch(only, tile)]
            wanted += [Asked(call, text, 1, route_name, {"tile": tile}) for tile in tiles]
    result = Result(calls="tiles of products", options={"max_seconds": _MAX_SECONDS}, gpus=[], rows=[])
    compile_wanted(gpu, wanted, facts, planned_with, result, _MAX_SECONDS, fixed_push=False)
    Path(path).write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
