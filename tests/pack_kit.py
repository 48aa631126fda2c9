"""A folder of packs, to look into and to damage, and the player of the tests."""

import hashlib
import os
from pathlib import Path

import numpy as np

from vkconv.phone.build import compile_player


def player_for_tests(compiler: str, folder: Path) -> Path:
    """The player that VKCONV_TEST_PLAYER names, which tools/sanitize.sh built, or one that is compiled."""
    if given := os.environ.get("VKCONV_TEST_PLAYER"):
        return Path(given)
    compile_player([compiler, "-Werror"], folder / "player")
    return folder / "player"


class Pack:
    def __init__(self, path):
        self.path = Path(path)

    def plans(self):
        """The plans of the index, in its order."""
        return [line.split()[1] for line in self.lines("index.txt") if line.startswith("pack ")]

    def text(self, name):
        return (self.path / name).read_text()

    def lines(self, name):
        return self.text(name).splitlines()

    def array(self, name, dtype):
        return np.frombuffer((self.path / name).read_bytes(), dtype).copy()

    def put(self, data, suffix):
        name = f"files/{hashlib.sha256(data).hexdigest()[:32]}.{suffix}"
        (self.path / name).write_bytes(data)
        return name

    def replace(self, name, old, new):
        """Change a plan once, under the name that it then has, wherever that is named; returns it."""
        text = self.text(name)
        assert old in text
        return self._moved(name, text.replace(old, new, 1))

    def _moved(self, name, text):
        changed = self.put(text.encode(), "plan")
        for other in self.path.glob("files/*.plan"):
            if name in (said := other.read_text()) and other.name != Path(name).name:
                self._moved(f"files/{other.name}", said.replace(name, changed))
        index = self.text("index.txt")
        (self.path / "index.txt").write_text(index.replace(name, changed))
        return changed
