"""The device's end of Android's debug bridge over TCP, as AOSP describes it (packages/modules/adb: protocol.txt,
SYNC.TXT, SERVICES.TXT): connection, authentication, streams, ``shell,v2`` and ``sync:``. Its storage is a folder, its
programs are this machine's. It fails as devices do where its `Fault` says so.
"""

import contextlib
import dataclasses
import os
import queue
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from pathlib import Path

CNXN, AUTH, OPEN, OKAY, WRTE, CLSE = (
    int.from_bytes(name, "little") for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"WRTE", b"CLSE")
)
_VERSION = 0x01000001  # from which on sums of data are not looked at
_MOST_BYTES = 256 * 1024
_TOKEN = 1
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)
STORAGE = "/data/local/tmp"


@dataclasses.dataclass
class Fault:
    """What goes wrong, once: after so many lines of results, or so many bytes of files, or from the start."""

    what: str = ""
    after: int = 0
    met: threading.Event = dataclasses.field(default_factory=threading.Event)


class GoneError(Exception):
    """The connection ended."""


class AdbDevice:
    """A device that listens on a port of 127.0.0.1. ``processor`` is what its ``uname -m`` says."""

    def __init__(self, root: Path, model: str = "Phone", processor: str = "x86_64", fault: Fault | None = None):
        self.root, self.model, self.processor = root, model, processor
        self.fault = fault or Fault()
        (root / "tmp").mkdir(parents=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.serial = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._connections: list[Connection] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self._closed:
            try:
                found, _ = self._socket.accept()
            except OSError:
                return
            if self.fault.what in ("pulled", "unreachable"):
                found.close()
                continue
            connection = Connection(self, found)
            self._connections.append(connection)
            threading.Thread(target=connection.serve, daemon=True).start()

    def place(self, path: str) -> Path:
        """Where a path of the device is on this machine."""
        assert path.startswith(STORAGE), path
        return self.root / ("tmp" + path.removeprefix(STORAGE))

    def meet(self, what: str) -> None:
        """The fault has come: it ends every connection; a device that was pulled does not come back."""
        self.fault.met.set()
        self.fault.what = {"cable": "pulled", "reboot": "", "push-cable": "pulled"}[what]
        for connection in list(self._connections):
            connection.end()

    def close(self):
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            connection.end()


class Connection:
    """One connection of adb's server, with its streams."""

    def __init__(self, device: AdbDevice, found: socket.socket):
        self.device, self.socket = device, found
        self.streams: dict[int, Stream] = {}
        self._count = 0
        self._lock = threading.Lock()

    def serve(self):
        with contextlib.suppress(GoneError, OSError):
            while True:
                self._take(*self._message())
        self.end()

    def send(self, command: int, first: int, second: int, data: bytes = b""):
        head = struct.pack("<6I", command, first, second, len(data), sum(data) & 0xFFFFFFFF, command ^ 0xFFFFFFFF)
        with self._lock:
            try:
                self.socket.sendall(head + data)
            except OSError:
                raise GoneError from None

    def end(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for stream in list(self.streams.values()):
            stream.end()

    def _message(self):
        command, first, second, count, _, magic = struct.unpack("<6I", self._bytes(24))
        assert magic == command ^ 0xFFFFFFFF
        return command, first, second, self._bytes(count)

    def _bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            block = self.socket.recv(count - len(data))
            if not block:
                raise GoneError
            data += block
        return data

    def _take(self, command, first, second, data):
        if self.device.fault.what == "hang" and self.device.fault.met.is_set():
            return
        stream = self.streams.get(second)
        if command == CNXN and self.device.fault.what != "unauthorized":
            names = f"ro.product.name=x;ro.product.model={self.device.model};ro.product.device=x"
            self.send(CNXN, _VERSION, _MOST_BYTES, f"device::{names};features=shell_v2".encode())
        elif command in (CNXN, AUTH):  # whatever it signs with: nobody allowed it
            if first != 3:  # a public key, to be shown on the screen
                self.send(AUTH, _TOKEN, 0, os.urandom(20))
        elif command == OPEN:
            self._count += 1
            made = Stream(self, self._count, first)
            self.streams[self._count] = made
            self.send(OKAY, made.number, made.remote)
            threading.Thread(target=made.serve, args=(data.rstrip(b"\0").decode(),), daemon=True).start()
        elif command == WRTE and stream:
            stream.given.put(data)
            self.send(OKAY, stream.number, stream.remote)
        elif command == OKAY and stream:
            stream.ready.release()
        elif command == CLSE and stream:
            stream.end()


class Stream:
    """One service that adb opened."""

    def __init__(self, connection: Connection, number: int, remote: int):
        self.connection, self.number, self.remote = connection, number, remote
        self.device = connection.device
        self.given: queue.Queue[bytes | None] = queue.Queue()
        self.ready = threading.Semaphore(1)
        self.ended = False
        self.process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def serve(self, service: str):
        kind, _, rest = service.partition(":")
        try:
            with contextlib.suppress(GoneError):
                if kind.split(",")[0] == "shell":
                    assert "v2" in kind.split(","), service
                    self._shell(rest)
                elif kind == "sync":
                    self._sync()
                if not self.ended:
                    self.connection.send(CLSE, self.number, self.remote)
        finally:
            self.connection.streams.pop(self.number, None)

    def end(self):
        """No more of it: what it started is hung up, as a shell's processes are."""
        self.ended = True
        self.given.put(None)
        self.ready.release()
        self.kill()

    def kill(self):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def write(self, data: bytes):
        for at in range(0, len(data), _MOST_BYTES):
            self.ready.acquire()  # until the last of it was taken
            if self.ended:
                raise GoneError
            self.connection.send(WRTE, self.number, self.remote, data[at : at + _MOST_BYTES])

    def read(self, count: int) -> bytes:
        while len(self._rest) < count:
            block = self.given.get()
            if block is None:
                raise GoneError
            self._rest += block
        data, self._rest = self._rest[:count], self._rest[count:]
        return data

    # --- shell,v2 ------------------------------------------------------------------------------------------------
    def _shell(self, command: str):
        device = self.device
        text = command.replace(STORAGE, str(device.root / "tmp"))
        text = f"uname() {{ echo {device.processor}; }}; getprop() {{ echo '{device.model}'; }}; {text}"
        plays = "--json" in command
        if device.fault.what == "full-shell" and "mkdir" in command:
            text = "echo 'mkdir: Read-only or full: No space left on device' >&2; exit 1"
        self.process = subprocess.Popen(
            ["sh", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=device.root,
        )
        threads = [
            threading.Thread(target=self._told, args=(self.process.stdout, _STDOUT, plays), daemon=True),
            threading.Thread(target=self._told, args=(self.process.stderr, _STDERR, False), daemon=True),
        ]
        threading.Thread(target=self._typed, args=(self.process.stdin,), daemon=True).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = self.process.wait()
        self.write(struct.pack("<BIB", _EXIT, 1, code if code >= 0 else 128 - code))

    def _typed(self, stdin):
        with contextlib.suppress(GoneError, OSError):
            while True:
                kind, count = struct.unpack("<BI", self.read(5))
                data = self.read(count)
                if kind == _STDIN:
                    stdin.write(data)
                    stdin.flush()
                elif kind == _CLOSE_STDIN:
                    break
        with contextlib.suppress(OSError):
            stdin.close()

    def _told(self, pipe, kind: int, plays: bool):
        fault, lines = self.device.fault, 0
        with contextlib.suppress(GoneError), pipe:
            while block := pipe.readline() if plays else os.read(pipe.fileno(), 1 << 15):
                self.write(struct.pack("<BI", kind, len(block)) + block)
                lines += 1
                if plays and lines > fault.after and not fault.met.is_set():
                    self._fail(fault)

    def _fail(self, fault: Fault):
        if fault.what in ("cable", "reboot"):
            self.kill()
            time.sleep(0.1)  # so that adb hands on what it was sent
            self.device.meet(fault.what)
            raise GoneError
        if fault.what == "killed":  # the player, by the system: its shell goes on
            fault.met.set()
            for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        if fault.what in ("hang", "server"):
            fault.met.set()
            self.given.get()  # nothing more comes: until the connection ends
            raise GoneError

    # --- sync: ---------------------------------------------------------------------------------------------------
    def _sync(self):
        while True:
            name, count = struct.unpack("<4sI", self.read(8))
            path = self.read(count).decode() if name != b"QUIT" else ""
            if name == b"QUIT":
                return
            {b"STAT": self._stat, b"LIST": self._list, b"SEND": self._send, b"RECV": self._recv}[name](path)

    def _stat(self, path: str):
        try:
            found = self.device.place(path).lstat()
            facts = found.st_mode, found.st_size, int(found.st_mtime)
        except OSError:
            facts = 0, 0, 0
        self.write(b"STAT" + struct.pack("<3I", *facts))

    def _list(self, path: str):
        for entry in sorted(self.device.place(path).iterdir()):
            found, name = entry.lstat(), entry.name.encode()
            head = struct.pack("<4I", found.st_mode, found.st_size, int(found.st_mtime), len(name))
            self.write(b"DENT" + head + name)
        self.write(b"DONE" + bytes(16))

    def _send(self, request: str):
        path, _, mode = request.rpartition(",")
        target, fault, problem, taken = self.device.place(path), self.device.fault, "", 0
        data = bytearray()
        while True:
            name, count = struct.unpack("<4sI", self.read(8))
            if name == b"DONE":
                break
            assert name == b"DATA", name
            data += self.read(count)
            taken += count
            if fault.what == "push-cable" and not fault.met.is_set():
                target.write_bytes(data[: len(data) // 2])
                self.device.meet("push-cable")
                raise GoneError
        if fault.what == "full" and not target.name.endswith(".part"):
            fault.met.set()
            target.write_bytes(data[: len(data) // 2])
            problem = "write failed: No space left on device"
        if not problem:
            target.write_bytes(data)
            target.chmod(stat.S_IMODE(int(mode)))
            os.utime(target, (count, count))
        said = problem.encode()
        self.write((b"FAIL" if said else b"OKAY") + struct.pack("<I", len(said)) + said)

    def _recv(self, path: str):
        data = self.device.place(path).read_bytes()
        for at in range(0, len(data), 1 << 16):
            block = data[at : at + (1 << 16)]
            self.write(b"DATA" + struct.pack("<I", len(block)) + block)
        self.write(b"DONE" + struct.pack("<I", 0))
