"""Machines that play packs: commands there and files to them, by adb or ssh, through the programs of these names."""

import dataclasses
import io
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from vkconv.core import DeviceError, UsageError

_CHUNK_FILES = 100
_ANDROID_FOLDER = "/data/local/tmp/vkconv"
_SSH_FOLDER = ".cache/vkconv-player"
_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=10")


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command gave."""

    code: int
    out: bytes
    err: str


class Transport:
    """A machine by ``name``, on which ``folder`` is for vkconv. Whatever fails is a DeviceError that names the machine
    and says what the program said."""

    android = False

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, folder

    def command(self, text: str) -> list[str]:
        """The command here that runs a shell's command there."""
        raise NotImplementedError

    def push(self, files: Sequence[Path], folder: str) -> None:
        """Copy files into a folder there, under their own names."""
        raise NotImplementedError

    def run(self, text: str, timeout_s: float = 120, data: bytes | None = None) -> Done:
        """Run a command there to its end, whatever its exit code. DeviceError where it takes too long."""
        return _run(self.name, self.command(text), timeout_s, data)

    def call(self, text: str, timeout_s: float = 120, data: bytes | None = None) -> str:
        """Run a command that must do. DeviceError where it does not."""
        done = self.run(text, timeout_s, data)
        if done.code:
            raise DeviceError(f"{self.name}: {text.split(' ')[0]} failed: {_said(done)}{_hint(_said(done))}")
        return done.out.decode(errors="replace")

    def remove(self) -> None:
        """Remove all that vkconv left on the machine."""
        self.call(f"rm -rf {shlex.quote(self.folder)}")

    def lines(self, text: str, silent_s: float) -> Generator[str, None, str]:
        """The lines of a command's stdout as they come; returns how it ended: by itself, or with the connection, which
        programs do not tell by their exit codes. DeviceError where nothing comes for so long."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self.command(f"{text}; printf '\\n{_ENDED}%d\\n' $?"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            assert process.stdout is not None
            ended = ""
            try:
                for line in self._lines(process, silent_s):
                    if line.startswith(_ENDED):
                        ended = line.removeprefix(_ENDED)
                    else:
                        yield line
                code = process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                process.stdout.close()
            errors.seek(0)
            done = Done(code, b"", errors.read().decode(errors="replace"))
        if not ended:
            said = _said(done) if done.err.strip() else "the connection broke off"
            return f"{said}{_hint(said) or _GONE}"
        said = f"; {_said(done)}" if done.err.strip() else ""
        return f"{_left(ended)}{said}{_hint(said)}"

    def _lines(self, process: "subprocess.Popen[bytes]", silent_s: float) -> Iterator[str]:
        assert process.stdout is not None
        text, heard = b"", time.monotonic()
        while True:
            ready, _, _ = select.select([process.stdout], [], [], 1.0)
            if not ready:
                if time.monotonic() - heard > silent_s:
                    raise DeviceError(f"{self.name}: nothing was heard for {silent_s:.0f} s")
                continue
            heard = time.monotonic()
            block = os.read(process.stdout.fileno(), 1 << 16)
            if not block:
                return
            *whole, text = (text + block).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)


class Adb(Transport):
    """A device of Android's debug bridge, by its serial."""

    android = True

    def __init__(self, serial: str, folder: str = "") -> None:
        super().__init__(serial, folder or _ANDROID_FOLDER)

    def command(self, text: str) -> list[str]:
        return [adb(), "-s", self.name, "shell", text]

    def push(self, files: Sequence[Path], folder: str) -> None:
        for at in range(0, len(files), _CHUNK_FILES):
            some = files[at : at + _CHUNK_FILES]
            done = _run(self.name, [adb(), "-s", self.name, "push", *map(str, some), f"{folder}/"], 600)
            if done.code:
                raise DeviceError(f"{self.name}: files cannot be copied there: {_said(done)}{_hint(_said(done))}")


class Ssh(Transport):
    """A machine by ssh, as ``pi@board`` or a host of ssh's own configuration."""

    def __init__(self, host: str, port: str = "", folder: str = "") -> None:
        super().__init__(host, folder or _SSH_FOLDER)
        self._port = ["-p", port] if port else []

    def command(self, text: str) -> list[str]:
        return [_program("ssh", "openssh-client"), *_SSH_OPTIONS, *self._port, "--", self.name, text]

    def push(self, files: Sequence[Path], folder: str) -> None:
        for at in range(0, len(files), _CHUNK_FILES):
            packed = io.BytesIO()
            with tarfile.TarFile(fileobj=packed, mode="w") as archive:
                for path in files[at : at + _CHUNK_FILES]:
                    archive.add(path, path.name)
            self.call(f"tar -xf - -C {shlex.quote(folder)}", 600, packed.getvalue())


