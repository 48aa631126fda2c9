"""Setting up compilers from packages, with tools that play apt-get, apt-cache and dpkg-deb."""

import hashlib
import json
import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from vkconv.compilers import install as installing
from vkconv.compilers import installed, packages
from vkconv.compilers.gpus import Tried, data, find_gpu
from vkconv.compilers.install import Offer, install
from vkconv.compilers.installed import Installed, Manifest
from vkconv.compilers.packages import differences, parse_digests, parse_uris
from vkconv.core import UsageError

pytestmark = [pytest.mark.long, pytest.mark.share(1)]

URIS = """
'http://somewhere/pool/m/mesa_26.1%7ebpo_amd64.deb' mesa-vulkan-drivers_26.1.6-1~bpo13+1_amd64.deb 19718352 
'http://somewhere/pool/z/zlib1g_1.3_amd64.deb' zlib1g_1%3a1.3.dfsg+really1.3.1-1+b1_amd64.deb 88892 MD5Sum:32f2
Reading package lists...
"""  # noqa: W291 - as apt prints it
SHOWN = f"""Package: zlib1g
Source: zlib
Version: 1:1.3
SHA256: {"a" * 64}
Description: compression

Package: broken
Version: 2
"""

# One program under three names. The packages are files whose text is their name and version.
TOOL = """
import hashlib, json, os, pathlib, sys
packages = json.loads({packages!r})
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([name, *words]) + "\\n")
fail = {fail!r}
if fail and fail in words:
    print("W: something", file=sys.stderr)
    print("E: it is out of order", file=sys.stderr)
    sys.exit(100)
def text(package):
    return f"{{package}} {{packages[package]}}".encode()
if "indextargets" in words:
    print("other http://other/debian\\nbookworm http://mirror/debian\\nstable http://mirror/debian")
elif "--print-uris" in words:
    for package, version in packages.items():
        print(f"'http://mirror/x.deb' {{package}}_{{version}}_amd64.deb {{len(text(package))}} ")
elif "show" in words:
    for package, version in packages.items():
        print(f"Package: {{package}}\\nVersion: {{version}}\\nSHA256: {{hashlib.sha256(text(package)).hexdigest()}}\\n")
elif "download" in words:
    for word in words[words.index("download") + 1:]:
        package, _, version = word.partition("=")
        pathlib.Path(f"{{package}}_{{version}}_amd64.deb").write_bytes(text(package) + {tail!r})
elif name == "dpkg-deb":
    target = pathlib.Path(words[2], "usr", "lib", "x86_64-linux-gnu")
    target.mkdir(parents=True, exist_ok=True)
    (target / pathlib.Path(words[1]).name).touch()
    (target / "libvulkan_radeon.so").touch()
"""
SERVED = {"mesa-vulkan-drivers": "26.1.6-1", "zlib1g": "1.3", "python3-minimal": "3.13"}


