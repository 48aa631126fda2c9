"""Whether the player gives the same bytes on two processors:

    python tools/boards.py lavapipe qemu lavapipe-here && python tools/beside_arm64.py [--calls 200]

Calls of every op, on every route in turn, are played on arm64 lavapipe, by a user-mode qemu, and on that of this
machine's processor, of the same Mesa and LLVM, both with vectors of 128 bits, from the same folder. Outputs that differ
are counted: those that differ in the bits of NaN only, of which processors make different ones, and the others by the
SPIR-V instructions of their kernels that no call with equal outputs has.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boards
import numpy as np

from vkconv.check.conformance import Check, checks
from vkconv.core import DType, VkconvError
from vkconv.phone.board import device_of
from vkconv.phone.build import ABIS, build_player
from vkconv.phone.calls import pack_checks
from vkconv.plan.pack import INDEX, PackFolder
from vkconv.spirv import instructions, words_of

_TIMEOUT_S = 3600
_EXT_INST = 12
# Of what may round in another way, by the SPIR-V specification's numbers, and of GLSL.std.450's.
_OPCODES = {
    **{12: "OpExtInst", 110: "OpConvertFToS", 109: "OpConvertFToU", 115: "OpFConvert", 127: "OpFNegate"},
    **{129: "OpFAdd", 131: "OpFSub", 133: "OpFMul", 136: "OpFDiv", 140: "OpFRem", 141: "OpFMod"},
}
_EXTENDED = {
    **{1: "Round", 2: "RoundEven", 3: "Trunc", 8: "Floor", 9: "Ceil", 10: "Fract", 13: "Sin", 14: "Cos", 15: "Tan"},
    **{16: "Asin", 17: "Acos", 18: "Atan", 19: "Sinh", 20: "Cosh", 21: "Tanh", 22: "Asinh", 23: "Acosh", 24: "Atanh"},
    **{25: "Atan2", 26: "Pow", 27: "Exp", 28: "Log", 29: "Exp2", 30: "Log2", 31: "Sqrt", 32: "InverseSqrt", 37: "FMin"},
    **{40: "FMax", 43: "FClamp", 46: "FMix", 50: "Fma", 53: "Ldexp", 58: "PackHalf2x16", 62: "UnpackHalf2x16"},
}


def chosen(work: list[Check], count: int) -> list[Check]:
    """So many of the checks: of each op in turn, and of its routes in turn."""
    queues: dict[str, dict[str, list[Check]]] = {}
    for check in work:
        queues.setdefault(check.op, {}).setdefault(check.route, []).append(check)
    found: list[Check] = []
    while len(found) < count and queues:
        for op, routes in list(queues.items()):
            route, waiting = next(iter(routes.items()))
            found.append(waiting.pop(0))
            del routes[route]
            if waiting:
                routes[route] = waiting  # behind the others
            if not routes:
                del queues[op]
    return found[:count]


def played(command: list[str], folder: Path, variables: Mapping[str, str], got: Path) -> dict[str, dict[str, Any]]:
    """What the player tells of each pack of a folder, by the pack's name; outputs are kept in the folder ``got``."""
    words = [*command, str(folder), "--json", "--repeat", "1", "--keep", "--got", str(got)]
    words += ["--compile-limit", str(_TIMEOUT_S), "--run-limit", str(_TIMEOUT_S)]  # emulated: it is not judged by time
    done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, env={**os.environ, **variables})
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:
        raise VkconvError(f"{words[0]} played nothing: {done.stderr.strip()[-400:]}")
    return {result["pack"]: result for result in found if "pack" in result}


def used(folder: Path, plan: str) -> set[str]:
    """The instructions with floats of a plan's kernels."""
    found = set()
    for line in (folder / plan).read_text().splitlines():
        if line.startswith("pipeline "):
            for op, words in instructions(words_of((folder / line.split()[2]).read_bytes()), plan):
                name = _EXTENDED.get(words[3]) if op == _EXT_INST else _OPCODES.get(op)
                found |= {name} if name else set()
    return found


