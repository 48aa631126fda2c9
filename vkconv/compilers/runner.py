"""Pipelines through a GPU's compiler, on all cores, each in a process of its own; what came out is kept."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from vkconv.compilers.gpus import Gpu
from vkconv.compilers.installed import PROGRAM, Installed, installed_for
from vkconv.compilers.pipelines import Pipeline
from vkconv.core import DeviceError, UsageError, cache_dir, cache_write, short
from vkconv.files import read_cache

Outcome = Literal["compiled", "refused", "signal", "timeout", "exit"]
Number = bool | int | float | None
_MOST_KEPT_BYTES = 1 << 20


class Executable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a pipeline as its compiler made it, with the driver's statistics of it under their names."""

    name: str
    subgroup_size: int
    statistics: dict[str, Number]


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What a compiler did with a pipeline: ``compiled`` it, ``refused`` it (``result`` of a Vulkan ``call``), ended by
    a ``signal``, was ended for its ``timeout`` of ``seconds``, or left by ``exit``; ``said`` is the end of what it
    printed. ``compile_ms`` and ``seconds`` are processor time."""

    outcome: Outcome
    compile_ms: float | None = None
    executables: tuple[Executable, ...] = ()
    call: str = ""
    result: int = 0
    signal: int = 0
    status: int = 0
    said: str = ""
    seconds: float = 0.0

    @property
    def why(self) -> str:
        """How it failed, in words; empty where it did not."""
        said = f": {text}" if (text := " ".join(self.said.split())[-160:]) else ""
        match self.outcome:
            case "compiled":
                return ""
            case "refused":
                return f"{self.call} gave {_RESULTS.get(self.result, f'VkResult {self.result}')}"
            case "signal":
                return f"the compiler ended by {_signal_name(self.signal)}{said}"
            case "timeout":
                return f"the compiler was not done after {self.seconds:g} s"
            case "exit":
                return f"the compiler left with exit code {self.status}{said}"


_RESULTS = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -13: "VK_ERROR_UNKNOWN",
    -1000012000: "VK_ERROR_INVALID_SHADER_NV",
}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0))


def compile_all(
    gpu: Gpu,
    pipelines: Iterable[Pipeline],
    *,
    max_seconds: float,
    jobs: int | None = None,
    isa: Path | None = None,
    fresh: bool = False,
    found: dict[Pipeline, Compiled] | None = None,
    done: Callable[[int, int], None] = lambda done, count: None,
) -> dict[Pipeline, Compiled]:
    """What a GPU's compiler does with each pipeline, in at most ``max_seconds`` each.

    What is known from an earlier run of the same driver is not compiled again, but with ``isa``, a folder for the
    compiler's representations, or where ``fresh``. ``found``, which is returned, has what is there if Ctrl-C
    comes. Raises UsageError where the compiler is not installed, DeviceError where the driver does not start.
    """
    there = installed_for(gpu)
    kept = _Kept(gpu, there)
    by_digest: dict[str, list[Pipeline]] = {}
    for pipeline in pipelines:
        by_digest.setdefault(pipeline.digest, []).append(pipeline)
    known = {} if fresh or isa else kept.read(by_digest, max_seconds)
    todo = [same[0] for digest, same in by_digest.items() if digest not in known]
    found = {} if found is None else found
    found |= {pipeline: known[digest] for digest in known for pipeline in by_digest[digest]}
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        work = _Work(gpu, there, Path(scratch), max_seconds, isa)
        for pipeline, compiled in work.run(todo, jobs or cores(), lambda count: done(count, len(todo))):
            found |= dict.fromkeys(by_digest[pipeline.digest], compiled)
            kept.write(pipeline.digest, compiled)
    return found


def read_kept(path: Path, max_seconds: float) -> Compiled | None:
    """A result of a cache as it is for so many seconds; None where there is none that tells."""
    try:
        compiled = msgspec.json.decode(read_cache(path, _MOST_KEPT_BYTES), type=Compiled)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: text that is not UTF-8
        return None
    # What was not done in as much time or less says nothing: it may have waited for something.
    if compiled.outcome == "timeout" and compiled.seconds <= max_seconds:
        return None
    late = (compiled.compile_ms or 0.0) / 1e3 > max_seconds
    return Compiled(outcome="timeout", seconds=max_seconds) if late else compiled


class _Kept:
    """Results of a driver on disk, by digest of the pipeline."""

    def __init__(self, gpu: Gpu, there: Installed) -> None:
        version = re.sub(r"[^\w.+-]", "_", there.version)
        self._folder = cache_dir() / "compiled" / f"{gpu.name}-{version}-{there.program().name.rpartition('-')[2]}"

    def read(self, digests: Iterable[str], max_seconds: float) -> dict[str, Compiled]:
        found = {}
        for digest in digests:
            if compiled := read_kept(self._folder / f"{digest}.json", max_seconds):
                found[digest] = compiled
        return found

    def write(self, digest: str, compiled: Compiled) -> None:
        with contextlib.suppress(OSError), cache_write(self._folder / f"{digest}.json") as file:
            file.write(msgspec.json.encode(compiled))


def answer_of(line: str, gpu: str) -> dict[str, Any]:
    """A line of the C program: an object of JSON. DeviceError for what a driver prints in between."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(answer := json.loads(line), dict):
            return answer
    raise DeviceError(f"{gpu}: {PROGRAM} gave no answer, but {short(line.strip())}")


