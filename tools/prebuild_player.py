"""Builds the player for arm64 Linux, packed as wheels bring it: python tools/prebuild_player.py FOLDER prints its path.

By PyPI's ziglang, since what it makes needs glibc 2.28 and nothing newer.
"""

import gzip
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import boards

from vkconv.phone.build import ABIS, compile_player, prebuilt_name

ABI = ABIS["aarch64"]


def main(folder: Path) -> Path:
    """The packed player. What it is built of is in its name: one that is there stays."""
    made = folder / prebuilt_name(ABI)
    if not made.is_file():
        if not importlib.util.find_spec("ziglang"):
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", boards.ZIG], check=True)
        with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
            program = Path(scratch) / "player"
            compile_player([sys.executable, "-m", "ziglang", "c++", "-target", ABI.zig, "-s"], program)
            folder.mkdir(parents=True, exist_ok=True)
            made.write_bytes(gzip.compress(program.read_bytes(), mtime=0))
    return made


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
