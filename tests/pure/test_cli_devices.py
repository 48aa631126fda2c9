"""``vkconv devices`` where no device is needed: shipped files, and files made from other tools' reports."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from vkconv.cli import main
from vkconv.device import load_device, shipped_devices

REPORT = Path(__file__).parent / "data" / "vulkaninfo-llvmpipe.json"


def vkconv(*argv: object) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as done:
        main([str(arg) for arg in argv])
    return done.value.code or 0, out.getvalue(), err.getvalue()


def test_files_lists_every_shipped_file() -> None:
    code, out, err = vkconv("devices", "files")
    assert (code, err) == (0, "")
    assert all(f"\n{name} " in out for name in shipped_devices())


def test_a_shipped_device_is_told_about_and_dumped() -> None:
    code, out, _ = vkconv("devices", "--device", "mali-g57")
    assert code == 0
    assert "Mali-G57" in out
    _, dumped, _ = vkconv("devices", "--device", "mali-g57", "--dump")
    assert json.loads(dumped)["source"] == load_device("mali-g57").facts["source"]


def test_import_writes_a_file_that_planning_takes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "phone.json"
    code, out, err = vkconv("devices", "import", REPORT, "-o", path, "--kind", "integrated", "--name", "ignored")
    assert (code, err) == (0, "")
    assert "its memory is taken to be 1.00 GiB: --heap-mib" in out
    assert load_device(path).kind == "integrated"
    code, out, _ = vkconv("explain", "relu:x=3x5", "--device", path)
    assert code == 0
    assert "llvmpipe" in out


def test_import_prints_without_an_output() -> None:
    code, out, _ = vkconv("devices", "import", REPORT, "--heap-mib", 512)
    assert code == 0
    assert json.loads(out)["memory"]["memoryHeaps"][0]["size"] == 512 << 20


def test_import_tells_what_it_filled_in(tmp_path: Path) -> None:
    report = json.loads(REPORT.read_text())
    base = report["capabilities"]["device"]["properties"]["VkPhysicalDeviceProperties"]
    del base["limits"]["maxPushConstantsSize"], base["deviceType"]
    (tmp_path / "r.json").write_text(json.dumps(report))
    _, out, _ = vkconv("devices", "import", tmp_path / "r.json", "-o", tmp_path / "d.json")
    assert "its kind is taken to be integrated: --kind says which" in out
    assert out.rstrip().endswith("filled with what Vulkan requires of every device: maxPushConstantsSize")


def test_import_of_an_unknown_kind_is_refused() -> None:
    code, _, err = vkconv("devices", "import", REPORT, "--kind", "phone")
    assert code == 2
    assert "--kind 'phone' is not one of cpu, integrated" in err
