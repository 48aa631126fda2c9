"""Which player is taken: one that came with vkconv, of these sources, before one that a compiler makes."""

import gzip

import pytest

from vkconv.core import DeviceError
from vkconv.phone import build
from vkconv.phone.build import ABIS, build_player, prebuilt_name

ARM, X86 = ABIS["aarch64"], ABIS["x86_64"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installation in which no compiler is to be found, with the player for arm64."""
    sources = build.sources()
    monkeypatch.setattr(build, "_PACKAGE", tmp_path)
    monkeypatch.setattr(build, "sources", lambda: sources)
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    for name in ("VKCONV_PLAYER", "VKCONV_PLAYER_CXX", "ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_NDK"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "_native" / "prebuilt"
    folder.mkdir(parents=True)
    (folder / prebuilt_name(ARM)).write_bytes(gzip.compress(b"the player"))
    return folder


def test_what_came_with_vkconv_needs_no_compiler(package):
    found = build_player(ARM, android=False)
    assert found.read_bytes() == b"the player" and found.stat().st_mode & 0o111
    assert build_player(ARM, android=False) == found


def test_it_is_for_its_processor_and_system_and_of_these_sources(package, monkeypatch, tmp_path):
    with pytest.raises(DeviceError, match="builds the player for x86_64 Linux"):
        build_player(X86, android=False)
    with pytest.raises(DeviceError, match="builds the player for Android"):
        build_player(ARM, android=True)
    monkeypatch.setenv("VKCONV_PLAYER_CXX", "no-such-compiler")
    with pytest.raises(DeviceError, match="no-such-compiler"):
        build_player(ARM, android=False)
    monkeypatch.delenv("VKCONV_PLAYER_CXX")
    changed = tmp_path / "main.cpp"
    changed.write_text("int main() {}")
    monkeypatch.setattr(build, "sources", lambda: [changed])
    with pytest.raises(DeviceError, match="builds the player for aarch64 Linux"):
        build_player(ARM, android=False)
