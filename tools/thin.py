#!/usr/bin/env python3
"""The share of its tests that `make test` runs where that is slow: one in n, to end within 30 minutes. n follows
from how long the pure tests of `make check` took; it is 1 on two fast cores.

    thin.py --time COMMAND ...    run the command, and keep how long it took
    thin.py                       print n
    thin.py --ops                 print `--op NAME` for one op in VKCONV_THIN, other ones at every commit
"""

import os
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_KEPT = _ROOT / "build" / "pure_s"
# Two cores, 2026-11: the pure tests beside mypy's first run, what else is always run, and all the rest of `make test`.
_PURE_S, _ALWAYS_S, _REST_S = 36, 115, 1900
_GOAL_S = 1650  # of 30 minutes


def thin(pure_s: float) -> int:
    """n, by the seconds that the pure tests took."""
    slower = pure_s / _PURE_S
    left_s = max(_GOAL_S / slower - _ALWAYS_S, 60)
    return max(1, round(_REST_S / left_s))


def turn() -> int:
    """The offset of a share, another for every commit; 0 without git."""
    try:
        said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(said.stdout[:8], 16)


def asked() -> int:
    """VKCONV_THIN, 1 where it is not set."""
    return int(os.environ.get("VKCONV_THIN", "") or 1)


def _ops() -> str:
    """Options of `vkconv check --all-ops`."""
    from vkconv.ops import OPS

    n = asked()
    names = sorted(name for name, op in OPS.items() if op.routes)
    return " ".join(f"--op {name}" for name in names[turn() % n :: n]) if n > 1 else ""


def main() -> int:
    if sys.argv[1:] == ["--ops"]:
        print(_ops())
        return 0
    if sys.argv[1:2] == ["--time"]:
        start = time.monotonic()
        code = subprocess.run(sys.argv[2:], check=False).returncode
        if code == 0:
            _KEPT.parent.mkdir(exist_ok=True)
            _KEPT.write_text(f"{time.monotonic() - start:.1f}\n")
        return code
    pure_s = float(_KEPT.read_text()) if _KEPT.exists() else _PURE_S
    n = thin(pure_s)
    if n > 1:
        print(f"thin: pure tests took {pure_s:.0f} s, not {_PURE_S}: running one in {n} of the others", file=sys.stderr)
    print(n)
    return 0


if __name__ == "__main__":
    sys.exit(main())
