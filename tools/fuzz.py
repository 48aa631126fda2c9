"""Damage files and texts for as long as you like: ``python tools/fuzz.py --seconds 3600 [TARGET ...]``.

Every way in of tests/fuzz/targets.py gets mutants of whole files, and must return or raise VkconvError, each within
`LIMIT_S` seconds of processor and `LIMIT_BYTES` of memory more than the process has before. What gets out otherwise is
printed, and kept in a folder of tests/fuzz/regressions, where the tests find it. ``--record`` adds what was tried to
tests/fuzz/runs.jsonl, where several runs add up. ``--player`` does the same to the player's reader of plans, in C++
under sanitizers. ``--coverage TARGET`` lets atheris
(pip install atheris) look for new paths instead. ``--graphs`` runs random small graphs on the device, each node on a
random one of its routes, against the float64 references (on lavapipe, LP_NUM_THREADS=0 GALLIVM_PERF=nopt in the
environment saves half of the time); what is wrong is kept in tests/fuzz/graphs. ``--edges`` runs every op with its
attributes at the edges of what numbers can be, on every route.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / folder) for folder in ("", "pure", "fuzz", "gpu"))]

LIMIT_S = 5
PATIENCE_S = 60  # without an answer, of a machine that others use as well
LIMIT_BYTES = 1 << 30


class HungError(BaseException):
    """A mutant took longer than LIMIT_S of processor, or PATIENCE_S."""


def _hung(signum: int, frame: object) -> None:
    raise HungError("no answer in time")


def _limited() -> None:
    """LIMIT_BYTES on top of the address space of now, and an end to what hangs."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + LIMIT_BYTES, size + LIMIT_BYTES))
    signal.signal(signal.SIGALRM, _hung)
    signal.signal(signal.SIGPROF, _hung)


def _watched(on: bool) -> None:
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S if on else 0)
    signal.alarm(PATIENCE_S if on else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all in turn")
    parser.add_argument("--seconds", type=float, default=60, help="for how long, all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--coverage", metavar="TARGET", help="let atheris look for new paths in one target")
    parser.add_argument("--record", action="store_true", help="add the counts to tests/fuzz/runs.jsonl")
    parser.add_argument("--player", action="store_true", help="damage plans of the player instead")
    parser.add_argument("--graphs", action="store_true", help="run random graphs instead, on all routes")
    parser.add_argument(
        "--count", type=int, default=1 << 62, help="so many mutants or random graphs, if they take less time"
    )
    parser.add_argument("--edges", action="store_true", help="run calls with extreme attributes instead")
    options = parser.parse_args()
    os.environ.setdefault("VKCONV_MEASURED", "off")  # what was measured here must not choose the routes
    if options.graphs:
        signal.signal(signal.SIGALRM, _hung)
        return _graphs(options.seconds, options.seed, options.count)
    if options.edges:
        return _edges(options.seconds, options.seed)
    if options.coverage:
        return _with_atheris(options.coverage, options.seconds)

    if options.player:
        return _player(options)

    import ledger
    import targets
    from mutants import mutant

    unknown = set(options.targets) - set(targets.TARGETS)
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(targets.TARGETS)}")
    chosen = options.targets or list(targets.TARGETS)
    if options.record and ledger.used(options.seed, set(chosen)):
        parser.error(f"seed {options.seed} was used on these targets: its inputs were tried")
    targets.without_processes()
    seeds = {name: list(targets.TARGETS[name].seeds()) for name in chosen}
    rng = random.Random(options.seed)
    counts = {name: [0, 0] for name in chosen}  # refused, taken
    slowest = dict.fromkeys(chosen, 0.0)
    spent = dict.fromkeys(chosen, 0.0)
    found: dict[str, Path] = {}
    end = time.monotonic() + options.seconds
    for name in chosen:  # what is imported and kept with the first of its kind
        for seed in seeds[name]:
            targets.TARGETS[name].attempt(seed)
    _limited()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends with the report
    done = 0
    while time.monotonic() < end and done < options.count:
        done += 1
        name = min(chosen, key=spent.__getitem__)  # the same time for each
        data = mutant(rng.choice(seeds[name]), rng)
        started = time.process_time()
        _watched(True)
        try:
            counts[name][targets.TARGETS[name].attempt(data)] += 1
        except KeyboardInterrupt:
            break
        except BaseException as error:
            _watched(False)
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{name}: {type(error).__name__} at {at.filename}:{at.lineno}"
            if place not in found:
                found[place] = _keep(name, data)
                print(f"{place}: {str(error)[:200]}\n  kept as {found[place]}", flush=True)
        _watched(False)
        took = time.process_time() - started
        spent[name] += took
        slowest[name] = max(slowest[name], took)
    report = {
        name: {"refused": refused, "taken": taken, "slowest_s": round(slowest[name], 3), "s": round(spent[name], 1)}
        for name, (refused, taken) in counts.items()
    }
    total = sum(sum(pair) for pair in counts.values())
    print(json.dumps({"seed": options.seed, "mutants": total, "findings": len(found), "targets": report}, indent=1))
    if options.record:
        inputs = {name: sum(pair) for name, pair in counts.items()}
        ledger.record(options.seed, inputs, len(found), sum(spent.values()), max(slowest.values()))
    return bool(found)


