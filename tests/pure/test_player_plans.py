"""The player's reader of plans, under sanitizers, with plans that were damaged."""

import os
import re
import shutil
import subprocess

import pytest
from cli_kit import ROOT, vkconv
from required import unavailable


@pytest.mark.long
def test_damaged_plans_are_refused_or_keep_their_promises(tmp_path):
    """VKCONV_FUZZ_PLANS says how many are tried, 20,000 without it."""
    compiler = shutil.which("c++")
    if compiler is None:
        unavailable("c++ builds what damages plans")
    sources = [ROOT / "tests" / "fuzz" / "player_plans.cpp", ROOT / "native" / "player" / "plan.cpp"]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, *sources, "-o", tmp_path / "fuzz"], check=True, timeout=300)
    calls = ("matmul:a=9x8,b=8x7", "conv2d:x=1x6x9x13,w=6x1x3x3,p=1,groups=6")
    assert vkconv("pack", *calls, "-d", "mali-g57", tmp_path / "p")[0] == 0
    plans = [*(tmp_path / "p").glob("files/*.plan"), tmp_path / "p" / "index.txt"]
    words = [tmp_path / "fuzz", os.environ.get("VKCONV_FUZZ_PLANS", "20000"), *plans]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    read, of = (int(word) for word in re.findall(r"\d+", done.stdout))
    assert 0 < read < of
