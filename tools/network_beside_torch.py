"""Times networks of torchvision on the device beside PyTorch on the same GPU, in one run: f32 (TF32 off), f16, bf16.

    python tools/network_beside_torch.py [--dtype f16] [--batch 1 --batch 32] [--together] [-o FILE] [resnet50 ...]

Needs PyTorch with CUDA, torchvision, and what torch.onnx needs. The network has random weights, and running means,
variances and scales of layers as if it were trained; it comes to vkconv as ONNX. PyTorch runs it with its BatchNorm
folded into the convolutions before it, eagerly and as a CUDA graph, with cuDNN's benchmark mode on, in the faster of
both layouts. *device* is GPU time of inferences that follow one another; *call* is what a caller waits for, from numpy
arrays to numpy arrays. Errors are of the largest output of PyTorch in f64. --no-pass adds a row of vkconv without that
pass. --together prepares all networks at once, in processes of their own, and times one after the other. -o keeps the
rows as JSON, with device, versions and date.
"""

import argparse
import contextlib
import copy
import dataclasses
import datetime
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.fx.experimental.optimization
import torchvision
from beside_torch import TORCH_TYPES

import vkconv
from vkconv.backend.executable import Executable
from vkconv.core import DType, atomic_write, bytes_str
from vkconv.plan.planner import Options
from vkconv.table import Column, Table

_LAYOUTS = (torch.contiguous_format, torch.channels_last)


def network(name: str) -> torch.nn.Module:
    """In evaluation mode, on the CPU; its outputs are of the size of one, so that 16-bit floats hold what is inside."""
    torch.manual_seed(0)
    module = torchvision.models.get_model(name, weights=None).eval()
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(part.running_var, 0.8, 1.2)
            torch.nn.init.uniform_(part.weight, 0.4, 0.8)
            torch.nn.init.uniform_(part.bias, -0.2, 0.2)
        if isinstance(part, torchvision.models.convnext.CNBlock):  # 1e-6 before training, which f16 keeps apart
            torch.nn.init.uniform_(part.layer_scale, 0.1, 1.0)
    return module


def exported(module: torch.nn.Module, x: torch.Tensor, path: Path) -> Path:
    torch.onnx.export(module, (x,), path, input_names=["x"], output_names=["y"], dynamo=False)
    return path


