"""Times calls on the device beside PyTorch on the same GPU, in one run: f32 with TF32 off, f16 or bf16.

    python tools/beside_torch.py [--dtype f16] [--batch 1 --batch 32] [--route chosen,all,NAME] [SUITE | CALL ...]

Convolutions and their gradients (cuDNN), matrix products (cuBLAS), reductions, softmax and normalizations. Needs
PyTorch with CUDA. vkconv's time is GPU time of a call whose result was checked against the float64 reference; PyTorch's
is that of a captured CUDA graph of many calls, for convolutions with cuDNN's benchmark mode on, in the faster layout.
"""

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping

import torch

from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import floors
from vkconv.bench.engine import measure
from vkconv.bench.sampling import BenchOptions
from vkconv.bench.suites import is_call, parse_entries, read_suite
from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.route import judge
from vkconv.table import Column, Table

_REPLAYS = 9
_GRAPH_US = 20000.0  # of one replay, at most
_MOST_CALLS = 50


def with_batch(call: Call, n: int) -> Call:
    """The same call over another number of images."""
    specs = dict(call.operands)
    for name in ("x", "dy"):
        spec = specs.get(name)
        if spec is not None:
            specs[name] = dataclasses.replace(spec, shape=(n, *spec.shape[1:]))
    attrs = dict(call.attrs)
    if "x_shape" in attrs:
        attrs["x_shape"] = (n, *attrs["x_shape"][1:])
    return OPS[call.op].call(specs, attrs)


Run = Callable[[], object]
TORCH_TYPES = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}


def _shapes(call: Call) -> dict[str, tuple[int, ...]]:
    return {name: call.shape(name) for name, spec in call.operands.items() if spec is not None}


def _normals(call: Call, shape: tuple[int, ...]) -> torch.Tensor:
    """Of the element type of the call's floats."""
    return torch.randn(*shape, device="cuda", dtype=TORCH_TYPES[call.half or DType.F32])


def _drawn(call: Call) -> dict[str, torch.Tensor]:
    return {name: _normals(call, shape) for name, shape in _shapes(call).items()}


_REDUCTIONS: Mapping[str, Callable[[torch.Tensor, tuple[int, ...]], object]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "log_sum_exp": torch.logsumexp,
    "l2": lambda x, axes: torch.linalg.vector_norm(x, dim=axes),
}


def _convolution(call: Call, layout: torch.memory_format) -> Run:
    """A convolution or a gradient, without bias and activation."""
    shapes = _shapes(call)
    x_shape = shapes.get("x") or call.attrs["x_shape"]
    w_shape = shapes.get("w") or call.attrs["w_shape"]
    x, w = (_normals(call, shape).to(memory_format=layout) for shape in (x_shape, w_shape))
    top, left, bottom, right = call["padding"]
    if (top, left) != (bottom, right):
        x, top, left = torch.nn.functional.pad(x, (left, right, top, bottom)), 0, 0
    window = call["stride"], (top, left), call["dilation"]
    if call.op == "conv2d":
        return lambda: torch.nn.functional.conv2d(x, w, None, *window, call["groups"])
    if call.op == "conv_reduce":
        of = _REDUCTIONS[call["op"]]
        return lambda: of(torch.nn.functional.conv2d(x, w, None, *window, call["groups"]), (2, 3))
    dy = _normals(call, shapes["dy"]).to(memory_format=layout)
    mask = [call.op == "conv2d_backward_data", call.op == "conv2d_backward_weight", False]
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(dy, x, w, None, *window, False, [0, 0], call["groups"], mask)


def _reduce(call: Call) -> Run:
    x, of = _drawn(call)["x"], _REDUCTIONS[call["op"]]
    return lambda: of(x, call["axes"])


def _arg_reduce(call: Call) -> Run:
    x = _drawn(call)["x"]
    return lambda: torch.argmax(x, call["axis"])


def _softmax(call: Call) -> Run:
    x, of = _drawn(call)["x"], torch.log_softmax if call["log"] else torch.softmax
    return lambda: of(x, call["axis"])


def _layer_norm(call: Call) -> Run:
    given = _drawn(call)
    inner = given["x"].shape[call["axis"] :]
    return lambda: torch.nn.functional.layer_norm(given["x"], inner, given.get("scale"), given.get("bias"))


