"""Take checks away one at a time and see that a test notices: ``python tools/mutations.py [CLASS ...]``.

Each row of tools/mutations.toml changes one line in a copy of the checkout and runs the test that should fail then, and
pass without the change. A row takes seconds, those of the device up to minutes.
"""

import argparse
import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("vkconv", "shaders", "tests", "tools", "cmake", "examples", "docs", "pyproject.toml", "SECURITY.md")


@dataclasses.dataclass(frozen=True)
class Row:
    """What is taken away: ``old`` of a file, of which ``new`` is left; the test that fails, and its environment."""

    kind: str
    what: str
    file: str
    old: str
    new: str
    test: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


ROWS = tuple(Row(**row) for row in tomllib.loads((ROOT / "tools" / "mutations.toml").read_text())["row"])


# Every process that a test starts reads this. An editable installation's finder would import the checkout's modules,
# whatever the path says, and what no longer looks at the memory that is free must not take all of it.
AT_START = """
import resource, sys
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != 'ScikitBuildRedirectingFinder']
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
if hard == resource.RLIM_INFINITY:
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))
"""


def copied(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(AT_START)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "peers"))
        else:
            shutil.copy(ROOT / name, folder / name)
    if not list((folder / "vkconv" / "backend").glob("_bridge*.so")):
        found = importlib.util.find_spec("vkconv.backend._bridge")
        assert found is not None and found.origin is not None
        shutil.copy(found.origin, folder / "vkconv" / "backend")
        kp = Path(found.origin).parent / "kompute"
        shutil.copytree(kp, folder / "vkconv" / "backend" / "kompute", dirs_exist_ok=True)


def fails(folder: Path, row: Row) -> bool:
    """Whether the test fails, or its process is ended by a signal. RuntimeError where it did not run at all."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **row.environment}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", row.test]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode > 1:
        raise RuntimeError(f"{row.test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return bool(done.returncode)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="CLASS", help="default: all of them")
    parser.add_argument("--mutants-only", action="store_true", help="do not run the tests on the unchanged copy first")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        for row in ROWS:
            if not options.kinds or row.kind in options.kinds:
                said = verdict(folder, row, not options.mutants_only)
                wrong += said != "noticed"
                print(f"{row.kind}: {row.what}: {said}", flush=True)
    return bool(wrong)


def verdict(folder: Path, row: Row, unchanged: bool) -> str:
    """`noticed`, or what is wrong with the row."""
    file = folder / row.file
    whole = file.read_text()
    if whole.count(row.old) != 1:
        return f"{row.file} has {row.old!r} {whole.count(row.old)} times; mend the row"
    try:
        if unchanged and fails(folder, row):
            return f"{row.test} fails without the change, too"
        file.write_text(whole.replace(row.old, row.new))
        return "noticed" if fails(folder, row) else f"NOT NOTICED by {row.test}"
    except RuntimeError as error:
        return str(error)
    finally:
        file.write_text(whole)


if __name__ == "__main__":
    sys.exit(main())
