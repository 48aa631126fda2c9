"""A machine that plays packs: its device's facts, what is pushed there, what it plays, and what is left afterwards."""

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import secrets
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkconv.core import DeviceError, atomic_write, short
from vkconv.device import Device
from vkconv.device.android import driver_id
from vkconv.device.importer import import_device
from vkconv.phone.build import abi_of, build_player
from vkconv.phone.told import read_line
from vkconv.phone.transport import Transport
from vkconv.plan.pack import FILES, INDEX

_SILENT_S = 1500.0  # what the player does without a word takes less: supervise.cpp


@dataclasses.dataclass
class Board:
    """A machine with its device. ``pushed`` and ``kept`` count files that were copied, and that were there already."""

    transport: Transport
    player: str
    device: Device
    model: str
    pushed: int = 0
    kept: int = 0

    @property
    def name(self) -> str:
        return self.transport.name

    def screen(self) -> str:
        """Whether the screen of a phone is on, ``screen on`` or ``screen off``; nothing where it does not tell."""
        if not self.transport.android:
            return ""
        told = self.transport.run("dumpsys power")
        found = re.search(rb"mWakefulness=(\w+)", told.out)
        return "" if found is None else "screen on" if found[1] == b"Awake" else "screen off"

    def play(
        self, folder: Path, words: Sequence[str], *, into: Path | None = None, keep: bool = False
    ) -> Iterator[Mapping[str, Any]]:
        """Push a folder of packs, play it, and yield each result as it comes, the header first; outputs that the player
        kept are fetched ``into`` a folder. Afterwards what was pushed is removed, but for what is to be kept for the
        next time, and the player. What a broken connection leaves is there for `fetch`.

        Raises DeviceError where it cannot be pushed, or not be played to the end.
        """
        there = f"{self.transport.folder}/run-{secrets.token_hex(4)}"
        shelf = f"{self.transport.folder}/{FILES}"
        files = sorted((folder / FILES).iterdir())
        missing = self._push(files, shelf, folder / INDEX, there)
        yield from self._results(there, words, folder)
        if into is not None:
            fetch(self.transport, f"{there.rpartition('/')[2]}/got", into)
        with contextlib.suppress(DeviceError):
            self.transport.call(f"rm -rf {shlex.quote(there)}")
            if not keep:
                names = "".join(f"{path.name}\n" for path in missing)
                self.transport.call(f"cd {shlex.quote(shelf)} && xargs rm -f", data=names.encode())

    def _push(self, files: Sequence[Path], shelf: str, index: Path, there: str) -> list[Path]:
        run = shlex.quote(there)
        self.transport.call(f"mkdir -p {shlex.quote(shelf)} {run} && ln -s ../{FILES} {run}/{FILES}")
        listed = self.transport.call(f"find {shlex.quote(shelf)} -type f -exec stat -c '%s %n' {{}} +")
        rows = (line.partition(" ") for line in listed.splitlines())
        sizes = {name.rpartition("/")[2]: size for size, _, name in rows}
        missing = [path for path in files if sizes.get(path.name) != str(path.stat().st_size)]
        self.transport.push(missing, shelf)
        self.transport.push([index], there)
        self.pushed, self.kept = len(missing), len(files) - len(missing)
        return missing

    def _results(self, there: str, words: Sequence[str], folder: Path) -> Iterator[Mapping[str, Any]]:
        played = [f"../{self.player}", ".", "--json", "--results", "results.jsonl", "--got", "got", *words]
        lines = self.transport.lines(f"cd {shlex.quote(there)} && {shlex.join(played)}", _SILENT_S)
        text = (folder / INDEX).read_text(encoding="utf-8")
        count, packs = 0, sum(line.startswith("pack ") for line in text.splitlines())
        while True:
            try:
                line = next(lines)
            except StopIteration as end:
                why = str(end.value)
                break
            try:
                result = read_line(line)
            except DeviceError as error:
                raise DeviceError(f"{self.name}: {error}") from None
            if result is not None:
                count += "pack" in result
                yield result
        if count < packs:
            raise DeviceError(f"{self.name}: {count} of {packs} packs were played, then: {why}")


