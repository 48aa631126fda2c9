"""The player's readers of plans and indices as a target of its own, in C++ under sanitizers: player_plans.cpp."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SOURCES = (ROOT / "tests" / "fuzz" / "player_plans.cpp", ROOT / "native" / "player" / "plan.cpp")
_FLAGS = ("-std=c++17", "-O2", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Small quarantines and short stacks: three of ten of the time is kept. The program tells what ended it by itself.
_OPTIONS = "quarantine_size_mb=1:malloc_context_size=2:hard_rss_limit_mb=1024:handle_abort=0"
_CALLS = ("matmul:a=9x8,b=8x7", "conv2d:x=1x6x9x13,w=6x1x3x3,p=1,groups=6")


def build(compiler: str, folder: Path) -> Path:
    program = folder / "player_plans"
    subprocess.run([compiler, *_FLAGS, *_SOURCES, "-o", program], check=True, timeout=300)
    return program


def seeds(folder: Path) -> list[Path]:
    """An index, plans of calls, the plans of a model, which have values and nodes, and what once broke the reader."""
    from cli_kit import vkconv
    from graph_kit import f32, make_graph

    from vkconv.graph.vkc import save_vkc

    nodes = [("conv2d", "x w", "c", {"padding": (1, 1, 1, 1)}), ("relu", "c", "y")]
    save_vkc(make_graph({"x": (1, 3, 5, 7)}, nodes, "y", {"w": f32(4, 3, 3, 3)}), folder / "net.vkc")
    for words in (_CALLS, (folder / "net.vkc",)):
        code, _, err = vkconv("pack", *words, "-d", "mali-g57", folder / f"p{len(words)}")
        assert code == 0, err
    kept = sorted((ROOT / "tests" / "fuzz" / "regressions" / "player").glob("*"))
    return [*sorted(folder.glob("p*/index.txt")), *sorted(folder.glob("p*/files/*.plan")), *kept]


def command(program: Path, seed: int, count: int, files: Sequence[Path]) -> tuple[list[str], dict[str, str]]:
    """What to run, and its environment."""
    words = [str(program), str(seed), str(count), *map(str, files)]
    return words, {**os.environ, "ASAN_OPTIONS": _OPTIONS, "LD_PRELOAD": ""}


def told(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What the program counted. AssertionError, with the input as hex, where one ended it."""
    assert done.returncode == 0, done.stderr[-20_000:]
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted
