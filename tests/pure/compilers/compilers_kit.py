"""What the tests of compilers share: a program that plays the one in C, and an installation of it."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vkconv.compilers.gpus import Gpu

# Each line of stdin is a job; what it gets hangs on the number of its bindings.
SERVER = """
import json, sys, time
if {start!r}:
    print({start!r}, flush=True)
    print("said on stderr", file=sys.stderr)
    sys.exit(3)
print(json.dumps({{"device": "a GPU"}}), flush=True)
for line in sys.stdin:
    id, seconds, spirv, bindings, push, subgroup, isa, words = line.rstrip("\\n").split("\\t")
    with open({log!r}, "a") as log:
        log.write(bindings + "\\n")
    assert open(spirv, "rb").read(4) == b"\\x03\\x02\\x23\\x07"
    if bindings == "29":
        print("about to die", file=sys.stderr)
        sys.exit(7)
    if bindings == "28":
        time.sleep(60)
    if isa:
        open(isa, "w").write("code of " + words)
    failures = {{"24": {{"outcome": "signal", "signal": 6, "said": "Assertion"}}, "25": {{"outcome": "timeout"}}}}
    statistics = {{"Number of GPRs": int(words.split(",")[0]), **{more!r}}}
    code = [{{"name": "compute", "subgroup_size": 32, "statistics": statistics}}]
    said = failures.get(bindings) or {{"outcome": "compiled", "compile_ms": 1500.0, "executables": code}}
    print(json.dumps({{"id": id, **said}}), flush=True)
"""


@dataclasses.dataclass
class FakeInstalled:
    """An installed set whose program is `SERVER`; ``start`` is what it says in place of its device, ``more`` are
    further statistics of every pipeline."""

    folder: Path
    start: str = ""
    version: str = "1.2-3~x"
    differences: Sequence[str] = ()
    more: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def program(self) -> Path:
        return self.folder / "pipeline_statistics-0123"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def jobs(self) -> list[str]:
        """The bindings of each job that reached the program."""
        return self.log.read_text().split() if self.log.exists() else []

    def command(self, gpu: Gpu, program: Sequence[str | Path], own: Sequence[Path] = ()) -> list[str]:
        script = self.folder / "server.py"
        script.write_text(SERVER.format(start=self.start, log=str(self.log), more=dict(self.more)))
        return [sys.executable, "-I", "-S", str(script)]

    def environment(self, gpu: Gpu) -> dict[str, str]:
        return dict(os.environ)
