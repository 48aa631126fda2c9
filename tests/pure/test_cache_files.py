"""Caches that somebody has put something else into: it is never waited for, followed, believed or read without end."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from vkconv import compiler
from vkconv.cli import doctor
from vkconv.core import cache_write
from vkconv.files import read_cache
from vkconv.glsl import interface_dir
from vkconv.kernel import Shader
from vkconv.ops import all_shaders

pytestmark = [pytest.mark.long, pytest.mark.share(1)]

LIMIT = 1 << 20


def write(path: Path, data: bytes = b"data") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with cache_write(path) as file:
        file.write(data)
    return path


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.symlink_to(write(path.with_suffix(".theirs")))


def sparse(path: Path) -> None:
    path.touch(0o644)
    os.truncate(path, 1 << 42)


def folder(path: Path) -> None:
    path.mkdir()


def shared(path: Path) -> None:
    write(path).chmod(0o664)


HOSTILE = (fifo, endless, link, sparse, folder, shared)


def soon(attempt):
    """What a function gives, in a second: it may hang."""
    got = []
    thread = threading.Thread(target=lambda: got.append(attempt()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits"
    return got[0]


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_file_of_this_user_is_nothing(make, tmp_path):
    make(tmp_path / "cached")
    assert soon(lambda: read_cache(tmp_path / "cached", LIMIT)) == b""


def test_a_file_of_this_user_is_read_up_to_the_limit(tmp_path):
    path = write(tmp_path / "cached", bytes(LIMIT))
    assert read_cache(path, LIMIT) == bytes(LIMIT)
    assert read_cache(path, LIMIT - 1) == b""
    assert read_cache(tmp_path / "absent", LIMIT) == b""


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_file_or_folder_of_another_user_is_nothing(of_folder, tmp_path, monkeypatch):
    path = write(tmp_path / "inner" / "cached")
    if os.geteuid() == 0:
        os.chown(path.parent if of_folder else path, 1234, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert read_cache(path, LIMIT) == b""


def test_a_folder_that_all_may_write_to_is_nothing(tmp_path):
    path = write(tmp_path / "inner" / "cached")
    path.parent.chmod(0o777)
    assert read_cache(path, LIMIT) == b""
    path.parent.chmod(0o775)  # of a group of its own, as many systems have it
    assert read_cache(path, LIMIT) == b"data"


@pytest.fixture
def shader(tmp_path, monkeypatch) -> Shader:
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "prebuilt_dirs", list)
    return min(all_shaders(), key=lambda shader: shader.key)


@pytest.mark.parametrize("make", [fifo, endless, sparse, shared])
def test_spirv_that_was_put_into_the_cache_is_compiled_anew(make, shader, tmp_path, monkeypatch):
    code = compiler.spirv(shader)
    (path,) = tmp_path.rglob("*.spv")
    assert path.stem == hashlib.sha256(code).hexdigest()
    path.unlink()
    make(path)
    if make is shared:  # whole, but others could have written it
        path.write_bytes(code)
    made = []
    monkeypatch.setattr(compiler, "compile_shader", lambda *_: made.append(code) or code)
    assert soon(lambda: compiler.spirv(shader)) == code and made
    assert not path.is_symlink() and path.read_bytes() == code  # and is in its place
    made.clear()
    assert compiler.spirv(shader) == code and not made


def test_an_interface_that_was_put_into_the_cache_is_written_anew(shader, tmp_path):
    path = interface_dir(shader) / "interface.glsl"
    text = path.read_bytes()
    for make in (fifo, endless, sparse):
        path.unlink()
        make(path)
        assert soon(lambda: interface_dir(shader)) == path.parent
        assert path.read_bytes() == text


def test_doctor_says_that_a_cache_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path))
    write(tmp_path / "spirv" / "a")
    write(tmp_path / "pipelines" / "b")
    assert doctor._cache().status == "ok"
    (tmp_path / "spirv").chmod(0o777)
    found = doctor._cache()
    assert found.status == "warn" and "1 of 2 files" in found.detail
