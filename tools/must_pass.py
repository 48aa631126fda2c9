"""What must be right on a GPU before a release: conformance, calls inside calls, networks, in f32, f16 and bf16; and a
few calls that must not have got slower since the result that is committed.

    python tools/must_pass.py [--device SEL] [--seconds 600] [--only TEXT] [-o FILE]
    make gpu-must-pass

Runs `vkconv check` for each case in a process of its own, several at a time, as long as there is time, and says what
it left out. The result, JSON with driver and date, goes to bench/results/must_pass/DEVICE.json, to be committed; of a
CPU driver, a rehearsal, to build/. Exit code 1 when something is wrong, slower or was left out.

What is timed has kernels that hold much in registers: a change of what they include may send that to local memory,
which is right, and slow on one vendor's compiler alone.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCHEMA = "vkconv.must-pass/1"
TYPES = ("f32", "f16", "bf16")
# What was wrong together while each part was right, and its kin: calls that contain calls, in each type.
CALLS = (
    "conv_reduce:x=1x160x7x7,w=960x160x1x1,b=960,act=hard_swish,op=mean,keep=1",
    "conv_reduce:x=2x48x14x14,w=96x24x3x3,g=2,p=1,op=sum",
    "gemm_reduce:a=1x128x64,b=1x64x256,axis=n",
    "gemm_reduce:a=256x512,b=512x256,axis=m",
    "attention:q=2x12x197x64,k=2x12x197x64,v=2x12x197x64",
    "attention:q=64x3x49x32,k=64x3x49x32,v=64x3x49x32,mask=16x3x49x49",
    "prologue_conv2d:x=2x160x14x14,scale=160,shift=160,before=relu,w=128x160x1x1",
    "separable_conv2d:x=2x120x28x28,wd=120x1x5x5,bd=120,w=40x120x1x1,b=40,p=2,between=relu",
    "inverted_residual:x=2x24x28x28,we=72x24x1x1,be=72,wd=72x1x3x3,bd=72,w=24x72x1x1,b=24,residual=2x24x28x28,p=1,expand=relu",
    "squeeze_excite:x=2x120x28x28,w1=32x120x1x1,b1=32,w2=120x32x1x1,b2=120,gate=hard_sigmoid,gate_a=0.16667,gate_b=0.5",
    "conv2d:x=2x64x56x56,w=64x64x3x3,p=1,b=64,act=relu",
    "conv2d:x=2x256x14x14,w=67x256x1x1,residual=2x67x14x14,act=relu",
    "conv2d_backward_data:dy=2x128x14x14,w=128x64x3x3,x_shape=28x28,s=2,p=1",
    "conv2d_backward_weight:x=4x64x28x28,dy=4x96x28x28,w_shape=96x64x3x3,p=1",
    "conv_transpose2d:x=1x64x14x14,w=64x48x4x4,s=2,p=1",
    "matmul:a=197x768,b=768x768,bias=768,act=gelu",
)
# Each stands for a kernel family: matrix units with and without an epilogue, tiles of f32, fused sums, windows.
TIMED = (
    "matmul:a=4096x4096,b=4096x4096,dtype=f16",
    "matmul:a=2048x2048,b=2048x2048",
    "conv2d:x=32x256x14x14,w=1024x256x1x1,dtype=f16",
    "conv2d:x=32x256x14x14,w=1024x256x1x1,b=1024,residual=32x1024x14x14,act=silu,dtype=f16",
    "conv2d:x=32x256x14x14,w=1024x256x1x1,b=1024,act=relu",
    "conv2d:x=32x64x56x56,w=64x64x3x3,p=1,b=64,act=relu,dtype=f16",
    "conv2d:x=32x64x56x56,w=64x64x3x3,p=1,b=64,act=relu",
    "conv2d:x=32x3x224x224,w=64x3x7x7,s=2,p=3,b=64,act=relu,dtype=f16",
    "conv2d:x=16x960x7x7,w=960x1x5x5,p=2,g=960,dtype=f16",
    "conv_reduce:x=32x512x7x7,w=2048x512x1x1,b=2048,act=relu,op=mean",
    "conv2d_backward_weight:x=32x64x28x28,dy=32x96x28x28,w_shape=96x64x3x3,p=1",
    "attention:q=8x12x197x64,k=8x12x197x64,v=8x12x197x64,dtype=f16",
    "pool2d:x=32x64x112x112,kind=max,k=3,s=2,p=1,dtype=f16",
    "softmax:x=4096x1000",
)
SLOWER_RATIO = 1.15
LIGHT = ("shufflenet", "squeezenet", "inception_v1", "inception_v2", "densenet121", "resnet50", "zfnet512")
OCR = ("ch_PP-OCRv4_det_infer", "ch_PP-OCRv4_rec_infer", "ch_ppocr_mobile_v2.0_cls_infer")
_SHAPES = {OCR[0]: "1x3x160x160", OCR[1]: "1x3x48x160", OCR[2]: "1x3x48x192"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One check: its name, what follows ``vkconv check``, and whether it takes all cores by itself."""

    name: str
    words: tuple[str, ...]
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """What a case came to: right, wrong, slower, or left out, after so many seconds, and the last line that was said;
    of what is timed, the median of a run on the device."""

    name: str
    result: str
    seconds: float
    said: str
    us: float | None = None


