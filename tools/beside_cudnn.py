"""Times conv2d calls on the device's chosen routes beside cuDNN on the same GPU, in one run: f32, TF32 off.

    python tools/beside_cudnn.py [--batch 1 --batch 32] [SUITE ...]

Needs PyTorch with CUDA. vkconv's time is GPU time of a call whose result was checked against the float64 reference;
cuDNN's is that of a captured CUDA graph of many calls, with its benchmark mode on.
"""

import argparse
import dataclasses
import math
import statistics

import torch

from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import floors
from vkconv.bench.engine import BenchOptions, measure
from vkconv.bench.suites import read_suite
from vkconv.ops import OPS
from vkconv.ops.calls import format_call
from vkconv.route import Call
from vkconv.table import Column, Table

_GRAPH_CALLS, _REPLAYS = 50, 9


def with_batch(call: Call, n: int) -> Call:
    """The same call over another number of images."""
    x = call.operands["x"]
    assert x is not None
    specs = {**call.operands, "x": dataclasses.replace(x, shape=(n, *x.shape[1:]))}
    return OPS[call.op].call(specs, call.attrs)


def cudnn_us(call: Call) -> float:
    """Microseconds of the same convolution in PyTorch, without bias and activation."""
    top, left, bottom, right = call["padding"]
    x = torch.randn(*call.shape("x"), device="cuda")
    w = torch.randn(*call.shape("w"), device="cuda")
    if (top, left) != (bottom, right):
        x, top, left = torch.nn.functional.pad(x, (left, right, top, bottom)), 0, 0

    def run() -> None:
        torch.nn.functional.conv2d(x, w, None, call["stride"], (top, left), call["dilation"], call["groups"])

    for _ in range(5):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_GRAPH_CALLS):
            run()
    times_us = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times_us.append(start.elapsed_time(end) * 1e3 / _GRAPH_CALLS)
    return statistics.median(times_us[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=["peers", "resnet50"])
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--min-time", type=float, default=0.02)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    roofs = floors(open_device("auto"))
    calls: dict[str, Call] = {}
    for suite in args.suites:
        for entry in read_suite(suite):
            for n in (args.batch or (1, 32)) if entry.call and entry.op == "conv2d" else ():
                call = with_batch(entry.call, n)
                calls[format_call(call, OPS)] = call
    rows, logs = [], []
    for text, call in calls.items():
        row = measure(call, options=BenchOptions(min_time_s=args.min_time), floors=roofs)
        us = cudnn_us(call)
        ratio = us / row.us_median if row.us_median else None
        logs += [math.log(ratio)] if ratio else []
        rows.append((text, row.route, row.us_median, row.gflops, row.gbps, row.percent_of_floor, us, ratio, row.check))
        print(*rows[-1], flush=True)
    columns = [
        Column("call"),
        Column("route"),
        Column("us"),
        Column("GFLOP/s"),
        Column("GB/s"),
        Column("floor %", digits=3),
        Column("cuDNN us"),
        Column("cuDNN / vkconv", digits=3),
        Column("check"),
    ]
    mean, worst = math.exp(sum(logs) / len(logs)), math.exp(min(logs))
    title = f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}: {len(rows)} calls"
    print(Table(f"{title}, geometric mean {mean:.3f}, least {worst:.3f}", columns, rows).to_markdown())


if __name__ == "__main__":
    main()
