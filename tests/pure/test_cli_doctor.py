"""vkconv doctor: its rows, its exit codes, and the process that it probes with."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

from vkconv.cli import doctor, loader, probe
from vkconv.core import UsageError, VkconvError, cache_dir


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("VKCONV_DEVICE", "VKCONV_ROUTE", "VKCONV_PARAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VKCONV_MEASURED", "off")


def test_doctor_has_a_row_for_a_cache_folder_that_cannot_be(monkeypatch):
    monkeypatch.setenv("VKCONV_CACHE_DIR", "~nosuchuser/x")
    check = doctor._cache()
    assert (check.check, check.status) == ("cache", "fail")
    assert check.detail == "VKCONV_CACHE_DIR is '~nosuchuser/x', and there is no such user" and check.todo
    with pytest.raises(UsageError, match="VKCONV_CACHE_DIR is '~nosuchuser/x'"):
        cache_dir()


@pytest.mark.parametrize(
    ("kernels", "others", "code"),
    [
        (["ok"], ["ok", "warn"], 0),
        (["ok", "fail"], ["ok"], 1),
        (["ok"], ["fail"], 1),
        (["fail"], ["ok"], 3),
        ([], ["ok"], 3),
    ],
)
def test_doctor_exit_code(kernels, others, code):
    checks = [doctor.Check(f"kernel on device {i}", status, "") for i, status in enumerate(kernels)]
    assert doctor.exit_code([*checks, *(doctor.Check("other", status, "") for status in others)]) == code


@pytest.mark.parametrize(
    ("kernel_us", "gpu_us", "status"),
    [([5, 6], 20, "ok"), ([0, 0], 0, "warn"), ([-1, 6], 5, "warn"), ([5, 6], 101, "warn")],
)
def test_doctor_doubts_timestamps(kernel_us, gpu_us, status):
    answer = {"kernel_us": kernel_us, "gpu_us": gpu_us, "wall_us": 100.0, "tick_ns": 1.0}
    assert doctor._timestamps(0, answer).status == status


def test_driver_manifests_by_variable_and_by_search(monkeypatch, tmp_path):
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    folder = tmp_path / "share" / "vulkan" / "icd.d"
    folder.mkdir(parents=True)
    good, bad = folder / "a.json", folder / "b.json"
    good.write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "liba.so", "api_version": "1.3.0"}}')
    bad.write_text("[]")
    found = [(good, "liba.so, Vulkan 1.3.0"), (bad, "is no ICD manifest")]
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    assert [entry for entry in loader.driver_manifests() if entry[0].is_relative_to(tmp_path)] == found
    monkeypatch.setenv("VK_ICD_FILENAMES", f"{good}{os.pathsep}{tmp_path / 'none.json'}")
    assert loader.driver_manifests() == [
        found[0],
        (tmp_path / "none.json", "no such file; check the path"),
    ]
    monkeypatch.setenv("VK_DRIVER_FILES", str(folder))
    assert loader.driver_manifests() == found


@pytest.mark.skipif(os.name != "posix", reason="uses a shell script as the process that fails")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -SEGV $$", "SIGSEGV"),
        ("sleep 5", "no answer in 0.2 s"),
        ("echo 'error: no good' >&2; exit 3", "^no good"),
        ("exit 1", "no message"),
    ],
)
def test_probe_outlives_what_it_probes(monkeypatch, tmp_path, script, said):
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2 if "sleep" in script else 60)
    with pytest.raises(VkconvError, match=said):
        probe.probe(0)


@pytest.mark.skipif(os.name != "posix", reason="uses a shell script as the process that answers")
def test_probe_reads_the_last_line(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'driver chatter'\necho '{\"elements\": 3}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    assert probe.probe(0) == {"elements": 3}


@pytest.mark.long
def test_probe_finds_this_vkconv_in_a_folder_that_has_another(monkeypatch, tmp_path):
    """As where vkconv is installed and run in a checkout of its sources, which have no bridge."""
    other = tmp_path / "vkconv" / "cli"
    other.mkdir(parents=True)
    (other.parent / "__init__.py").touch()
    (other / "__init__.py").touch()
    (other / "probe.py").write_text('print(\'{"found": "the wrong one"}\')\n')
    plain = tmp_path / "python"  # without what an editable installation puts before all folders
    plain.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    plain.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(plain))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(VkconvError):  # found, but this folder of sources may have no bridge
        assert "devices" in probe.probe()


def test_doctor_counts_a_cache_that_others_clean_meanwhile(monkeypatch, tmp_path):
    """Files vanish between being listed and being looked at."""
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path))
    for name in ("spirv/a.spv", "spirv/b.spv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(7))
    lstat = Path.lstat

    def vanishing(path):
        if path.name == "b.spv":
            raise FileNotFoundError(path)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", vanishing)
    check = doctor._cache()
    assert check.status == "ok" and "spirv: 1 files, 7 B" in check.detail
