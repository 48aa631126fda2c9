"""``vkconv devices`` where no device is needed: shipped files, and files made from other tools' reports."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from vkconv.cli import main
from vkconv.cli.evident import NOT_KNOWN
from vkconv.device import load_device, shipped_devices, target_of
from vkconv.device.numbers import NUMBERS, Evidence

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
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line}
    assert " turnip Mesa driver Mesa 26." in rows["adreno-740-turnip"] and " panvk Mesa 26." in rows["mali-g610-panvk"]
    assert " Qualcomm Technologies Inc. Adreno Vulkan Driver integrated " in rows["adreno-740"]


def test_a_shipped_device_is_told_about_and_dumped() -> None:
    code, out, _ = vkconv("devices", "--device", "mali-g57")
    assert code == 0
    assert "Mali-G57" in out
    _, dumped, _ = vkconv("devices", "--device", "mali-g57", "--dump")
    assert json.loads(dumped)["source"] == load_device("mali-g57").facts["source"]


def test_where_no_device_is_the_shipped_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkconv.backend.runtime.list_devices", list)
    for words in ([], ["-d", "mali-g71"]):
        code, out, err = vkconv("explain", "relu:x=8", *words)
        assert (code, out) == (3, "")
        assert "no Vulkan device found" in err and "shipped device files, which need no Vulkan: adreno-618" in err
    assert "did you mean 'mali-g715'" in err


def test_files_with_evidence_has_a_row_a_device_and_a_letter_behind_each_value() -> None:
    code, out, err = vkconv("devices", "files", "--evidence")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines()[2:] if line}
    assert rows.keys() >= set(shipped_devices())
    assert " 132 d " in rows["h200"]
    assert " 50.0 MiB p " in rows["h200"]
    assert rows["h200"].endswith(" 2.2 m")
    assert re.search(r" discrete d +nvidia d +Hopper p +32 d +32 d +48.0 KiB d +no d +11 d ", rows["h200"])
    assert re.search(r" 64 d +32 to 64 d .* no a +14 d ", rows["radeon-rx-7900-xtx-radv"])
    assert re.search(r" 16 p +n +32.0 KiB p +yes p +n ", rows["mali-g715"])
    letters = {word[0] for word in (*get_args(Evidence), NOT_KNOWN)}
    assert len(letters) == len(get_args(Evidence)) + 1
    assert all(sum(cell in letters for cell in rows[name].split()) == len(NUMBERS) + 8 for name in shipped_devices())
    assert "a assumed, n not known; " in out


@pytest.mark.parametrize("name", ["mali-g57", "swiftshader"])
def test_a_device_with_evidence_has_a_row_a_number_with_its_source(name: str) -> None:
    code, out, _ = vkconv("devices", "--device", name, "--evidence")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()[3:] if line}
    numbers = target_of(load_device(name)).numbers
    assert rows.keys() >= numbers.keys() == NUMBERS.keys()
    assert all(n.evidence in rows[key] and rows[key].endswith(f"  {n.source}") for key, n in numbers.items())


def test_what_a_file_assumes_is_named_where_it_is_shown_and_below() -> None:
    _, out, _ = vkconv("devices", "--device", "mali-g52-panvk", "--evidence")
    (size,) = (line for line in out.splitlines() if line.startswith("subgroup_size "))
    assert size.split() == ["subgroup_size", "1", "assumed", "VkPhysicalDeviceSubgroupProperties.subgroupSize"]
    assert "\nassumed by the device's file: memoryHeaps, deviceName, timestampPeriod, subgroupSize, " in out
    assert "\nits source: vkconv devices --with mali-g52 --dump" in out


def test_dump_and_evidence_exclude_each_other() -> None:
    code, out, err = vkconv("devices", "--device", "mali-g57", "--dump", "--evidence")
    assert (code, out) == (2, "")
    assert "give one of them" in err


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


@pytest.mark.parametrize("words", [("--evidence", "files"), ("--dump", "files"), ("-d", "h200", "import", "x.json")])
def test_options_before_a_command_that_does_not_see_them_are_refused(words: tuple[str, ...]) -> None:
    code, out, err = vkconv("devices", *words)
    assert (code, out) == (2, "") and f"stands before vkconv devices {words[-1 if 'files' in words else -2]}" in err
    code, out, err = vkconv("compilers", "--json", "install", "amd64")
    assert (code, out) == (2, "") and "--json stands before vkconv compilers install" in err


def test_a_device_file_needs_no_import(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(vkconv("devices", "-d", "h200", "--dump")[1])
    code, out, err = vkconv("devices", "import", path)
    assert (code, out) == (2, "") and f"{path} is a device file already: --device {path}" in err
