"""What a caller waits for beside the device: each way that inputs can go, by how many threads, and PyTorch's call.

    python tools/call_cost.py [--dtype f16] [--batch 1 --batch 32] [--network resnet50 | --model FILE.onnx] [-o FILE]

*device* is GPU time of the kernels alone, *call* what a caller waits for from numpy arrays to numpy arrays, *beside*
the difference. The ways are those of `Options.staging`: staged (True), streamed, in place (False), imported and the
policy's; and the policy's with the first launches whole, or by images in so many pieces (`Options.pieces`). The device
time of these has in it what smaller launches cost: hold their calls against the device time of the whole. Streamed
inputs go by chunks of other sizes too, by as many threads as the policy has. The policy's way is also timed with other
times of polling (`transfers.polling_us`). *in flight* is the time per run of 8 submitted runs at a time. A table shows
where the call by the policy goes, line by line. PyTorch is a CUDA graph in the faster layout, from pinned memory into
pinned memory, with the cast on its device; vkconv is given the same pinned arrays. Without torch, or with --model, that
row is left out.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import vkconv
from vkconv.backend.executable import Executable
from vkconv.backend.runtime import open_device
from vkconv.core import Array, DType, atomic_write
from vkconv.plan.planner import Options
from vkconv.table import Column, Table

try:
    import torch
except ImportError:
    torch = None

SCHEMA = "vkconv.call-cost/1"
WAYS = {
    "policy": Options(),
    "whole": Options(pieces=1),
    **{f"{count} pieces": Options(pieces=count) for count in (2, 4, 8)},
    "staged": Options(staging=True),
    "streamed": Options(staging="streamed"),
    "in place": Options(staging=False),
    "imported": Options(staging="imported"),
}
# The ways that take what the policy says of staging.
BY_POLICY = ("policy", "whole", "2 pieces", "4 pieces", "8 pieces")
THREADS = (1, 2, 4, 8, 16)
CHUNK_BYTES = (1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 22)
POLLING_US = (0.0, 20.0, 400.0, 5000.0)


@dataclasses.dataclass(frozen=True)
class Row:
    """One way, by so many threads; times in microseconds."""

    batch: int
    way: str
    threads: int
    chunk_bytes: int
    device_us: float
    call_us: float
    in_flight_us: float | None

    @property
    def beside_us(self) -> float:
        return self.call_us - self.device_us

    @property
    def ratio(self) -> float:
        return self.call_us / self.device_us


def median_us(run: Callable[[], object], seconds: float) -> float:
    """After half as long of warming up: a GPU that waited runs at a part of its clock."""
    end = time.monotonic() + seconds / 2
    while time.monotonic() < end:
        run()
    times: list[float] = []
    end += seconds
    while time.monotonic() < end or len(times) < 5:
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times)


def device_us(executable: Executable, seconds: float) -> float:
    repeats = executable.repeat(4)
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 20:
        times += repeats.run()[0]
    return statistics.median(times[len(times) // 3 :])


def in_flight_us(session: vkconv.Session, inputs: dict[str, Array], seconds: float) -> float:
    """Time per run of as many at a time as the session lets be in flight."""
    futures: list[Future[Any]] = [session.submit(inputs) for _ in range(16)]
    futures[-1].result()
    started, end = time.monotonic(), time.monotonic() + seconds
    count = 0
    while time.monotonic() < end or count < 16:
        future = session.submit(inputs)
        count += 1
    future.result()
    return (time.monotonic() - started) * 1e6 / count


def set_copying(executable: Executable, threads: int) -> None:
    for given in executable._ports._inputs.values():
        given._threads = threads


def streamed_by_chunks(
    model: Path, inputs: dict[str, Array], batch: int, options: Options, device_us: float, seconds: float
) -> list[Row]:
    """Calls whose inputs are streamed in chunks of each size that leaves more than one."""
    rows = []
    live = open_device()
    usual, nbytes = live.copying, max(array.nbytes for array in inputs.values())
    for chunk_bytes in CHUNK_BYTES:
        if chunk_bytes < nbytes:
            live.copying = msgspec.structs.replace(usual, chunk_bytes=chunk_bytes)
            with vkconv.load(model, options=options) as session:
                session.run(inputs)
                call = median_us(lambda: session.run(inputs), seconds)
            threads = usual.threads_for(nbytes)
            rows.append(Row(batch, f"streamed, {chunk_bytes >> 10} KiB", threads, chunk_bytes, device_us, call, None))
            print(rows[-1], flush=True)
    live.copying = usual
    return rows


def measured(
    model: Path, inputs: dict[str, Array], batch: int, dtype: DType, seconds: float, ways: list[str]
) -> tuple[list[Row], Table, dict[str, Array]]:
    """The policy's way and those asked for; the profile of the policy's; its outputs."""
    rows: list[Row] = []
    wanted: dict[str, Array] = {}
    for way, wanted_way in WAYS.items():
        if way not in ("policy", *ways):
            continue
        options = dataclasses.replace(wanted_way, dtype=None if dtype is DType.F32 else dtype)
        with vkconv.load(model, options=options, in_flight=8) as session:
            outputs = session.run(inputs)
            for name, array in outputs.items():
                found, want = (np.asarray(a, np.float64) for a in (array, wanted.get(name, array)))
                if not np.abs(found - want).max() <= 1e-2 * np.abs(want).max():
                    raise SystemExit(f"{way}: {name} is another than by the policy")
            wanted = wanted or outputs
            executable: Executable = next(iter(session._executables.values()))
            took_us = device_us(executable, seconds)
            copying = executable.live.copying
            nbytes = max(array.nbytes for array in inputs.values())
            if way == "policy":
                profile = session.profile(inputs, runs=9)
            counts = THREADS if way not in BY_POLICY and nbytes > 1 << 18 else (copying.threads_for(nbytes),)
            for threads in counts:
                set_copying(executable, threads)
                call = median_us(lambda: session.run(inputs), seconds)
                flying = in_flight_us(session, inputs, seconds) if way in BY_POLICY else None
                rows.append(Row(batch, way, threads, copying.chunk_bytes, took_us, call, flying))
                print(rows[-1], flush=True)
            usual_us = executable.live.polling_us
            for polling_us in POLLING_US if way == "policy" else ():
                executable.live.polling_us = polling_us
                call = median_us(lambda: session.run(inputs), seconds)
                way_us = f"policy, polling {polling_us:g} us"
                rows.append(Row(batch, way_us, copying.threads_for(nbytes), copying.chunk_bytes, took_us, call, None))
            executable.live.polling_us = usual_us
        if way == "streamed":
            rows += streamed_by_chunks(model, inputs, batch, options, took_us, seconds)
    return rows, host_table(profile), wanted


def host_table(profile: Any) -> Table:
    """What the host does of a profiled run, and the device as one line."""
    host = [(part.name, part.us) for part in profile.parts if part.op == "host"]
    copies = [(part.name, part.us) for part in profile.parts if part.op == "copy"]
    kernels_us = sum(part.us for part in profile.parts if part.op not in ("host", "copy"))
    return Table(
        "a profiled run, by the policy", [Column("what"), Column("us")], [*host, *copies, ("kernels", kernels_us)]
    )


def torch_row(module: Any, x: Any, batch: int, dtype: DType, seconds: float) -> Row:
    """PyTorch from pinned memory to pinned memory, in the faster layout."""
    from beside_torch import TORCH_TYPES

    found: list[Row] = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = module.to(device="cuda", dtype=TORCH_TYPES[dtype], memory_format=layout)
        there = torch.empty_like(x, device="cuda")
        given = torch.empty_like(there, dtype=TORCH_TYPES[dtype], memory_format=layout)
        for _ in range(3):
            given.copy_(there)
            net(given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            given.copy_(there)
            made = net(given).float()
        back = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)

        def call() -> None:
            there.copy_(x, non_blocking=True)  # noqa: B023 - called in this turn
            graph.replay()  # noqa: B023
            back.copy_(made, non_blocking=True)  # noqa: B023
            torch.cuda.synchronize()

        called = median_us(call, seconds)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times = []
        for _ in range(20):
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(float(start.elapsed_time(end)) * 1e3)
        found.append(Row(batch, f"PyTorch {torch.__version__}", 0, 0, statistics.median(times), called, None))
    return min(found, key=lambda row: row.call_us)


def of_network(
    name: str, batches: list[int], dtype: DType, seconds: float, ways: list[str]
) -> tuple[list[Row], list[Table]]:
    import torch.fx.experimental.optimization
    from network_beside_torch import exported, network

    rows: list[Row] = []
    tables: list[Table] = []
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        for batch in batches:
            module = network(name)
            pinned = torch.randn(batch, 3, 224, 224).pin_memory()
            model = exported(module, pinned.clone(), Path(folder) / f"{batch}.onnx")
            made, table, _ = measured(model, {"x": pinned.numpy()}, batch, dtype, seconds, ways)
            folded = torch.fx.experimental.optimization.fuse(module)
            made.append(torch_row(folded, pinned, batch, dtype, seconds))
            print(made[-1], flush=True)
            rows += made
            tables.append(table)
    return rows, tables


def of_model(model: Path, dtype: DType, seconds: float, ways: list[str]) -> tuple[list[Row], list[Table]]:
    with vkconv.load(model) as session:
        rng = np.random.default_rng(0)
        inputs = {
            name: rng.standard_normal(spec.dims).astype(spec.dtype.numpy) for name, spec in session.inputs.items()
        }
    rows, table, _ = measured(model, inputs, next(iter(inputs.values())).shape[0], dtype, seconds, ways)
    return rows, [table]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50", help="of torchvision")
    parser.add_argument("--model", type=Path, help="a model file with fixed shapes in place of a network")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--dtype", type=DType, default=DType.F16, choices=[DType.F32, DType.F16, DType.BF16])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument(
        "--way", action="append", choices=list(WAYS), help="beside the policy's; without it all of them"
    )
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    ways = args.way or list(WAYS)
    if args.model:
        rows, tables = of_model(args.model, args.dtype, args.seconds, ways)
    elif torch is None:
        parser.error("without torch give a --model")
    else:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        rows, tables = of_network(args.network, args.batch or [1, 32], args.dtype, args.seconds, ways)
    for table in tables:
        print(table.to_markdown())
    names = (
        "batch",
        "way",
        "threads",
        "device us",
        "call us",
        "beside us",
        "call/device",
        "in flight us",
        "of device %",
    )
    columns = [Column(name, digits=3 if "/" in name or "%" in name else 4) for name in names]
    cells = [
        (
            *(row.batch, row.way, row.threads, row.device_us, row.call_us, row.beside_us, row.ratio, row.in_flight_us),
            100 * row.device_us / row.in_flight_us if row.in_flight_us else None,
        )
        for row in rows
    ]
    print(Table(f"{args.model or args.network} {args.dtype}", columns, cells).to_markdown())
    if args.output:
        made = {"schema": SCHEMA, "dtype": str(args.dtype), "rows": [dataclasses.asdict(row) for row in rows]}
        with atomic_write(args.output) as file:
            file.write(json.dumps(made, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