def _group_norm(call: Call) -> Run:
    given = _drawn(call)
    return lambda: torch.nn.functional.group_norm(given["x"], call["groups"], given.get("scale"), given.get("bias"))


def _matmul(call: Call) -> Run:
    """The product alone; of gemm_reduce with the reduction after it, as PyTorch does it."""
    given = _drawn(call)
    a, b = (given[name].mT if call[flag] else given[name] for name, flag in (("a", "trans_a"), ("b", "trans_b")))
    if call.op == "matmul":
        return lambda: torch.matmul(a, b)
    of, axis = _REDUCTIONS[call["op"]], (-1 if call["axis"] == "n" else -2,)
    return lambda: of(torch.matmul(a, b), axis)


_OTHERS: Mapping[str, Callable[[Call], Run]] = {
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "matmul": _matmul,
    "gemm_reduce": _matmul,
}
_CONVOLUTIONS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight", "conv_reduce")


def torch_us(call: Call) -> float:
    """Microseconds of PyTorch; of a convolution in the faster layout."""
    if call.op in _OTHERS:
        return _timed_us(_OTHERS[call.op](call))
    return min(_timed_us(_convolution(call, layout)) for layout in (torch.contiguous_format, torch.channels_last))


def _timed_us(run: Callable[[], object]) -> float:
    def events_us(repeat: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        repeat()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    calls = max(2, min(_MOST_CALLS, int(_GRAPH_US / events_us(run))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return statistics.median([events_us(graph.replay) / calls for _ in range(_REPLAYS)][1:])


def calls_of(texts: list[str], batches: list[int] | None, dtype: DType) -> Iterator[Call]:
    """What PyTorch has of suites and call strings; convolutions of the default suites at batch 1 and 32."""
    for text in texts or ["peers", "resnet50"]:
        read = parse_entries if is_call(text) or (text.startswith("conv") and " " in text) else read_suite
        for entry in read(text, dtype):
            if entry.call is None or entry.op not in (*_CONVOLUTIONS, *_OTHERS):
                continue
            for n in batches or ([] if texts else [1, 32]) or [None]:
                yield entry.call if n is None else with_batch(entry.call, n)


def routes_of(call: Call, names: str, device: Device) -> list[str | None]:
    """What to measure: the chosen route (None) and those that are named and can take the call."""
    wanted = names.split(",")
    legal = [route.name for route in OPS[call.op].routes if judge(route, call, device).allowed]
    named = [name for name in legal if "all" in wanted or name in wanted]
    return [*([None] if "chosen" in wanted else []), *named]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="SUITE | CALL")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--dtype", type=DType, choices=list(TORCH_TYPES), default=DType.F32)
    parser.add_argument("--route", default="chosen")
    parser.add_argument("--min-time", type=float, default=0.02)
    parser.add_argument(
        "--device", default="auto", help="vkconv's; PyTorch takes the first that CUDA_VISIBLE_DEVICES leaves"
    )
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    live = open_device(args.device)
    calls = {format_call(call, OPS): call for call in calls_of(args.texts, args.batch, args.dtype)}
    rows, logs = [], []
    for text, call in calls.items():
        us = torch_us(call)
        torch.cuda.empty_cache()
        for name in routes_of(call, args.route, live.device):
            row = measure(
                call, name, device=args.device, options=BenchOptions(min_time_s=args.min_time), floors=floors(live)
            )
            ratio = us / row.us_median if row.us_median else None
            logs += [math.log(ratio)] if ratio and name is None else []
            route = f"{row.route}*" if name is None else row.route
            rows.append((text, route, row.us_median, row.gflops, row.gbps, row.percent_of_floor, us, ratio, row.check))
            print(*rows[-1], row.why, file=sys.stderr, flush=True)
    columns = [
        Column("call"),
        Column("route"),
        Column("us"),
        Column("GFLOP/s"),
        Column("GB/s"),
        Column("floor %", digits=3),
        Column("PyTorch us"),
        Column("PyTorch / vkconv", digits=3),
        Column("check"),
    ]
    title = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    title += f": {len(calls)} calls in {args.dtype}"
    if logs:
        title += f", geometric mean {math.exp(sum(logs) / len(logs)):.3f}, least {math.exp(min(logs)):.3f}"
    print(Table(title, columns, rows).to_markdown())


if __name__ == "__main__":
    main()
