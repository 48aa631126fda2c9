"""Compile every shader variant that an op declares, for the wheel: ``python tools/build_shaders.py OUT_DIR``."""

import sys
from pathlib import Path

from vkconv.compiler import build
from vkconv.core import VkconvError
from vkconv.glslang import find_glslang
from vkconv.ops import all_shaders


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        count = build(all_shaders(), Path(argv[0]))
        print(f"{count} shaders compiled by {find_glslang()}")
    except VkconvError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
