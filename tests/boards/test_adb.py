"""``vkconv phone`` through Debian's adb, to devices that the test is: faults on the way end in words, and what was
measured before is kept."""

import json
import platform
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import boards as parts
import pytest
from adb_device import AdbDevice, Fault
from cli_kit import vkconv
from required import unavailable

from vkconv.core import UsageError

pytestmark = pytest.mark.boards
CALLS = ("relu:x=5", "relu:x=6", "relu:x=7", "relu:x=8")
BENCH = ("phone", "bench", *CALLS, "--min-time", "0.001", "--runs", 3)


class Adb:
    """A server of adb on a port of its own, with keys of its own."""

    def __init__(self, folder):
        try:
            command = parts.adb()
        except UsageError as error:
            unavailable(str(error))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])
        self.program = folder / "adb"
        changes = {"HOME": folder, "ANDROID_USER_HOME": folder, "ANDROID_ADB_SERVER_PORT": self.port}
        given = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in changes.items())
        self.program.write_text(f'#!/bin/sh\n{given} exec {shlex.join(command)} "$@"\n')
        self.program.chmod(0o755)
        self.server = subprocess.Popen(
            [self.program, "-P", self.port, "nodaemon", "server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._until(lambda: self.do("devices").returncode == 0)

    def do(self, *words):
        return subprocess.run([self.program, *words], capture_output=True, text=True, timeout=60)

    def connect(self, device, state="device"):
        self.do("connect", device.serial)
        self._until(lambda: f"{device.serial}\t{state}" in self.do("devices").stdout)

    @staticmethod
    def _until(holds):
        end = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.fixture(scope="module")
def adb(tmp_path_factory):
    if shutil.which("c++") is None or not Path("/usr/include/vulkan/vulkan_core.h").exists():
        unavailable("c++ and libvulkan-dev build the player")
    made = Adb(tmp_path_factory.mktemp("adb"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VKCONV_ADB", str(made.program))
        patch.setenv("VKCONV_PLAYER_CXX", "c++ -static-libstdc++ -static-libgcc")
        yield made
    made.server.kill()
    made.server.wait()


@pytest.fixture
def phone(adb, tmp_path):
    """Makes devices, which adb is connected to."""
    made = []

    def make(fault="", after=0, name="one", state="device"):
        device = AdbDevice(tmp_path / name, processor=platform.machine(), fault=Fault(fault, after))
        made.append(device)
        adb.connect(device, state)
        return device

    yield make
    for device in made:
        adb.do("disconnect", device.serial)
        device.close()


def left(device):
    """The files that are left on a device, but for the player."""
    return [p for p in device.root.rglob("*") if p.is_file() and not p.name.startswith("player-")]


def rows_of(path):
    return json.loads(path.read_text())["rows"]


def test_from_cable_to_report(phone, tmp_path):
    device = phone()
    assert vkconv("phone", "list")[1].split()[-2:] == [device.serial, "device"]
    code, out, err = vkconv(*BENCH, "-o", tmp_path / "r.json")
    assert code == 0, err
    assert [row["check"] for row in rows_of(tmp_path / "r.json")] == ["ok"] * 4
    assert left(device) == []
    code, out, _ = vkconv("phone", "check", "conv2d:x=1x5x9x7,w=3x5x3x3,p=1", "--repeat", 3, "--serial", device.serial)
    assert (code, "all right" in out or "1 node right" in out) == (0, True)
    code, out, _ = vkconv("phone", "run", CALLS[0], "--save", tmp_path / "s")
    assert code == 0
    assert len(list((tmp_path / "s").rglob("*.npy"))) == 1
    assert left(device) == []


def test_two_devices(phone, tmp_path):
    one, two = phone(), phone(name="two")
    code, _, err = vkconv(*BENCH)
    assert code == 3
    assert re.search("adb has several devices, .*, .*: name some with --serial", err)
    assert one.serial in err and two.serial in err
    code, _, _ = vkconv(*BENCH, "--all", "-o", tmp_path / "r.json")
    assert code == 0
    rows = rows_of(tmp_path / "r.json")
    assert sorted(row["device"] for row in rows) == sorted([one.serial] * 4 + [two.serial] * 4)
    assert {row["check"] for row in rows} == {"ok"}


def test_one_of_two_is_pulled(phone, tmp_path):
    one, two = phone("cable", 2), phone(name="two")
    code, _, _ = vkconv(*BENCH, "--all", "-o", tmp_path / "r.json")
    checks = {(row["device"], row["check"]) for row in rows_of(tmp_path / "r.json")}
    assert code == 1
    assert checks == {(one.serial, "ok"), (one.serial, "lost"), (two.serial, "ok")}


@pytest.mark.parametrize(
    ("fault", "after", "says"),
    [
        ("cable", 2, r"packs were played, then: .*the device is gone"),
        ("reboot", 1, r"packs were played, then: .*the device is gone"),
        ("killed", 2, r"packs were played, then: the player was killed: the system does so where memory runs out"),
        ("hang", 2, r"nothing was heard for 3 s"),
        ("server", 2, r"packs were played, then: .*"),
        ("full", 0, r"No space left on device; free some memory there"),
        ("push-cable", 0, r"files cannot be copied there: .*"),
    ],
)
def test_what_was_measured_before_the_fault_is_kept(adb, phone, tmp_path, monkeypatch, fault, after, says):
    monkeypatch.setattr("vkconv.phone.board._SILENT_S", 3.0)
    device = phone(fault, after)
    if fault in ("full", "push-cable"):  # the player is there from an earlier time
        device.fault.what = ""
        assert vkconv(*BENCH[:3], "--min-time", "0.001")[0] == 0
        device.fault.what = fault
    if fault == "server":

        def kill():
            device.fault.met.wait()
            time.sleep(0.3)
            adb.do("kill-server")
            adb.server.wait()

        killer = threading.Thread(target=kill)
        killer.start()
    # Who kills the player must come before it has played all.
    longer = ("--min-time", "0.3") if fault == "killed" else ()
    began = time.monotonic()
    code, _, err = vkconv(*BENCH, *longer, "-o", tmp_path / "r.json")
    assert device.fault.met.is_set()
    assert code == 1, err
    assert time.monotonic() - began < 60
    assert "Traceback" not in err
    rows = rows_of(tmp_path / "r.json")
    assert [row["check"] for row in rows] == ["ok"] * after + ["lost"] * (4 - after)
    for row in rows[after:]:
        assert re.search(says, row["why"]), row["why"]
    if fault == "server":
        killer.join()
        adb.__init__(adb.program.parent)


@pytest.mark.parametrize(("fault", "says"), [("full-shell", "No space left on device; free some memory there")])
def test_a_device_that_is_full(phone, fault, says):
    phone(fault)
    code, _, err = vkconv(*BENCH)
    assert code == 3
    assert says in err


def test_a_device_that_nobody_allowed(phone):
    device = phone("unauthorized", state="unauthorized")
    code, _, err = vkconv(*BENCH)
    assert code == 3
    assert f"{device.serial}: adb says unauthorized; allow this machine on the device's screen" in err


def test_a_device_that_is_not_there(phone):
    device = phone()
    code, _, err = vkconv(*BENCH, "--serial", "other")
    assert code == 3
    assert f"adb has no device other; it has {device.serial}" in err
