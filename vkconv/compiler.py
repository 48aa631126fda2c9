"""SPIR-V of a shader variant: shipped with the package, else from the user's cache, else compiled now.

A variant is identified by a digest of everything that decides its meaning: the ``.comp`` file, every include it
reaches, element type, defines and compiler flags; not the compiler's version. Whatever does not match the digest
or its own checksum is a miss, never an error.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vkconv import bfloat16
from vkconv.core import DType, ShaderError, atomic_write, cache_dir, cache_write
from vkconv.files import read_cache
from vkconv.fixed import Unfixed
from vkconv.glsl import macros, shader_dir, source_bytes, whole_text
from vkconv.glslang import FLAGS, compile_shader, find_glslang
from vkconv.glslang_library import Glslang as Library
from vkconv.glslang_library import library
from vkconv.kernel import Shader
from vkconv.shader_tools import library_dir
from vkconv.spirv import is_spirv

INDEX_SCHEMA = "vkconv.spirv/1"
_MOST_SPIRV_BYTES = 16 << 20


def digest(shader: Shader, folder: Path | None = None, sources: Callable[[str, Path], bytes] = source_bytes) -> str:
    """Hex identity of a variant: changes with any source it reaches, its interface, element type, defines and the
    flags. ``sources`` gives what stands for the sources of a name, for callers that ask for many variants."""
    folder = folder or shader_dir()
    made_by = (*FLAGS, bfloat16.REVISION) if shader.dtype is DType.BF16 else FLAGS
    state = hashlib.sha256(json.dumps([made_by, shader.stem, shader.glsl, macros(shader)]).encode())
    state.update(sources(shader.stem, folder))
    return state.hexdigest()


def prebuilt_dirs() -> list[Path]:
    """Folders of SPIR-V that came with the package; an editable installation has its own beside the checkout's."""
    package = sys.modules[__name__.partition(".")[0]]
    return [Path(entry) / "_spirv" for entry in package.__path__]


def spirv(shader: Shader, folder: Path | None = None, prebuilt: Path | None = None) -> bytes:
    """SPIR-V of a variant: from ``prebuilt`` (default: the package's), the user's cache, or the compiler.

    Raises ShaderError when it must be compiled and cannot be.
    """
    folder = folder or shader_dir()
    identity = digest(shader, folder)
    for made in [prebuilt] if prebuilt else prebuilt_dirs():
        code = _prebuilt(shader, identity, made)
        if code:
            return code
    # The checksum is the file's name, so that one rename makes both appear and any damage is a miss.
    shelf = cache_dir() / "spirv" / identity
    for path in sorted(shelf.glob("*.spv")):
        code = _checked(read_cache(path, _MOST_SPIRV_BYTES), path.stem)
        if code:
            return code
    code = compile_shader(shader, folder)
    if digest(shader, folder) != identity:  # edited meanwhile: right for now, but under which name?
        return code
    with contextlib.suppress(OSError), cache_write(shelf / f"{hashlib.sha256(code).hexdigest()}.spv") as file:
        file.write(code)
    return code


def pipeline_spirv(shader: Shader, fixed: Sequence[int] | None) -> bytes:
    """The same for a pipeline with ``fixed`` words in place of push constants; None: it has these."""
    code = spirv(shader)
    return code if fixed is None else _unfixed(code, shader.key).fixed(fixed)


# Read anew where the code is another: a plan has many launches of one shader.
_unfixed = functools.lru_cache(maxsize=64)(Unfixed.of)


def prebuilt_valid(shaders: Iterable[Shader], folder: Path | None = None, prebuilt: Path | None = None) -> int:
    """How many of the variants ``prebuilt`` (default: the package's) holds, undamaged and made from these sources.

    Raises ShaderError when the sources of one are missing.
    """
    folder = folder or shader_dir()
    folders = [prebuilt] if prebuilt else prebuilt_dirs()
    return sum(any(_prebuilt(shader, digest(shader, folder), made) for made in folders) for shader in shaders)


def build(shaders: Iterable[Shader], out_dir: Path, folder: Path | None = None) -> int:
    """Compile every variant to ``out_dir/<key>.spv`` with an ``index.json`` of digests; returns how many.

    Nothing is written unless all compile; one ShaderError tells of every one that does not.
    """
    folder = folder or shader_dir()
    by_key: dict[str, Shader] = {}
    for shader in shaders:
        if not re.fullmatch(r"[\w.\-]+", shader.key):
            raise ShaderError(f"{shader.key!r} cannot name a file; use letters, digits and _ in defines")
        if by_key.setdefault(shader.key, shader) != shader:
            raise ShaderError(f"{shader} and {by_key[shader.key]} share the key {shader.key}; rename a define")
    libraries = library_dir(find_glslang().path)
    glslang = library(libraries) if libraries else None
    codes = _each(lambda s: _built(s, folder, glslang), by_key.values())
    for shader, code in codes.items():
        with atomic_write(out_dir / f"{shader.key}.spv") as file:
            file.write(code)
    index = {s.key: {"source": digest(s, folder), "sha256": hashlib.sha256(c).hexdigest()} for s, c in codes.items()}
    with atomic_write(out_dir / "index.json") as file:
        file.write(json.dumps({"schema": INDEX_SCHEMA, "shaders": index}, indent=1, sort_keys=True).encode())
    return len(codes)


def _built(shader: Shader, folder: Path, glslang: Library | None) -> bytes:
    """The same by the library, where there is one that takes the shader; messages are those of the compiler."""
    code = glslang.compile(whole_text(shader, folder), macros(shader)) if glslang else b""
    if not is_spirv(code):
        return compile_shader(shader, folder)
    return bfloat16.with_bfloat16(code, shader.key) if shader.dtype is DType.BF16 else code


def _each(make: Callable[[Shader], bytes], shaders: Iterable[Shader]) -> dict[Shader, bytes]:
    todo = list(dict.fromkeys(shaders))

    def attempt(shader: Shader) -> bytes | ShaderError:
        try:
            return make(shader)
        except ShaderError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = dict(zip(todo, pool.map(attempt, todo), strict=True))
    errors = dict.fromkeys(str(r) for r in results.values() if isinstance(r, ShaderError))
    if errors:
        raise ShaderError("\n".join(errors))
    return {shader: r for shader, r in results.items() if isinstance(r, bytes)}


def _prebuilt(shader: Shader, identity: str, folder: Path) -> bytes:
    """The SPIR-V of a folder that `build` filled, if it was made from the sources of this digest, or nothing."""
    entry = _kept_index(folder).get(shader.key)
    if not entry or entry["source"] != identity:
        return b""
    with contextlib.suppress(OSError):
        return _checked((folder / f"{shader.key}.spv").read_bytes(), entry["sha256"])
    return b""


def read_index(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """The shaders of ``folder/index.json``; empty when it is absent or is not ours."""
    try:
        index = json.loads((folder / "index.json").read_bytes())
        if index["schema"] != INDEX_SCHEMA:
            return {}
        return {key: {"source": str(e["source"]), "sha256": str(e["sha256"])} for key, e in index["shaders"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


_kept_index = functools.lru_cache(read_index)


def _checked(code: bytes, sha256: str) -> bytes:
    """SPIR-V whose checksum holds, or nothing."""
    return code if is_spirv(code) and hashlib.sha256(code).hexdigest() == sha256 else b""