class Tools:
    """The tools, in a folder that is on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        folder.mkdir()

    def write(self, served: dict[str, str], fail: str = "", tail: bytes = b"") -> None:
        text = TOOL.format(packages=json.dumps(served), log=str(self.log), fail=fail, tail=tail)
        for name in ("apt-get", "apt-cache", "dpkg-deb"):
            path = self.folder / name
            path.write_text(f"#!{sys.executable} -IS\n{text}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def ran(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def known(served: dict[str, str]) -> dict[str, Tried]:
    """The packages that are served, as tried."""
    return {n: Tried(v, hashlib.sha256(f"{n} {v}".encode()).hexdigest()) for n, v in served.items()}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools(tmp_path / "bin")
    made.write(SERVED)
    (tmp_path / "key").touch()
    monkeypatch.setenv("PATH", str(made.folder))
    monkeypatch.setenv("VKCONV_COMPILERS", str(tmp_path / "compilers"))
    monkeypatch.setattr(packages, "KEYRING", tmp_path / "key")
    monkeypatch.setattr(packages.platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"})
    monkeypatch.setattr(installing, "c_compiler", lambda architecture: ["cc"])
    monkeypatch.setattr(installed.Installed, "program", lambda self: self.folder / "program")
    monkeypatch.setattr(installing, "emulator", lambda folder, architecture: [])
    monkeypatch.setattr(installing, "host_architecture", lambda: "amd64")
    for module in (installing, installed):
        monkeypatch.setattr(module, "tried", lambda name: known({**SERVED, "python3-minimal": "0"}))
    return made


def test_packages_are_read_from_what_apt_prints() -> None:
    assert parse_uris(URIS) == [
        ("mesa-vulkan-drivers", "26.1.6-1~bpo13+1", 19718352),
        ("zlib1g", "1:1.3.dfsg+really1.3.1-1+b1", 88892),
    ]
    assert parse_digests(SHOWN) == {("zlib1g", "1:1.3"): "a" * 64}


def test_differences_name_both_versions() -> None:
    served = {"a": Tried("2", "x"), "b": Tried("1", "y"), "c": Tried("1", "z"), "d": Tried("1", "w")}
    tried = {"a": Tried("1", "x"), "b": Tried("1", "other"), "d": Tried("1", "w")}
    found = differences(served, tried)
    assert found == ["a is 2, and 1 was tried", "b 1 has the sha256 y, and other was tried", "c 1 was not tried at all"]


def test_a_set_is_downloaded_checked_and_unpacked(tools: Tools, tmp_path: Path) -> None:
    offers: list[Offer] = []
    said: list[str] = []
    there = install("amd64", lambda offer: offers.append(offer) or True, said.append)  # type: ignore[func-returns-value]
    assert there and there.folder == tmp_path / "compilers" / "amd64" and there.version == "26.1.6-1"
    assert [p.name for p in offers[0].packages] == ["mesa-vulkan-drivers", "zlib1g"]  # no Python
    assert not offers[0].differences and offers[0].nbytes == len("mesa-vulkan-drivers 26.1.6-1zlib1g 1.3")
    assert sorted(path.name for path in there.folder.iterdir()) == ["installed.json", "root"]
    assert (there.libraries / "zlib1g_1.3_amd64.deb").exists() and not there.differences
    assert [path.name for path in (tmp_path / "compilers").iterdir()] == ["amd64"]
    (update,) = (words for words in tools.ran() if words[-1] == "update")
    assert not [word for word in update if "=/etc" in word or "=/var" in word]
    assert any("downloading 2 packages" in text for text in said)


def test_the_machines_own_source_is_asked_for_the_suites(tools: Tools, tmp_path: Path) -> None:
    apt = packages.Apt(tmp_path / "apt", "amd64", ["trixie", "trixie-backports"])
    assert (apt.folder / "sources.list").read_text().splitlines() == [
        f"deb [arch=amd64 signed-by={tmp_path / 'key'}] http://mirror/debian {suite} main"
        for suite in ("trixie", "trixie-backports")
    ]


def test_nothing_is_downloaded_where_it_is_not_agreed(tools: Tools, tmp_path: Path) -> None:
    assert install("amd64", lambda offer: False, print) is None
    assert not any("download" in words for words in tools.ran())
    assert list((tmp_path / "compilers").iterdir()) == []


def test_other_versions_are_refused_and_named_unless_any_will_do(tools: Tools) -> None:
    tools.write({**SERVED, "zlib1g": "1.4", "new": "1"})
    with pytest.raises(UsageError) as error:
        install("amd64", lambda offer: True, print)
    assert str(error.value).startswith("2 of 3 packages are not those that were tried:\n  zlib1g is 1.4, and 1.3 was")
    assert "new 1 was not tried at all" in str(error.value) and "--any-version" in str(error.value)
    there = install("amd64", lambda offer: bool(offer.differences), print, any_version=True)
    assert there and there.differences == ["zlib1g is 1.4, and 1.3 was tried", "new 1 was not tried at all"]


def test_a_damaged_file_is_refused_and_the_old_set_stays(tools: Tools) -> None:
    before = install("amd64", lambda offer: True, print)
    tools.write(SERVED, tail=b"!")
    with pytest.raises(UsageError, match=r"mesa-vulkan-drivers_26.1.6-1_amd64.deb has the sha256 .* it is damaged"):
        install("amd64", lambda offer: True, print)
    assert before and Installed("amd64").version == before.version


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("update", "trixie and trixie-backports cannot be read from where this machine takes its packages"),
        (
            "--print-uris",
            "mesa-vulkan-drivers, mesa-drm-shim, libvulkan1, libvulkan-dev cannot be had from trixie-back",
        ),
        ("download", "packages cannot be downloaded"),
    ],
)
def test_what_apt_says_is_told(tools: Tools, fail: str, said: str) -> None:
    tools.write(SERVED, fail=fail)
    with pytest.raises(UsageError) as error:
        install("amd64", lambda offer: True, print)
    assert str(error.value).startswith(said) and "E: it is out of order" in str(error.value)


def test_a_machine_without_debians_tools_is_told(tools: Tools) -> None:
    (tools.folder / "dpkg-deb").unlink()
    with pytest.raises(UsageError, match=r"there is no dpkg-deb here: .* docs/compilers.md"):
        install("amd64", lambda offer: True, print)


def test_a_machine_without_debians_keys_is_told(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "key").unlink()
    with pytest.raises(UsageError, match=r"apt-get install debian-archive-keyring"):
        install("amd64", lambda offer: True, print)


def test_a_machine_without_a_source_of_debian_is_told(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.write({}, fail="indextargets")
    with pytest.raises(UsageError, match="no source of Debian's packages is set up in /etc/apt"):
        install("amd64", lambda offer: True, print)


# ---- what is installed


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.setenv("VKCONV_COMPILERS", str(tmp_path))
    folder = tmp_path / "amd64"
    (folder / "root/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (folder / "root/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so").touch()
    manifest = Manifest({"mesa-vulkan-drivers": Tried("26.1", "0" * 64)})
    (folder / "installed.json").write_bytes(msgspec.json.encode(manifest))
    return Installed("amd64")


def test_a_set_that_is_not_there_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKCONV_COMPILERS", str(tmp_path))
    with pytest.raises(UsageError, match=r"are not installed in .*: vkconv compilers install arm64"):
        Installed("arm64")


def test_a_damaged_set_says_so(there: Installed) -> None:
    (there.folder / "installed.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is damaged .*--again"):
        Installed("amd64")


def test_a_program_is_started_behind_the_shim(there: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "host_architecture", lambda: "amd64")
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", "/of/this/machine.json")
    words = there.command(find_gpu("navi31"), ["/bin/program", "-x"], [Path("/own")])
    libraries = str(there.libraries)
    assert words[0] == f"{libraries}/ld-linux-x86-64.so.2"
    assert words[words.index("--library-path") + 1] == f"/own:{libraries}"
    assert words[words.index("--preload") + 1] == f"{libraries}/libamdgpu_noop_drm_shim.so"
    assert words[-2:] == ["/bin/program", "-x"]
    changes = there.environment(find_gpu("navi31"))
    assert changes["AMDGPU_GPU_ID"] == "navi31" and "VK_ADD_DRIVER_FILES" not in changes
    icd = json.loads(Path(changes["VK_DRIVER_FILES"]).read_text())
    assert icd["ICD"]["library_path"] == f"{libraries}/libvulkan_radeon.so"
    assert os.environ["PATH"] == changes["PATH"]


def test_a_driver_that_the_set_lacks_is_named(there: Installed) -> None:
    with pytest.raises(UsageError, match=r"the set amd64 has no libvulkan_nouveau.so"):
        there.environment(find_gpu("ga102"))


def test_another_architecture_runs_by_qemu(there: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "host_architecture", lambda: "amd64")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"qemu-aarch64 on this machine, and there is none: apt-get install qemu-user"):
        installed.emulator(there.folder, "arm64")
    own = there.folder / "tools/usr/bin/qemu-aarch64"
    own.parent.mkdir(parents=True)
    own.touch()
    assert installed.emulator(there.folder, "arm64") == [own]
    assert installed.emulator(there.folder, "amd64") == []


def test_a_missing_c_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "host_architecture", lambda: "amd64")
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for architecture, words in (("amd64", "apt-get install gcc"), ("arm64", "pip install ziglang")):
        with pytest.raises(UsageError, match=words):
            installed.c_compiler(architecture)


def test_the_program_in_c_is_where_it_is_looked_for() -> None:
    assert [path.name for path in installed.sources()] == ["compile.c", "device.c", "main.c", "program.h"]
    cmake = Path(__file__).parents[3] / "CMakeLists.txt"
    assert "install(DIRECTORY native/compilers DESTINATION vkconv/_native)" in cmake.read_text()


def test_every_architecture_of_a_set_is_known() -> None:
    for packages_ in data().sets.values():
        assert packages_.architecture in installed.TRIPLETS
