"""Run for long and look for what changes: ``tools/soak.py --runs 100000``, ``tools/soak.py --seconds 3600``,
``tools/soak.py --submits 100000``.

The first runs one small network so many times: every output has the bytes of the first. The second loads, runs and
closes networks at random, several at once, some of them interrupted by a time-out, and prints what the process and the
device hold in between. The third submits runs of a tiny graph from eight threads: each result is that of its input, and
those of a thread come in its order; with ``--streamed`` inputs go to the device chunk by chunk, beside other runs. All
fail where memory grew by more than 1 % after the first tenth.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / folder) for folder in ("", "pure", "fuzz"))]
os.environ.setdefault("VKCONV_MEASURED", "off")

import numpy as np  # noqa: E402
from targets import network  # noqa: E402

import vkconv  # noqa: E402
from vkconv.backend import runtime  # noqa: E402
from vkconv.core import VkconvError  # noqa: E402


def held_bytes() -> dict[str, int]:
    """Resident memory of the process, and what the device says it uses of its heaps (0 where it does not say)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    heaps = [heap["usage_bytes"] or 0 for live in runtime._open.values() for heap in live.handle.memory()]
    return {"process": pages * os.sysconf("SC_PAGESIZE"), "device": sum(heaps)}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    return {what: round(after[what] / before[what] - 1, 5) for what in before if before[what]}


def same_bytes(runs: int) -> dict[str, object]:
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8), dtype=np.float32)
    started, before = time.monotonic(), {}
    with vkconv.load(network()) as session:
        first = {name: array.tobytes() for name, array in session.run({"x": x}).items()}
        for i in range(1, runs):
            if i == max(1, runs // 10):
                before = held_bytes()
            for name, array in session.run({"x": x}).items():
                if array.tobytes() != first[name]:
                    raise SystemExit(f"run {i}: output {name} has other bytes than the first run")
        return {"runs": runs, "s": round(time.monotonic() - started, 1), "grown": grown(before, held_bytes())}


def from_threads(submits: int, streamed: bool, threads: int = 8) -> dict[str, object]:
    graph = vkconv.Graph({"x": vkconv.TensorSpec((7,))}, ("y",), (vkconv.Node("n", "neg", ("x",), ("y",)),))
    options = vkconv.Options(staging="streamed" if streamed else None)
    each, started = submits // threads, time.monotonic()
    wrong: list[str] = []
    with vkconv.load(graph, options=options) as session:

        def work(thread: int, first: int, count: int) -> None:
            came: list[int] = []

            def landed(future: Future[dict[str, np.ndarray]], number: int) -> None:
                if not (future.result()["y"] == -float(number)).all():
                    wrong.append(f"submission {number} has the result of another")
                came.append(number)

            for number in range(first, first + count):
                future = session.submit({"x": np.full(7, number, np.float32)})
                future.add_done_callback(partial(landed, number=number))
            future.result()
            while len(came) < count and time.monotonic() - started < 3600:
                time.sleep(0.001)
            if came != list(range(first, first + count)):
                wrong.append(f"the results of thread {thread} came in another order")

        before: dict[str, int] = {}
        for tenth in range(10):
            begin, count = tenth * each // 10, (tenth + 1) * each // 10 - tenth * each // 10
            workers = [Thread(target=work, args=(t, t * each + begin, count)) for t in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            before = before or held_bytes()
        if wrong:
            raise SystemExit(f"{len(wrong)} are wrong: {wrong[0]}")
        took_s = time.monotonic() - started
        return {"submits": each * threads, "s": round(took_s, 1), "grown": grown(before, held_bytes())}


def at_random(seconds: float, seed: int) -> dict[str, object]:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    started, before, counts = time.monotonic(), {}, {"loads": 0, "runs": 0, "closes": 0, "timeouts": 0}
    sessions: list[vkconv.Session] = []
    tenths = 1
    while (elapsed := time.monotonic() - started) < seconds:
        if elapsed > tenths * seconds / 10:
            held = held_bytes()
            before = before or held
            print(json.dumps({"s": round(elapsed, 1), **counts, **held}), file=sys.stderr, flush=True)
            tenths += 1
        if len(sessions) < 4 and rng.random() < 0.3:
            sessions.append(vkconv.load(network(), max_plans=2))
            counts["loads"] += 1
        elif sessions and rng.random() < 0.3:
            sessions.pop(rng.randrange(len(sessions))).close()
            counts["closes"] += 1
        elif sessions:
            x = draw.standard_normal((1, 3, 8, 8), dtype=np.float32)
            timeout_s = 1e-6 if rng.random() < 0.05 else 60
            try:
                rng.choice(sessions).run({"x": x}, timeout_s=timeout_s)
                counts["runs"] += 1
            except VkconvError:
                if timeout_s == 60:
                    raise
                counts["timeouts"] += 1
    for session in sessions:
        session.close()
    return {"seconds": seconds, **counts, "grown": grown(before, held_bytes())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="runs of one network")
    parser.add_argument("--seconds", type=float, help="load, run and close at random for so long")
    parser.add_argument("--submits", type=int, help="runs of a tiny graph, submitted from eight threads")
    parser.add_argument("--streamed", action="store_true", help="submit with inputs that are streamed")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = {}
    with contextlib.suppress(KeyboardInterrupt):
        if options.runs:
            report["same bytes"] = same_bytes(options.runs)
        if options.submits:
            report["from threads"] = from_threads(options.submits, options.streamed)
        if options.seconds:
            report["at random"] = at_random(options.seconds, options.seed)
    print(json.dumps(report, indent=1))
    return any(g > 0.01 for part in report.values() for g in part["grown"].values())  # type: ignore[union-attr, index]


if __name__ == "__main__":
    sys.exit(main())
