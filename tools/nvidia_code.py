"""What NVIDIA's driver made of shaders: the instructions of the pipelines in a pipeline cache, loop by loop.

    vkconv bench CALL --route ROUTE --param ...           # fills vkconv's cache
    python tools/nvidia_code.py ~/.cache/vkconv/pipelines/FILE [--nvdisasm PATH] [--sm SM90] [--whole]

Needs nvdisasm (of the CUDA toolkit, or of the wheel of triton, in triton/backends/nvidia/bin) and the package
zstandard. Of each pipeline the loop with most products of matrices, or else the longest, or with --whole everything. A
line has the address, the clocks that the instruction holds the next one back, the scoreboards that it sets when it has
written (W) and read (R), those it waits for, and the instruction; what waits for nothing and moves nothing is counted.

Driver 580.159 keeps a pipeline as a frame of zstd, in which instructions of 16 bytes follow one another. Neither that
nor their control bits (stall 4, yield 1, write 3, read 3, wait 6, from bit 41 of the upper half on) is documented by
NVIDIA.
"""

import argparse
import contextlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import zstandard

_FRAME = b"\x28\xb5\x2f\xfd"
_EXIT, _PRODUCT = 0x94D, 0x23C
_SIZE, _CONTROL = 16, 41
_COUNTED = ("HMMA", "LDSM", "LDG", "STG", "STS", "BAR", "LDL")
_SHOWN = re.compile(r"HMMA|LDSM|LDG|STG|LDS|STS|LDL|STL|BAR|WARPSYNC|BRA|EXIT")


def frames(data: bytes) -> list[bytes]:
    """What is compressed in a cache."""
    found, at = [], data.find(_FRAME)
    while at >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # the four bytes stand for something else
            found.append(zstandard.ZstdDecompressor().decompressobj().decompress(data[at:]))
        at = data.find(_FRAME, at + 1)
    return found


def code_of(frame: bytes) -> bytes:
    """The instructions of a pipeline, and maybe something behind them; empty where there are none."""
    best = b""
    for phase in (0, 8):
        words = list(struct.iter_unpack("<QQ", frame[phase : phase + (len(frame) - phase) // _SIZE * _SIZE]))
        marks = [i for i, (low, _) in enumerate(words) if low & 0xFFF in (_EXIT, _PRODUCT) and words[i][1] >> _CONTROL]
        if not marks:
            continue
        first = marks[0]
        while first and words[first - 1][0] & 0xFFF and words[first - 1][1] >> _CONTROL:
            first -= 1
        last = marks[-1]
        while last + 1 < len(words) and words[last + 1][0] & 0xFFF and words[last + 1][1] >> _CONTROL:
            last += 1
        code = frame[phase + first * _SIZE : phase + (last + 1) * _SIZE]
        best = max(best, code, key=len)
    return best


def disassembled(code: bytes, nvdisasm: str, sm: str) -> list[tuple[int, str]]:
    """Addresses and instructions, up to what is none."""
    while code:
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(code)
            file.flush()
            done = subprocess.run([nvdisasm, "-b", sm, file.name], capture_output=True, text=True)
        wrong = re.search(r"at address 0x([0-9a-f]+)", done.stderr)
        if not wrong:
            lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", done.stdout)
            return [(int(at, 16), " ".join(text.split())) for at, text in lines]
        code = code[: int(wrong[1], 16)]
    return []


def control(code: bytes, at: int) -> tuple[str, bool]:
    """The control bits of an instruction in words, and whether it waits for anything."""
    bits = struct.unpack_from("<Q", code, at + 8)[0] >> _CONTROL
    writes, reads, waits = bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
    names = "".join(str(i) for i in range(6) if waits >> i & 1)
    shown = ("-" if board == 7 else str(board) for board in (writes, reads))
    return "{:2} W{} R{} wait[{:6}]".format(bits & 15, *shown, names), waits != 0


def loops(lines: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """First and last line of what jumps back."""
    index = {at: i for i, (at, _) in enumerate(lines)}
    found = []
    for i, (at, text) in enumerate(lines):
        jump = re.search(r"BRA 0x([0-9a-f]+)", text)
        if jump and int(jump[1], 16) < at and int(jump[1], 16) in index:
            found.append((index[int(jump[1], 16)], i))
    return found


def weight(lines: list[tuple[int, str]], loop: tuple[int, int]) -> tuple[int, int]:
    """Products of a loop, and its length."""
    first, last = loop
    return sum("HMMA" in text for _, text in lines[first : last + 1]), last - first


def show(code: bytes, lines: list[tuple[int, str]]) -> None:
    run: dict[str, int] = {}
    for at, text in lines:
        words, waits = control(code, at)
        kind = "products" if "HMMA" in text else "others"
        if not waits and (kind == "products" or not _SHOWN.search(text)):
            run[kind] = run.get(kind, 0) + 1
            continue
        if run:
            print("        " + ", ".join(f"{count} {kind}" for kind, count in run.items()))
            run = {}
        print(f"{at:06x} {words} {text}")
    if run:
        print("        " + ", ".join(f"{count} {kind}" for kind, count in run.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"))
    parser.add_argument("--sm", default="SM90", help="the architecture, as nvdisasm names it")
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    if not args.nvdisasm:
        parser.error("no nvdisasm in PATH: --nvdisasm says where it is")
    shown = 0
    for frame in frames(args.cache.read_bytes()):
        code = code_of(frame)
        lines = disassembled(code, args.nvdisasm, args.sm)
        if not lines:
            continue
        shown += 1
        named = ((name, sum(name in text for _, text in lines)) for name in _COUNTED)
        counts = ", ".join(f"{count} {name}" for name, count in named if count)
        print(f"pipeline {shown}: {len(lines)} instructions, {counts}")
        picked = (0, len(lines) - 1)
        if not args.whole:
            picked = max(loops(lines), key=lambda loop: weight(lines, loop), default=picked)
        show(code, lines[picked[0] : picked[1] + 1])
    if not shown:
        print(f"{args.cache}: no pipeline with instructions that nvdisasm takes as {args.sm}", file=sys.stderr)
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