def _events_us(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _median_us(run: Callable[[], object], seconds: float, clock: Callable[[Callable[[], object]], float]) -> float:
    """After as long of warming up: a GPU that waited runs at a part of its clock."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run()
    torch.cuda.synchronize()
    end, times = time.monotonic() + seconds, [clock(run)]
    while time.monotonic() < end:
        times.append(clock(run))
    return statistics.median(times)


def _wall_us(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e6


SCHEMA = "vkconv.networks-beside-torch/1"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is measured of each network."""

    batches: tuple[int, ...]
    dtypes: tuple[DType, ...]
    left_out: tuple[str, ...]
    seconds: float
    device: str
    eagerly: bool = True


Row = tuple[str, float, float, float]
"""What ran, device and call in us, the largest error."""


def _torch_rows(
    module: torch.nn.Module, x: np.ndarray, want: np.ndarray, dtype: DType, layout: torch.memory_format, asked: Asked
) -> list[Row]:
    """Eager, if asked for, and as a CUDA graph, in one layout."""
    net = module.to(device="cuda", dtype=TORCH_TYPES[dtype], memory_format=layout)
    given = torch.from_numpy(x).cuda().to(TORCH_TYPES[dtype]).contiguous(memory_format=layout)

    def eager() -> torch.Tensor:
        return net(given)

    def row(name: str, run: Callable[[], torch.Tensor]) -> Row:
        def called() -> np.ndarray:
            given.copy_(torch.from_numpy(x))
            return run().float().cpu().numpy()

        error = _error(called(), want)
        return name, _median_us(run, asked.seconds, _events_us), _median_us(called, asked.seconds, _wall_us), error

    eager()  # cuDNN's choice of algorithms
    rows = [row("eager", eager)] if asked.eagerly else []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = net(given)

    def replayed() -> torch.Tensor:
        graph.replay()
        return kept

    return [*rows, row("CUDA graph", replayed)]


def torch_rows(module: torch.nn.Module, x: np.ndarray, want: np.ndarray, dtype: DType, asked: Asked) -> list[Row]:
    """Eager, if asked for, and as a CUDA graph, each in its faster layout."""
    both = [_torch_rows(module, x, want, dtype, layout, asked) for layout in _LAYOUTS]
    return [min(rows, key=lambda row: row[1]) for rows in zip(*both, strict=True)]


Timed = Callable[[], list[tuple[Row, str]]]
"""Times what is ready: rows, each with what is said of it."""


def vkconv_timed(
    kept: contextlib.ExitStack, model: Path, x: np.ndarray, want: np.ndarray, dtype: DType, asked: Asked, left_out: str
) -> Timed:
    """The same of vkconv, and its launches and memory, ready as long as it is kept. Without one pass, if given."""
    options = Options(dtype=None if dtype is DType.F32 else dtype, skip_passes=(left_out,) if left_out else ())
    session = kept.enter_context(vkconv.load(model, asked.device, options=options))
    first = _error(next(iter(session.run({"x": x}).values())), want)

    def timed() -> list[tuple[Row, str]]:
        seconds = asked.seconds
        executable: Executable = next(iter(session._executables.values()))
        repeats = executable.repeat(4)
        times: list[float] = []
        started = time.monotonic()
        while time.monotonic() < started + 2 * seconds:
            spans = repeats.run()[0]
            times += spans if time.monotonic() > started + seconds else []
        call_us = _median_us(lambda: session.run({"x": x}), seconds, _wall_us)
        error = max(first, _error(next(iter(session.run({"x": x}).values())), want))
        memory = session.plan.memory
        launches = sum(node.dispatches for node in session.plan.nodes)
        sizes = bytes_str(memory.activations_bytes), bytes_str(memory.peak_bytes)
        note = f"{launches} launches, activations {sizes[0]}, peak {sizes[1]}"
        name = f"vkconv without {left_out}" if left_out else "vkconv"
        return [((name, statistics.median(times), call_us, error), note)]

    return timed


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


@dataclasses.dataclass(frozen=True)
class Measured:
    """One row: a network, batch and type, who ran it, and its times over those of vkconv."""

    network: str
    batch: int
    dtype: str
    run: str
    device_us: float
    call_us: float
    error: float
    device_ratio: float
    call_ratio: float
    note: str


def ready(name: str, asked: Asked, kept: contextlib.ExitStack) -> list[tuple[int, DType, list[Timed]]]:
    """A network in each batch and type: vkconv is ready, PyTorch chooses its algorithms in its turn."""
    made = []
    for batch in asked.batches:
        module = network(name)
        x = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
        folder = kept.enter_context(tempfile.TemporaryDirectory())
        model = exported(module, torch.from_numpy(x), Path(folder) / f"{name}.onnx")
        want = copy.deepcopy(module).double().cuda()(torch.from_numpy(x).double().cuda()).cpu().numpy()
        torch.cuda.empty_cache()
        try:
            folded = torch.fx.experimental.optimization.fuse(module)
        except Exception as problem:  # a module that cannot be traced has no BatchNorm that could be folded
            print(f"{name}: BatchNorm stays: {problem}", flush=True)
            folded = module
        for dtype in asked.dtypes:
            ways = [vkconv_timed(kept, model, x, want, dtype, asked, one) for one in ("", *asked.left_out)]

            def theirs(
                net: torch.nn.Module = folded, x: np.ndarray = x, want: np.ndarray = want, dtype: DType = dtype
            ) -> list[tuple[Row, str]]:
                return [(row, "") for row in torch_rows(copy.deepcopy(net), x, want, dtype, asked)]

            made.append((batch, dtype, [*ways, theirs]))
    return made


@torch.inference_mode()
def measure(name: str, asked: Asked, turn: contextlib.AbstractContextManager[object]) -> Iterator[list[Measured]]:
    """A network, the rows of each batch and type as they are done; it is timed in its turn."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    with contextlib.ExitStack() as kept:
        made = ready(name, asked, kept)
        with turn:
            for batch, dtype, ways in made:
                found = [row for timed in ways for row in timed()]
                ours = found[0][0]
                rows = [
                    Measured(name, batch, str(dtype), *row, row[1] / ours[1], row[2] / ours[2], said)
                    for row, said in found
                ]
                print(*rows, sep="\n", flush=True)
                yield rows


class Turns:
    """Networks in processes of their own: nothing is timed before all are ready, and then one after the other."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._all_ready, self._turn = context.Barrier(count), context.Lock()

    def __enter__(self) -> None:
        self._all_ready.wait()
        self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()

    def gone(self) -> None:
        """Of a network that never came to its turn."""
        self._all_ready.abort()


_Results: TypeAlias = "multiprocessing.Queue[list[Measured] | None]"


def _measure_in_turn(name: str, asked: Asked, turns: Turns, results: _Results) -> None:
    try:
        for rows in measure(name, asked, turns):
            results.put(rows)
    except BaseException:
        turns.gone()
        raise
    finally:
        results.put(None)


def together(names: Sequence[str], asked: Asked) -> Iterator[list[Measured]]:
    """The rows of all, as they are done; a network that fails ends those that are not ready."""
    context = multiprocessing.get_context("spawn")
    turns = Turns(len(names))
    results: _Results = context.Queue()
    processes = [context.Process(target=_measure_in_turn, args=(name, asked, turns, results)) for name in names]
    for process in processes:
        process.start()
    for _ in names:
        yield from iter(results.get, None)
    for process in processes:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["resnet50"])
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--dtype", type=DType, choices=list(TORCH_TYPES), action="append")
    parser.add_argument("--no-pass", action="append", default=[], help="a row of vkconv without this pass, too")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement, after as much warming up")
    parser.add_argument(
        "--device", default="auto", help="vkconv's; PyTorch takes the first that CUDA_VISIBLE_DEVICES leaves"
    )
    parser.add_argument("--graph-only", action="store_true", help="PyTorch as a CUDA graph alone, not eagerly too")
    parser.add_argument("--together", action="store_true", help="prepare all networks at once, in processes")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    dtypes = tuple(args.dtype or [DType.F32])
    asked = Asked(
        tuple(args.batch or [1, 32]), dtypes, tuple(args.no_pass), args.seconds, args.device, not args.graph_only
    )
    rows: list[Measured] = []
    versions = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    one_by_one = (rows for name in args.names for rows in measure(name, asked, contextlib.nullcontext()))
    for found in together(args.names, asked) if args.together else one_by_one:
        rows += found
        if args.output:  # what was measured is kept should a later one fail, or time end
            made = {
                "schema": SCHEMA,
                "device": torch.cuda.get_device_name(),
                "beside": versions,
                "vkconv": vkconv.__version__,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "rows": [dataclasses.asdict(row) for row in rows],
            }
            with atomic_write(args.output) as file:
                file.write(json.dumps(made, indent=1).encode() + b"\n")
    done = {(row.network, row.batch, row.dtype) for row in rows}
    wanted = itertools.product(args.names, asked.batches, map(str, dtypes))
    if missing := [f"{name} {dtype} {batch}" for name, batch, dtype in wanted if (name, batch, dtype) not in done]:
        sys.exit(f"not measured, see above: {', '.join(missing)}")
    fields = dataclasses.fields(Measured)
    columns = [Column(field.name.replace("_", " "), digits=3 if "ratio" in field.name else 4) for field in fields]
    table = [dataclasses.astuple(row) for row in rows]
    print(Table(f"{torch.cuda.get_device_name()}, {versions}", columns, table).to_markdown())
    for dtype in dtypes:
        ratios = [row.device_ratio for row in rows if row.run == "CUDA graph" and row.dtype == str(dtype)]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{dtype}: CUDA graph over vkconv, device time: geometric mean {mean:.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