def _player(options: argparse.Namespace) -> int:
    """So many damaged plans, or as many as there is time for."""
    import ledger
    import player

    if options.record and ledger.used(options.seed, {"player"}):
        raise SystemExit(f"seed {options.seed} was used on the player: its inputs were tried")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = player.build("c++", folder)
        words, environment = player.command(program, options.seed, options.count, player.seeds(folder))
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # ends with the report
        timer = threading.Timer(options.seconds, process.terminate)
        timer.start()
        out, err = process.communicate()
        timer.cancel()
    if process.returncode:
        said = err.strip().splitlines()
        kept = _keep("player", bytes.fromhex(said[-1])) if said and set(said[-1]) <= set("0123456789abcdef") else None
        print(err[-20_000:], f"kept as {kept}" if kept else "")
        return 1
    counted = json.loads(out)
    print(json.dumps({"seed": options.seed, **counted}))
    if options.record:
        ledger.record(options.seed, {"player": counted["mutants"]}, 0, counted["s"], counted["slowest_s"])
    return 0


def _keep(name: str, data: bytes) -> Path:
    folder = ROOT / "tests" / "fuzz" / "regressions" / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def _with_atheris(name: str, seconds: float) -> int:
    import atheris

    with atheris.instrument_imports(include=["vkconv"]):
        import targets
    targets.without_processes()
    corpus = targets.FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(targets.TARGETS[name].seeds()):
        (corpus / str(number)).write_bytes(seed)
    kept = ROOT / "tests" / "fuzz" / "regressions" / name
    kept.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={int(seconds)}", f"-timeout={LIMIT_S}", f"-rss_limit_mb={LIMIT_BYTES >> 20}"]
    atheris.Setup(
        [sys.argv[0], *limits, f"-artifact_prefix={kept}/", "-max_len=65536", str(corpus)],
        lambda data: void(targets.TARGETS[name].attempt(data)),
    )
    atheris.Fuzz()
    return 0


def _graphs(seconds: float, seed: int, count: int) -> int:
    """Random graphs, a new theme for each 4,000 of them; every fourth runs again, for what changes from run to run."""
    import collections

    from random_graphs import Theme, random_graph
    from run_graphs import keep, random_options, run_graph

    from vkconv.backend.runtime import LiveDevice, select_device

    LiveDevice.save_pipeline_cache = lambda self: None  # type: ignore[method-assign]  # each session would, as it closes
    _, facts = select_device("auto")
    started, done, found = time.monotonic(), 0, 0
    kinds: collections.Counter[str] = collections.Counter()
    routes: collections.Counter[tuple[str, str]] = collections.Counter()
    stop = False

    def interrupted(signum: int, frame: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGINT, interrupted)  # after the graph that is at work, and with the report
    signal.signal(signal.SIGTERM, interrupted)
    while done < count and time.monotonic() - started < seconds and not stop:
        if done % 4000 == 0:
            theme = Theme(random.Random(f"{seed} {done}"), narrow=True)
        rng = random.Random(f"{seed} {done} graph")
        graph, exact = random_graph(rng, theme, steps=7)
        graph = graph.replace(name=f"seed {seed}, graph {done}")
        options = random_options(graph, facts, exact, rng, theme)
        signal.alarm(10 * LIMIT_S)
        try:
            ran = run_graph("auto", graph, exact, options, careful=done % 4 == 0)
        except BaseException as error:
            found += 1
            path = keep(graph, exact, options, ROOT / "tests" / "fuzz" / "graphs")
            print(f"{type(error).__name__}: {str(error)[:400]}\n  kept as {path}", flush=True)
        else:
            routes.update(ran)
            kinds["exact" if exact else "rounding"] += 1
            kinds["passes"] += options.passes
            kinds["refused"] += not ran and any(node.op not in ("reshape", "identity") for node in graph.nodes)
        signal.alarm(0)
        done += 1
        if done % 500 == 0:
            print(json.dumps({"graphs": done, "s": round(time.monotonic() - started), "findings": found}), flush=True)
    report = {"seed": seed, "graphs": done, "s": round(time.monotonic() - started), "findings": found, **kinds}
    print(json.dumps({**report, "nodes": sum(routes.values()), "routes": len(routes)}))
    print(json.dumps({f"{op} {route}": number for (op, route), number in sorted(routes.items())}))
    return bool(found)


def _edges(seconds: float, seed: int) -> int:
    from extremes import extremes
    from test_ops import draw

    from vkconv.backend.runtime import select_device
    from vkconv.check import check_call
    from vkconv.core import VkconvError
    from vkconv.ops import OPS
    from vkconv.ops.core.calls import format_call
    from vkconv.plan import bound
    from vkconv.route import judge

    bound.FOLD_LIMIT_BYTES = 0  # what has no operands would fold
    _, facts = select_device("auto")
    calls = {}
    for extreme in extremes():
        try:
            call = OPS[extreme.op].call(extreme.specs, extreme.attrs)
        except VkconvError:
            continue
        if 0 < sum(spec.size for spec in call.outputs.values()) < 20_000:
            calls[format_call(call, OPS)] = call
    order = sorted(calls)
    random.Random(seed).shuffle(order)
    end, ran, refused, wrong, seen = time.monotonic() + seconds, 0, 0, 0, 0
    for text in order:
        if time.monotonic() > end:
            break
        seen += 1
        for route in OPS[calls[text].op].routes:
            if not judge(route, calls[text], facts).allowed:
                continue
            try:
                _, checked = check_call(calls[text], draw(calls[text], "normals"), route=route.name, params={})
            except VkconvError:
                refused += 1
                continue
            ran += 1
            if not checked.ok:
                wrong += 1
                print(f"{route.name} of {text}: {checked.problem}", flush=True)
    print(json.dumps({"seed": seed, "calls": seen, "of": len(order), "ran": ran, "refused": refused, "wrong": wrong}))
    return bool(wrong)


def void(_: bool) -> None:
    """atheris takes functions without a result."""


if __name__ == "__main__":
    sys.exit(main())