def transports(via: Sequence[str], serials: Sequence[str], everything: bool = False) -> list[Transport]:
    """The machines of ``--via`` (``adb``, ``adb://SERIAL``, ``ssh://USER@HOST[:PORT]``), and adb's with these serials.

    Without any, the one device that adb has. Raises UsageError for what is none, and DeviceError where there is none,
    or several and none is named, or one that cannot be used.
    """
    found: list[Transport] = []
    wanted = list(serials)
    for text in via:
        kind, _, rest = text.partition("://")
        host = re.fullmatch(r"((?:[\w.-]+@)?[\w.-]+)(?::(\d+))?/?", rest)
        if kind == "ssh" and host and not rest.startswith("-"):
            found.append(Ssh(host[1], host[2] or ""))
        elif kind == "adb" and (rest or text == "adb"):
            wanted += [rest] if rest else []
        else:
            raise UsageError(f"--via {text!r} is none of adb, adb://SERIAL, ssh://USER@HOST[:PORT]")
    if found and not wanted and "adb" not in via and not everything:
        return found
    known = adb_devices()
    usable = [serial for serial, state in known.items() if state == "device"]
    for serial in wanted:
        if serial not in known:
            raise DeviceError(f"adb has no device {serial}; it has {', '.join(known) or 'none'}")
    if not wanted:
        if not known:
            raise DeviceError(
                "adb has no device: plug one in, with USB debugging switched on, or give --via ssh://HOST"
            )
        if len(known) > 1 and not everything:
            raise DeviceError(f"adb has several devices, {', '.join(known)}: name some with --serial, or give --all")

        wanted = list(known)
    for serial in wanted:
        if serial not in usable:
            raise DeviceError(f"{serial}: adb says {known[serial]}{_hint(known[serial])}")
    return [*found, *map(Adb, dict.fromkeys(wanted))]


def adb_devices() -> dict[str, str]:
    """The devices of adb's server by serial, and their states: ``device`` is one that can be used."""
    done = _run("adb", [adb(), "devices"], 60)
    if done.code:
        raise DeviceError(f"adb devices failed: {_said(done)}")
    return devices_of(done.out.decode(errors="replace"))


def devices_of(text: str) -> dict[str, str]:
    """Serials and states of what ``adb devices`` prints."""
    rows = (line.split("\t") for line in text.splitlines()[1:] if "\t" in line)
    return {row[0]: row[1].strip() for row in rows}


def adb() -> str:
    """The program: VKCONV_ADB, or ``adb`` of PATH. DeviceError where there is none."""
    return os.environ.get("VKCONV_ADB") or _program("adb", "adb")


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DeviceError(f"there is no {name} here: install Debian's {package}, or put {name} on PATH")
    return found


def _run(name: str, command: Sequence[str], timeout_s: float, data: bytes | None = None) -> Done:
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, input=data or b"")
    except subprocess.TimeoutExpired:
        raise DeviceError(f"{name}: no answer in {timeout_s:.0f} s from: {shlex.join(command)[:120]}") from None
    except OSError as error:
        raise DeviceError(f"{name}: {command[0]} does not run: {error.strerror or error}") from None
    return Done(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def _said(done: Done) -> str:
    """The line of what a program said that tells most: one that is known, one of an error, or the last."""
    lines = (done.err.strip() or done.out.decode(errors="replace").strip()).splitlines()
    told = [line for line in lines if _hint(line)] or [line for line in lines if "error" in line] or lines
    return told[-1] if told else f"exit code {done.code}"


def _left(code: str) -> str:
    """How a program ended whose shell says so."""
    number = int(code) if code.isdecimal() else -1
    if number == _KILLED:
        return "the player was killed: the system does so where memory runs out"
    return (
        f"the player was ended by signal {number - 128}" if number > 128 else f"the player left with exit code {code}"
    )


_ENDED = "vkconv.ended "  # what a shell writes behind a command's last line, with its exit code
_KILLED = 128 + signal.SIGKILL
_GONE = "; the device is gone: was the cable pulled, or does it start anew?"
_HINTS = {
    "unauthorized": "allow this machine on the device's screen",
    "offline": "unplug it and plug it in again, or adb reconnect",
    "no permissions": "give your user access to the device (Debian's android-sdk-platform-tools-common)",
    "No space left": "free some memory there, or remove what vkconv kept there: vkconv phone pull --remove",
    "not found": _GONE[2:],
    "Permission denied": "add your key there: ssh-copy-id",
    "closed": _GONE[2:],
}


def _hint(said: str) -> str:
    return next((f"; {hint}" for sign, hint in _HINTS.items() if sign in said), "")