def in_nan_only(gots: tuple[Path, Path], plan: str) -> bool:
    """Whether the outputs of a plan, f32, differ in nothing but the bits of NaN."""
    for path in gots[0].glob(f"{Path(plan).stem}_*.bin"):
        one, two = (np.fromfile(got / path.name, np.uint8) for got in gots)
        if np.array_equal(one, two):
            continue
        if one.size != two.size or one.size % 4:
            return False
        a, b = one.view(np.uint32), two.view(np.uint32)
        unlike = a != b
        if not (np.isnan(a.view(np.float32)) & np.isnan(b.view(np.float32)))[unlike].all():
            return False
    return True


def compared(folder: Path, one: Mapping[str, Any], two: Mapping[str, Any], gots: tuple[Path, Path]) -> Iterator[str]:
    """The comparison in lines."""
    both = [name for name in one if one[name]["status"] == "ok" and two.get(name, {}).get("status") == "ok"]
    others = {name for name in one if name not in both}
    for name in sorted(others):
        yield f"not compared: {one[name]['label']}: {one[name]['why'] or two.get(name, {}).get('why', 'not played')}"
    same, differ = set[str](), set[str]()
    for name in both:
        hashes = ([output["sha256"] for output in told[name]["outputs"]] for told in (one, two))
        (same if next(hashes) == next(hashes) else differ).add(name)
    yield f"{len(same)} of {len(both)} calls have the same bytes"
    nan = {name for name in differ if in_nan_only(gots, name)}
    yield f"{len(nan)} differ in the bits of NaN only"
    differ -= nan
    harmless = set().union(*(used(folder, name) for name in same)) if same else set()
    blamed = collections.Counter[str]()
    for name in differ:
        blamed[", ".join(sorted(used(folder, name) - harmless)) or "nothing that calls with equal bytes have not"] += 1
    for what, count in blamed.most_common():
        yield f"{count} differ; their kernels alone have {what}"
    for name in sorted(differ, key=lambda name: str(one[name]["label"])):
        rel = max(output["max_rel"] or 0.0 for told in (one, two) for output in told[name]["outputs"])
        yield f"  differs: {one[name]['label']} (largest error {rel:.2g} of its own)"


def main() -> int:
    """Play the calls on both, and say what differs; exit code 1 where nothing can be said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200, help="how many to play, most with two kinds of inputs (200)")
    count = parser.parse_args().calls
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        place = Path(scratch)
        width = {"LP_NATIVE_VECTOR_WIDTH": "128"}  # by which lavapipe sizes its subgroups
        there = {**boards.driver_files("lavapipe", place / "arm64.json"), **width}
        here = {**boards.driver_files("lavapipe-here", place / "here.json"), **width}
        far = [*boards.emulated(), str(build_player(ABIS["aarch64"], android=False))]
        near = [*boards.loaded("lavapipe-here"), str(build_player(ABIS["x86_64"], android=False))]
        facts = [
            device_of(
                subprocess.run([*c, "--info"], capture_output=True, env={**os.environ, **v}, timeout=_TIMEOUT_S).stdout
            )
            for c, v in ((far, there), (near, here))
        ]
        work = checks(facts[0], (), (DType.F32,), ("native",), "short")
        folder = PackFolder(place / "packs")
        for packed in pack_checks(folder, chosen(work, count), facts[0]):
            if not packed.places:
                print(f"not packed: {packed.row.call} by {packed.row.route}: {packed.row.why}", file=sys.stderr)
        folder.close()
        packs = sum(line.startswith("pack ") for line in (folder.path / INDEX).read_text().splitlines())
        for name, device in zip(("arm64", "here"), facts, strict=True):
            print(f"{name}: {device.name}, {device.driver}, subgroups of {device.subgroup_size}")
        print(f"{packs} packs", flush=True)
        gots = place / "got-arm64", place / "got-here"
        one, two = played(far, folder.path, there, gots[0]), played(near, folder.path, here, gots[1])
        print("\n".join(compared(folder.path, one, two, gots)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except VkconvError as error:
        print(f"beside_arm64: {error}", file=sys.stderr)
        sys.exit(1)
