"""Which route each shipped device takes for a list of calls, as text files that tests hold the rules to.

After a rule was changed on purpose: ``python tests/pure/golden_routes.py`` writes them anew; read the difference.
"""

from pathlib import Path

from vkconv.core import LimitError, RouteError
from vkconv.device import load_device, shipped_devices
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes

FOLDER = Path(__file__).parent / "golden"

_BYTES = "x_scale=scalar,x_zero=scalar:u8,y_scale=scalar,y_zero=scalar:u8"

CALLS = (
    # the layers of ResNet-50 and MobileNetV2 that differ in kind
    "conv2d:x=1x3x224x224,w=64x3x7x7,b=64,s=2,p=3,act=relu",
    "conv2d:x=1x64x56x56,w=64x64x1x1,b=64,act=relu",
    "conv2d:x=1x64x56x56,w=64x64x3x3,b=64,p=1,act=relu",
    "conv2d:x=1x256x14x14,w=256x256x3x3,b=256,p=1,act=relu",
    "conv2d:x=1x512x7x7,w=2048x512x1x1,b=2048",
    "conv2d:x=1x512x14x14,w=512x512x3x3,s=2,p=1",
    "conv2d:x=1x32x112x112,w=32x1x3x3,b=32,g=32,p=1,act=relu6",
    "conv2d:x=1x96x112x112,w=96x1x3x3,b=96,g=96,s=2,p=1",
    "conv2d:x=1x24x56x56,w=144x24x1x1,b=144,act=relu6",
    # ExecuTorch's thresholds of im2col, and what comes near them
    "conv2d:x=1x32x32x32,w=176x32x3x3,p=1",
    "conv2d:x=1x128x7x7,w=192x128x3x3,p=1",
    "conv2d:x=1x8x64x64,w=16x8x3x3,p=1",
    # groups, dilation, one channel, one pixel, a batch
    "conv2d:x=2x64x28x28,w=64x16x3x3,g=4,p=1",
    "conv2d:x=1x64x28x28,w=64x64x3x3,p=2,d=2",
    "conv2d:x=1x1x28x28,w=8x1x5x5",
    "conv2d:x=1x256x1x1,w=10x256x1x1,b=10",
    "conv2d:x=32x64x56x56,w=64x64x3x3,p=1",
    "conv_transpose2d:x=1x64x28x28,w=64x32x4x4,s=2,p=1",
    "conv_transpose2d:x=1x16x14x14,w=16x1x3x3,s=2,p=1,op=1",
    "conv2d_backward_data:dy=4x64x28x28,w=64x32x3x3,x_shape=28x28,p=1",
    "conv2d_backward_data:dy=4x64x28x28,w=64x32x1x1,x_shape=55x55,s=2",
    "conv2d_backward_weight:x=4x32x28x28,dy=4x64x28x28,w_shape=64x32x3x3,p=1",
    "conv2d_backward_weight:x=32x16x56x56,dy=32x64x56x56,w_shape=64x16x1x1",
    "matmul:a=1x1000,b=1000x10",
    "matmul:a=512x512,b=512x512",
    "matmul:a=40x96,b=96x6625,bias=6625",
    "pool2d:x=1x64x112x112,kind=max,k=3,s=2,p=1",
    "transpose:x=1x40x96,perm=0x2x1",
    "resize:x=1x96x24x80,sizes=1x96x48x160,mode=nearest",
    "add:a=1x64x56x56,b=64x1x1",
    "softmax:x=8x1000",
    "layer_norm:x=196x768,scale=768,bias=768",
    "reduce:x=1x512x7x7,op=mean,axes=2x3",
    "reduce:x=1000003,op=sum",
    "arg_reduce:x=20x6625",
    # 8-bit integers
    f"qlinear_conv:x=1x64x56x56:u8,w=64x64x3x3:i8,w_scale=64,w_zero=64:i8,b=64:i32,{_BYTES},p=1",
    f"qlinear_conv:x=1x96x56x56:u8,w=96x1x3x3:i8,w_scale=96,w_zero=96:i8,{_BYTES},g=96,p=1",
    "matmul_integer:a=128x768:u8,b=768x768:i8,a_zero=scalar:u8",
    # half precision: one image and many, short and long sums, few rows
    "conv2d:x=1x64x56x56,w=64x64x3x3,p=1,b=64,act=relu,dtype=f16",
    "conv2d:x=1x256x14x14,w=256x256x3x3,p=1,b=256,act=relu,dtype=f16",
    "conv2d:x=1x512x7x7,w=2048x512x1x1,b=2048,dtype=f16",
    "conv2d:x=32x64x56x56,w=64x64x3x3,p=1,dtype=f16",
    "conv2d:x=32x256x56x56,w=512x256x1x1,s=2,dtype=f16",
    "conv2d:x=1x96x112x112,w=96x1x3x3,b=96,g=96,s=2,p=1,dtype=f16",
    "conv2d_backward_data:dy=32x512x28x28,w=512x256x1x1,x_shape=56x56,s=2,dtype=f16",
    "conv2d_backward_weight:x=16x16x225x225,dy=16x64x225x225,w_shape=64x16x3x3,p=1,dtype=bf16",
    "matmul:a=4096x4096,b=4096x4096,dtype=f16",
    "matmul:a=1x2048,b=2048x1001,bias=1001,dtype=f16",
    "matmul:a=197x768,b=768x3072,bias=3072,act=gelu,dtype=bf16",
)


def taken(text, device):
    """The route of a call on a device with its parameters, or the error that planning it ends in."""
    try:
        node = plan(graph_of_shapes(parse_call(text, OPS)), device, Options(passes=False)).plan.nodes[0]
    except (LimitError, RouteError) as error:
        return f"{type(error).__name__}: {error}"
    return str(node.choice)


def golden(name):
    """The text of a device's file."""
    device = load_device(name)
    return "".join(f"{text}\n    {taken(text, device)}\n" for text in CALLS)


def main():
    for name in shipped_devices():
        (FOLDER / f"{name}.txt").write_text(golden(name))


if __name__ == "__main__":
    main()