def compiled_of(answer: Mapping[str, Any], max_seconds: float, gpu: str) -> Compiled:
    """What an answer says of a pipeline that had so many seconds. DeviceError where it says nothing of the kind."""
    found = {name: value for name, value in answer.items() if name != "id"}
    try:
        return msgspec.convert({**found, "seconds": max_seconds}, type=Compiled)
    except (msgspec.ValidationError, OverflowError, UnicodeError) as error:  # halves of characters
        raise DeviceError(f"{gpu}: {PROGRAM} gave another answer than vkconv reads: {error}") from None


class _Work:
    """Processes of the C program behind a GPU's shim, each with one pipeline at a time."""

    def __init__(self, gpu: Gpu, there: Installed, scratch: Path, max_seconds: float, isa: Path | None) -> None:
        self.gpu, self.scratch, self.max_seconds, self.isa = gpu, scratch, max_seconds, isa
        self.command = there.command(gpu, [there.program()])
        self.environment = there.environment(gpu)
        self.servers: list[_Server] = []
        if isa:
            if re.search(r"[\t\n]", str(isa)):
                raise UsageError(f"--isa {str(isa)!r} has a tab or a line's end in its name; take another folder")
            isa.mkdir(parents=True, exist_ok=True)

    def run(
        self, pipelines: Sequence[Pipeline], jobs: int, done: Callable[[int], None]
    ) -> Iterable[tuple[Pipeline, Compiled]]:
        todo: queue.SimpleQueue[Pipeline] = queue.SimpleQueue()
        results: queue.SimpleQueue[tuple[Pipeline, Compiled] | BaseException] = queue.SimpleQueue()
        for pipeline in pipelines:
            todo.put(pipeline)
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(todo, results, stop), daemon=True)
            for _ in range(min(jobs, len(pipelines)))
        ]
        for thread in threads:
            thread.start()
        try:
            for count in range(1, len(pipelines) + 1):
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                yield result
                done(count)
        finally:
            stop.set()
            for server in self.servers:
                server.kill()
            for thread in threads:
                thread.join()

    def _serve(
        self,
        todo: "queue.SimpleQueue[Pipeline]",
        results: "queue.SimpleQueue[tuple[Pipeline, Compiled] | BaseException]",
        stop: threading.Event,
    ) -> None:
        server: _Server | None = None
        try:
            while not stop.is_set():
                pipeline = todo.get_nowait()
                if server is None:
                    server = _Server(self.gpu, self.command, self.environment)
                    self.servers.append(server)
                    if stop.is_set():  # it may have come too late to be killed with the others
                        return
                compiled = server.compile(self._job(pipeline), self.max_seconds)
                self._tidy(pipeline)
                results.put((pipeline, compiled))
        except queue.Empty:
            pass
        except BaseException as error:
            results.put(error)
        finally:
            if server:
                server.close()

    def _tidy(self, pipeline: Pipeline) -> None:
        """Leave no file of code from a driver that tells none."""
        path = self.isa and self.isa / isa_name(self.gpu, pipeline)
        if path and path.is_file() and not path.stat().st_size:
            path.unlink()

    def _job(self, pipeline: Pipeline) -> str:
        spirv = self.scratch / f"{pipeline.digest}.spv"
        spirv.write_bytes(pipeline.code)
        isa = self.isa / isa_name(self.gpu, pipeline) if self.isa else ""
        fields = (
            *(pipeline.digest, self.max_seconds, spirv, pipeline.bindings, pipeline.push_bytes, pipeline.subgroup_size),
            *(Path(isa).absolute() if isa else "", ",".join(map(str, pipeline.words))),
        )
        return "\t".join(map(str, fields)) + "\n"


def isa_name(gpu: Gpu, pipeline: Pipeline) -> str:
    """The file that a pipeline's disassembly is saved in."""
    return f"{gpu.name}.{pipeline.shader.key}.{pipeline.digest[:12]}.txt"


class _Server:
    """One process of the C program. DeviceError where its driver does not start."""

    def __init__(self, gpu: Gpu, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.gpu = gpu
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is this process's to handle
        )
        try:
            first = self._read()
            if "error" in first:
                result = first.get("result", 0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)  # it ends by itself then, and may say more
                raise DeviceError(f"{gpu.name}: its driver does not start: {first['error']} ({result}){self._said()}")
        except BaseException:
            self.close()
            raise

    def compile(self, job: str, max_seconds: float) -> Compiled:
        """What came of a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(job)
        self._process.stdin.flush()
        return compiled_of(self._read(), max_seconds, self.gpu.name)

    def kill(self) -> None:
        """End it, and with it, by its death signal, what it compiles."""
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.communicate()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise DeviceError(f"{self.gpu.name}: {PROGRAM} ended with {code}{self._said()}")
        return answer_of(line, self.gpu.name)

    def _said(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
        return "".join(f"\n  {line}" for line in lines)