def networks(folder: Path) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """The networks that are here, each as a file with the words for its inputs: those of the onnx package with weights
    of their own, and those of rapidocr-onnxruntime."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "suites")]
    import onnx
    from light_networks import light_network

    for name in LIGHT:
        path = folder / f"{name}.onnx"
        onnx.save(light_network(name), path)
        yield name, path, ()
    from importlib.util import find_spec

    spec = find_spec("rapidocr_onnxruntime")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for name in OCR:
            yield name, Path(place) / "models" / f"{name}.onnx", ("-i", f"x={_SHAPES[name]}")


def cases(folder: Path) -> Iterator[Case]:
    """All of them, what would find most first."""
    for dtype in TYPES:
        for call in CALLS:
            yield Case(f"{call} {dtype}", (f"{call},dtype={dtype}", "--sweep", "route"))
    found = list(networks(folder))
    for dtype in TYPES:
        for name, path, inputs in found:
            yield Case(f"{name} {dtype}", (str(path), *inputs, "--dtype", dtype))
    for dtype in TYPES:
        yield Case(f"conformance {dtype}", ("--all-ops", "--short", "--dtype", dtype), alone=True)


Check = Callable[[Sequence[str], float], tuple[int, str]]
"""Exit code of ``vkconv check`` with these words, -1 where it was not done in so many seconds, and its last line."""


def run(work: Sequence[Case], seconds: float, check: Check, at_once: int) -> list[Row]:
    """The cases in order, as long as there is time."""
    end = time.monotonic() + seconds

    def one(case: Case) -> Row:
        start = time.monotonic()
        if start >= end:
            return Row(case.name, "left out", 0.0, "no time was left")
        code, said = check(case.words, end - start)
        row = Row(case.name, {0: "right", -1: "left out"}.get(code, "wrong"), round(time.monotonic() - start, 1), said)
        print(f"{row.result:9}{row.seconds:7.1f} s  {row.name}: {row.said}", flush=True)
        return row

    rows = []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        rows += pool.map(one, [case for case in work if not case.alone])
    return rows + [one(case) for case in work if case.alone]


def judged(name: str, check: str, us: float | None, before_us: float | None) -> Row:
    """The row of a call that was timed, beside what the committed result has."""
    if check != "ok" or us is None:
        return Row(name, "wrong", 0.0, check)
    if before_us is None:
        return Row(name, "right", 0.0, f"{us:.4g} us", us)
    slower = us > SLOWER_RATIO * before_us
    return Row(name, "slower" if slower else "right", 0.0, f"{us:.4g} us, {before_us:.4g} committed", us)


def timed(calls: Sequence[str], device: str, before_us: Mapping[str, float], seconds: float) -> Iterator[Row]:
    """Rows of calls by the routes that the planner takes, one after the other."""
    with tempfile.TemporaryDirectory(prefix="vkconv-") as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-P", "-m", "vkconv", "bench", *calls, "--min-time", "0.05", "-o", str(out)]
        environment = {**os.environ, "VKCONV_MEASURED": "off"}
        said = "no time was left"
        if seconds > 0:
            try:
                done = subprocess.run(
                    [*command, "--device", device], cwd=ROOT, env=environment, capture_output=True, timeout=seconds
                )
                said = (done.stderr.decode(errors="replace").strip() or "nothing was said").splitlines()[-1]
            except subprocess.TimeoutExpired:
                said = f"not done in {seconds:.0f} s"
        rows = json.loads(out.read_text())["rows"] if out.is_file() else []
    for i, call in enumerate(calls):
        name = f"time {call}"
        if i < len(rows):
            yield judged(name, rows[i]["check"], rows[i]["us_median"], before_us.get(name))
        else:
            yield Row(name, "left out", 0.0, said)


def checker(device: str) -> Check:
    """Runs ``vkconv check`` on a device, without what was measured on it."""

    def check(words: Sequence[str], seconds: float) -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", "vkconv", "check", *words, "--device", device]
        environment = {**os.environ, "VKCONV_MEASURED": "off"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return -1, f"not done in {seconds:.0f} s"
        lines = (done.stdout.strip() or done.stderr.strip() or "nothing was said").splitlines()
        return done.returncode, lines[-1]

    return check


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(argv)
    from vkconv import __version__
    from vkconv.backend.runtime import select_device
    from vkconv.core import atomic_write

    _, device = select_device(options.device)
    stem = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    kept = ROOT / ("build" if device.kind == "cpu" else "bench/results") / "must_pass" / f"{stem}.json"
    before = json.loads(kept.read_text())["rows"] if kept.is_file() else []
    before_us = {row["name"]: row["us"] for row in before if row.get("us")}
    start = time.monotonic()
    calls = [call for call in TIMED if options.only in f"time {call}"]
    rows = list(timed(calls, options.device, before_us, options.seconds)) if calls else []
    for row in rows:
        print(f"{row.result:9}{row.name}: {row.said}", flush=True)
    with tempfile.TemporaryDirectory(prefix="vkconv-") as folder:
        work = [case for case in cases(Path(folder)) if options.only in case.name]
        left_s = options.seconds - (time.monotonic() - start)
        rows += run(work, left_s, checker(options.device), max(1, (os.cpu_count() or 1) // 2))
    counts = {result: sum(row.result == result for row in rows) for result in ("right", "wrong", "slower", "left out")}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    made = {
        "schema": SCHEMA,
        "device": device.name,
        "driver": device.driver,
        "vkconv": __version__,
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
        **counts,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path = options.output or kept
    with atomic_write(path) as file:
        file.write(json.dumps(made, indent=1).encode() + b"\n")
    print(f"{device.name}: " + ", ".join(f"{count} {result}" for result, count in counts.items()) + f"; {path}")
    return int(counts["right"] != len(rows) or not rows)


if __name__ == "__main__":
    sys.exit(main())
