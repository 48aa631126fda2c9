"""The player's reader of plans, under sanitizers, with plans that were damaged."""

import shutil
import subprocess

import player
import pytest
from required import unavailable


@pytest.mark.long
def test_damaged_plans_are_refused_or_keep_their_promises(tmp_path):
    """For longer: tools/fuzz.py --player."""
    compiler = shutil.which("c++")
    if compiler is None:
        unavailable("c++ builds what damages plans")
    words, environment = player.command(player.build(compiler, tmp_path), 1, 20_000, player.seeds(tmp_path))
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment)
    counted = player.told(done)
    assert 0 < counted["taken"] < counted["mutants"] == 20_000