def fetch(transport: Transport, patterns: str, into: Path) -> list[Path]:
    """Copy what fits a shell's patterns in a machine's folder, under the names there. Raises DeviceError."""
    where = f"cd {shlex.quote(transport.folder)} 2>/dev/null"
    found = transport.call(f"{where} && ls -d {patterns} 2>/dev/null || true").split()
    if not found:
        return []
    done = transport.run(f"{where} && tar -cf - {shlex.join(found)}", 600)
    if done.code:
        raise DeviceError(f"{transport.name}: what it keeps cannot be fetched: {done.err.strip() or done.code}")
    try:
        return unpack(done.out, into)
    except DeviceError as error:
        raise DeviceError(f"{transport.name}: {error}") from None


def unpack(data: bytes, into: Path) -> list[Path]:
    """Write the files of a tar archive, which is not compressed, below a folder, wherever their names lead. Raises
    DeviceError for a damaged one, and for names that no file can have here."""
    made = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse() and (source := archive.extractfile(member)):
                    target = into.joinpath(*(part for part in Path(member.name).parts if part not in ("/", "..")))
                    content = source.read()
                    if len(content) != member.size:
                        raise DeviceError(
                            f"the archive that was sent is cut off: {short(member.name)} has {len(content)} bytes of "
                            f"{member.size}"
                        )
                    with atomic_write(target) as file:
                        file.write(content)
                    made.append(target)
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise DeviceError(f"the archive that was sent cannot be unpacked: {error}") from None
    return made


def open_board(transport: Transport, selector: str = "0") -> Board:
    """Put the player on a machine and ask it for the facts of its device. Raises DeviceError where that cannot be done,
    and ModelError for facts that make no device."""
    system = transport.call("uname -m").split()
    if not system:
        raise DeviceError(f"{transport.name}: uname -m says nothing")
    program = build_player(abi_of(system[-1]), android=transport.android)
    name = f"player-{hashlib.sha256(program.read_bytes()).hexdigest()[:16]}"
    there = f"{transport.folder}/{name}"
    if transport.run(f"test -x {shlex.quote(there)}").code:
        transport.call(f"mkdir -p {shlex.quote(transport.folder)}")
        with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
            copy = Path(scratch) / f"{name}.part"
            with atomic_write(copy) as file:
                file.write(program.read_bytes())
            transport.push([copy], transport.folder)
        transport.call(f"chmod 755 {shlex.quote(there)}.part && mv {shlex.quote(there)}.part {shlex.quote(there)}")
    told = transport.run(f"{_executable(there)} --info --device {shlex.quote(selector)}")
    if told.code:
        said = (told.err or told.out.decode(errors="replace")).strip()
        raise DeviceError(f"{transport.name}: the player tells of no device: {said or f'exit code {told.code}'}")
    return Board(transport, name, device_of(told.out), _model(transport))


def _executable(path: str) -> str:
    return shlex.quote(path if path.startswith("/") else f"./{path}")


def device_of(told: bytes) -> Device:
    """The device that ``player --info`` tells of. Raises ModelError."""
    try:
        report = json.loads(told)
        driver = report["capabilities"]["device"]["properties"].get("VkPhysicalDeviceDriverProperties", {})
        if isinstance(driver.get("driverID"), int):
            driver["driverID"] = driver_id(driver["driverID"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DeviceError(f"the player's answer is no report of a device: {error}") from None
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        path = Path(scratch) / "player.json"
        with atomic_write(path) as file:
            file.write(json.dumps(report).encode())
        return import_device(path)


def _model(transport: Transport) -> str:
    """What the machine calls itself."""
    asked = "getprop ro.product.model" if transport.android else "cat /sys/firmware/devicetree/base/model 2>/dev/null"
    done = transport.run(asked)
    text = done.out.decode(errors="replace").replace("\0", "").strip()
    return text if not done.code and text else transport.name
