"""GLSL of shader variants: source files, what they include and the macros and interface that a variant gives them."""

import atexit
import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from vkconv.core import ShaderError, cache_dir, cache_write, did_you_mean
from vkconv.files import read_cache
from vkconv.kernel import Shader

_PACKAGE = Path(__file__).resolve().parent
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)


def shader_dir() -> Path:
    """The folder of shader sources: ``vkconv/_shaders`` in an installation, ``shaders`` in a checkout."""
    for folder in (_PACKAGE / "_shaders", _PACKAGE.parent / "shaders"):
        if (folder / "include" / "common.glsl").is_file():
            return folder
    raise ShaderError(
        f"no shader sources in {_PACKAGE / '_shaders'}; this installation is incomplete: reinstall vkconv"
    )


def source_of(stem: str, folder: Path) -> Path:
    """``<stem>.comp``, in whichever family's folder it is: names are unique. ShaderError where there is none."""
    for path in (folder / f"{stem}.comp", *folder.rglob(f"{stem}.comp")):
        if path.is_file():
            return path
    known = [path.stem for path in folder.rglob("*.comp")]
    raise ShaderError(f"no shader {stem!r} in {folder}{did_you_mean(stem, known)}")


def include_dirs(main: Path, folder: Path) -> tuple[Path, ...]:
    """Where includes of a shader are looked for, beside the including files: its family's folder and those above, then
    what all families share."""
    families = [path for path in main.parent.parents if path.is_relative_to(folder)]
    return (*families, folder / "include")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A source file: what is in it, and the names that it includes, whatever the conditions around them."""

    content: bytes
    includes: tuple[str, ...]


def read_source(path: str) -> Source | None:
    """The source file at a path; None where there is none."""
    if not Path(path).is_file():
        return None
    content = Path(path).read_bytes()
    return Source(content, tuple(_INCLUDE.findall(content.decode(errors="replace"))))


Read = Callable[[str], Source | None]


def source_files(stem: str, folder: Path | None = None) -> tuple[Path, ...]:
    """``<stem>.comp`` and every file it includes, in first-seen order.

    Raises ShaderError when there is no such shader. A missing include is left for the compiler to report, which
    knows whether it is reached.
    """
    return tuple(map(Path, _sources(stem, folder or shader_dir(), read_source)))


def _sources(stem: str, folder: Path, read: Read) -> dict[str, Source]:
    main = source_of(stem, folder)
    searched = tuple(map(str, include_dirs(main, folder)))
    found: dict[str, Source] = {}
    todo: list[tuple[str, tuple[str, ...]]] = [(str(main), (str(main.parent),))]
    while todo:
        path, parents = todo.pop(0)
        source = None if path in found else read(path)
        if source is None:
            continue
        found[path] = source
        for name in source.includes:
            # glslang looks beside the including file, then beside those that included it, then in -I.
            for base in (*parents, *searched):
                target = os.path.normpath(f"{base}/{name}")
                if read(target) is not None:
                    todo.append((target, (str(Path(target).parent), *parents)))
                    break
    return found


def source_bytes(stem: str, folder: Path, read: Read = read_source) -> bytes:
    """All that `source_files` names, each file behind its path and size; ``read`` may keep what it has read."""
    parts = []
    for path, source in _sources(stem, folder, read).items():
        parts += [f"\n{os.path.relpath(path, folder)} {len(source.content)}\n".encode(), source.content]
    return b"".join(parts)


def macros(shader: Shader) -> list[str]:
    return [f"DTYPE_{shader.dtype}=1", *(f"{k}={v}" if v else k for k, v in shader.defines)]


def interface_dir(shader: Shader) -> Path:
    """A folder with the GLSL of a variant's interface, ``interface.glsl``: in the user's cache by its content, so that
    a command line that is shown can be repeated, or where that cannot be written, in a temporary folder."""
    text = shader.glsl.encode()
    folder = cache_dir() / "interfaces" / hashlib.sha256(text).hexdigest()[:32]
    path = folder / "interface.glsl"
    with contextlib.suppress(OSError):
        if read_cache(path, len(text)) == text:
            return folder
        with cache_write(path) as file:
            file.write(text)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="vkconv-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "interface.glsl").write_bytes(text)
    return folder


def whole_text(shader: Shader, folder: Path) -> str:
    """The source of a shader with the text of each include in place of its line, found where glslang finds it."""
    main = source_of(shader.stem, folder)
    searched = (*include_dirs(main, folder), interface_dir(shader))

    def text(path: Path, parents: tuple[Path, ...]) -> str:
        def included(line: re.Match[str]) -> str:
            for base in (*parents, *searched):
                if (found := base / line[1]).is_file():
                    return text(found, (found.parent, *parents))
            return line[0]  # for the compiler to report

        return _INCLUDE.sub(included, path.read_text(encoding="utf-8"))

    return text(main, (main.parent,))
