"""Shaders compile, errors say where, and no cache ever hands out the wrong SPIR-V."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkconv import glslang
from vkconv.compiler import build, digest, spirv
from vkconv.core import DType, ShaderError
from vkconv.glsl import source_files
from vkconv.glslang import INSTALL, compile_shader, find_glslang
from vkconv.kernel import Shader
from vkconv.shader_tools import tool_paths
from vkconv.spirv import is_spirv

pytestmark = pytest.mark.long

COPY = Shader("copy")
MAIN = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef EXTRA
#include "extra.glsl"
#endif
layout(set = 0, binding = 0) readonly restrict buffer A { ELEM a[]; };
layout(set = 0, binding = 1) writeonly restrict buffer B { ELEM b[]; };
void main() {
    b[gl_GlobalInvocationID.x] = a[gl_GlobalInvocationID.x];
}
"""
COMMON = """layout(local_size_x_id = 0) in;
#ifdef DTYPE_f32
#define ELEM float
#else
#define ELEM uint
#endif
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shader folder of one shader with one include, and an empty user cache."""
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "shaders"
    (root / "include").mkdir(parents=True)
    (root / "copy.comp").write_text(MAIN)
    (root / "include" / "common.glsl").write_text(COMMON)
    (root / "include" / "extra.glsl").write_text("const int extra = 1;\n")
    return root


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to make every further compilation fail."""
    return lambda: monkeypatch.setenv("VKCONV_GLSLANG", "/nowhere/glslangValidator")


def fake_tool(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# ---- finding the compiler


def test_nothing_is_run_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("cmeel.prefix/bin", "."):
        fake_tool(tmp_path / place / "glslangValidator", "touch ran; echo Glslang Version: 11:99.0.0")
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    assert all(path.is_absolute() and tmp_path not in path.parents for path in tool_paths("glslangValidator"))
    find_glslang()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("Glslang Version: 11:13.1.1", (13, 1, 1)),
        ("Glslang Version: 11:12.0.0", (12, 0, 0)),
        ("Glslang Version: 11.1.0", (11, 1, 0)),
    ],
)
def test_versions_as_glslang_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, version: tuple[int, ...]
) -> None:
    tool = fake_tool(tmp_path / "glslangValidator", f"echo '{line}'")
    monkeypatch.setenv("VKCONV_GLSLANG", str(tool))
    assert find_glslang() == glslang.Glslang(tool, version)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Glslang Version: 7.11.3214'", "is glslang 7.11.3214, vkconv needs 11 or newer"),
        ("echo 'something else'", "is not glslang's (something else)"),
        ("exit 1", "is not glslang's (no output)"),
    ],
)
def test_an_unfit_explicit_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setenv("VKCONV_GLSLANG", str(fake_tool(tmp_path / "glslangValidator", script)))
    with pytest.raises(ShaderError) as caught:
        find_glslang()
    assert says in str(caught.value)
    assert INSTALL in str(caught.value)


def test_a_missing_explicit_compiler_is_named(no_compiler: Callable[[], None]) -> None:
    no_compiler()
    with pytest.raises(ShaderError, match="/nowhere/glslangValidator does not run: No such file"):
        find_glslang()


def test_search_goes_from_wheels_to_python_to_path_and_skips_the_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = "echo 'Glslang Version: 11:13.0.0'"
    wheel = fake_tool(tmp_path / "site" / "cmeel.prefix" / "bin" / "glslangValidator", good)
    beside = fake_tool(tmp_path / "bin" / "glslangValidator", good)
    on_path = fake_tool(tmp_path / "usr" / "glslangValidator", good)
    monkeypatch.delenv("VKCONV_GLSLANG", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'usr'}{os.pathsep}/bin")
    assert find_glslang().path == wheel
    wheel.unlink()
    assert find_glslang().path == beside
    fake_tool(beside, "echo 'Glslang Version: 10.0.0'")
    glslang._probe.cache_clear()
    assert find_glslang().path == on_path
    on_path.unlink()
    with pytest.raises(ShaderError, match=r"glslang 10\.0\.0, vkconv needs 11") as caught:
        find_glslang()
    assert str(caught.value).count(INSTALL) == 1


# ---- identity


def test_digest_follows_everything_that_is_compiled(folder: Path) -> None:
    first = digest(COPY, folder)
    assert digest(Shader("copy"), folder) == first
    others = [Shader("copy", DType.U32), Shader("copy", defines=(("A", "1"),)), Shader("copy", defines=(("A", "2"),))]
    assert len({first, *(digest(s, folder) for s in others)}) == 4
    (folder / "include" / "unrelated.glsl").write_text("int x;\n")
    assert digest(COPY, folder) == first
    (folder / "include" / "extra.glsl").write_text("const int extra = 2;\n")
    second = digest(COPY, folder)
    assert second != first
    (folder / "copy.comp").write_text(MAIN + "\n")
    assert digest(COPY, folder) not in (first, second)


def test_digest_does_not_depend_on_where_the_folder_lies(folder: Path, tmp_path: Path) -> None:
    first = digest(COPY, folder)
    assert digest(COPY, folder.rename(tmp_path / "elsewhere")) == first


def test_includes_are_followed_as_glslang_does(folder: Path) -> None:
    include = folder / "include"
    (include / "part").mkdir()
    (include / "common.glsl").write_text(f'#include "part/a.glsl"\n{COMMON}')
    (include / "part" / "a.glsl").write_text('#  include "b.glsl"\n#include "common.glsl"\n')
    (include / "part" / "b.glsl").write_text("const int inner = 1;\n")
    (include / "b.glsl").write_text("#error the wrong b.glsl\n")
    names = [str(path.relative_to(folder)) for path in source_files("copy", folder)]
    assert sorted(names) == [
        "copy.comp",
        "include/common.glsl",
        "include/extra.glsl",
        "include/part/a.glsl",
        "include/part/b.glsl",
    ]
    # The wrong b.glsl would not compile, so glslang found the same one; the cycle is broken for it.
    (include / "part" / "a.glsl").write_text('#include "b.glsl"\n')
    assert is_spirv(compile_shader(COPY, folder))


def test_unknown_shader_suggests_one(folder: Path) -> None:
    with pytest.raises(ShaderError, match=r"no shader 'coppy' in .* \(did you mean 'copy'\?\)"):
        spirv(Shader("coppy"), folder)


# ---- compile errors


def test_an_error_names_file_line_defines_and_a_command_that_repeats_it(folder: Path) -> None:
    (folder / "copy.comp").write_text(MAIN.replace("= a[", "= c["))
    shader = Shader("copy", DType.U32, (("TILE", "4"), ("FLAG", "")))
    with pytest.raises(ShaderError) as caught:
        spirv(shader, folder)
    text = str(caught.value)
    assert "shader copy.u32.TILE_4.FLAG does not compile with glslang" in text
    assert f"{folder / 'copy.comp'}:10: 'c' : undeclared identifier" in text
    assert "    b[gl_GlobalInvocationID.x] = c[gl_GlobalInvocationID.x];" in text
    assert "defines: DTYPE_u32=1 TILE=4 FLAG" in text
    command = text.partition("repeat:")[2]
    again = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert again.returncode != 0
    assert "'c' : undeclared identifier" in again.stdout


def test_an_error_in_an_include_names_the_include(folder: Path) -> None:
    (folder / "include" / "common.glsl").write_text(f"{COMMON}\nint f() {{ return q; }}\n")
    with pytest.raises(ShaderError, match=r"include/common.glsl:8: 'q' : undeclared identifier"):
        spirv(COPY, folder)


def test_a_missing_include_is_reported_where_it_is_reached(folder: Path) -> None:
    (folder / "include" / "extra.glsl").unlink()
    assert is_spirv(spirv(COPY, folder))
    with pytest.raises(ShaderError, match=r"copy.comp:5: .*extra.glsl"):
        spirv(Shader("copy", defines=(("EXTRA", "1"),)), folder)


def test_a_shader_without_main_is_an_error(folder: Path) -> None:
    (folder / "copy.comp").write_text(MAIN.replace("main", "other"))
    with pytest.raises(ShaderError, match="Missing entry point"):
        spirv(COPY, folder)


def test_an_old_compiler_is_blamed_for_an_extension_it_lacks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "copy.comp").write_text(
        MAIN.replace("#include", "#extension GL_KHR_cooperative_matrix : require\n#include", 1)
    )
    script = (
        'if [ "$1" = --version ]; then echo "Glslang Version: 11:12.0.0"; else echo "ERROR: not supported"; exit 2; fi'
    )
    monkeypatch.setenv("VKCONV_GLSLANG", str(fake_tool(tmp_path / "glslangValidator", script)))
    with pytest.raises(ShaderError, match=r"GL_KHR_cooperative_matrix needs glslang 13\.1 or newer"):
        spirv(COPY, folder)


def test_a_compiler_that_dies_is_reported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'if [ "$1" = --version ]; then echo "Glslang Version: 11:13.1.0"; else echo oops >&2; kill -9 $$; fi'
    monkeypatch.setenv("VKCONV_GLSLANG", str(fake_tool(tmp_path / "glslangValidator", script)))
    with pytest.raises(ShaderError, match=r"exit status -9, and no SPIR-V\n  oops"):
        spirv(COPY, folder)


def test_success_without_spirv_is_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'if [ "$1" = --version ]; then echo "Glslang Version: 11:13.1.0"; fi'
    monkeypatch.setenv("VKCONV_GLSLANG", str(fake_tool(tmp_path / "glslangValidator", script)))
    with pytest.raises(ShaderError, match="exit status 0, and no SPIR-V"):
        spirv(COPY, folder)


def test_all_errors_are_told_at_once_and_nothing_is_written(folder: Path) -> None:
    (folder / "bad.comp").write_text("#version 450\nvoid main() { x = 1; }\n")
    with pytest.raises(ShaderError) as caught:
        build([COPY, Shader("bad"), Shader("gone")], folder / "out", folder)
    assert "bad.comp:2: 'x'" in str(caught.value)
    assert "no shader 'gone'" in str(caught.value)
    assert not (folder / "out").exists()


# ---- the user's cache


def cached(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache").rglob("*.spv"))


def test_a_cached_variant_needs_no_compiler(folder: Path, no_compiler: Callable[[], None]) -> None:
    code = spirv(COPY, folder)
    no_compiler()
    assert spirv(COPY, folder) == code
    with pytest.raises(ShaderError, match="does not run"):
        spirv(Shader("copy", DType.U32), folder)
    (folder / "include" / "common.glsl").write_text(COMMON + "\n")
    with pytest.raises(ShaderError, match="does not run"):
        spirv(COPY, folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda code: b"",
        lambda code: code[:-4],
        lambda code: code[:40] + bytes([code[40] ^ 1]) + code[41:],
        lambda code: b"#!/bin/sh\n" + code,
    ],
)
def test_a_damaged_cache_file_is_a_miss(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    code = spirv(COPY, folder)
    (path,) = cached(folder)
    path.write_bytes(damage(code))
    assert spirv(COPY, folder) == code
    assert path.read_bytes() == code


def test_a_cache_that_cannot_be_written_does_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(folder / "copy.comp"))
    assert is_spirv(spirv(COPY, folder))


def test_simultaneous_writers_leave_one_whole_file(folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: spirv(COPY, folder), range(4)))
    (path,) = cached(folder)
    assert {path.read_bytes()} == set(codes)
    assert not list((folder.parent / "cache").rglob("*.part"))


# ---- SPIR-V that ships with the package


def test_prebuilt_spirv_needs_no_compiler_until_a_source_changes(
    folder: Path, tmp_path: Path, no_compiler: Callable[[], None]
) -> None:
    out = tmp_path / "out"
    wide = Shader("copy", DType.U32, (("WIDE", ""),))
    assert build([COPY, wide, COPY], out, folder) == 2
    assert sorted(p.name for p in out.iterdir()) == ["copy.f32.spv", "copy.u32.WIDE.spv", "index.json"]
    no_compiler()
    assert spirv(COPY, folder, out) == (out / "copy.f32.spv").read_bytes()
    assert spirv(wide, folder, out) == (out / "copy.u32.WIDE.spv").read_bytes()
    assert not cached(folder)
    (folder / "include" / "common.glsl").write_text(COMMON + "// edited\n")
    with pytest.raises(ShaderError, match="does not run"):
        spirv(COPY, folder, out)


def test_damaged_prebuilt_spirv_is_a_miss(folder: Path, tmp_path: Path) -> None:
    build([COPY], tmp_path / "out", folder)
    path = tmp_path / "out" / "copy.f32.spv"
    code = path.read_bytes()
    path.write_bytes(code[:-8] + b"\0" * 8)
    assert spirv(COPY, folder, tmp_path / "out") == code


@pytest.mark.parametrize("index", [b"", b"[]", b'{"schema": "other", "shaders": {}}', b'{"schema": "vkconv.spirv/1"}'])
def test_a_broken_index_is_a_miss(folder: Path, tmp_path: Path, index: bytes) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.json").write_bytes(index)
    assert is_spirv(spirv(COPY, folder, out))


def test_index_states_source_and_content(folder: Path, tmp_path: Path) -> None:
    build([COPY], tmp_path / "out", folder)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    code = (tmp_path / "out" / "copy.f32.spv").read_bytes()
    entry = {"source": digest(COPY, folder), "sha256": hashlib.sha256(code).hexdigest()}
    assert index == {"schema": "vkconv.spirv/1", "shaders": {"copy.f32": entry}}


def test_a_failed_build_writes_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "bad.comp").write_text("#version 450\nvoid main() { x = 1; }\n")
    with pytest.raises(ShaderError, match=r"bad\.comp:2"):
        build([COPY, Shader("bad")], tmp_path / "out", folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("shaders", "says"),
    [
        ([Shader("copy", defines=(("ACT", "x/2"),))], "cannot name a file"),
        ([Shader("copy", defines=(("A", "1"),)), Shader("copy", defines=(("A_1", ""),))], "share the key copy.f32.A_1"),
    ],
)
def test_keys_that_cannot_be_file_names_are_refused(
    folder: Path, tmp_path: Path, shaders: list[Shader], says: str
) -> None:
    with pytest.raises(ShaderError, match=says):
        build(shaders, tmp_path / "out", folder)
