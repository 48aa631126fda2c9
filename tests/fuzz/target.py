"""What every target of the fuzzers is made of."""

import atexit
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from vkconv.core import VkconvError

# In memory where there is such a folder: on a disk, making a file takes longer than to refuse it.
_MEMORY = Path("/dev/shm")
FOLDER = Path(tempfile.mkdtemp(prefix="vkconv-fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))


def _remove(owner: int) -> None:
    if os.getpid() == owner:  # not a forked child
        shutil.rmtree(FOLDER, ignore_errors=True)


atexit.register(_remove, os.getpid())


@dataclasses.dataclass(frozen=True)
class Target:
    """A way in: what to do with bytes, and whole files of the kind. ``run`` may answer whether any of several readers
    took them."""

    run: Callable[[bytes], bool | None]
    seeds: Callable[[], Sequence[bytes]]

    def attempt(self, data: bytes) -> bool:
        """True where the bytes were taken, False where VkconvError refused them; anything else gets out."""
        try:
            return self.run(data) is not False
        except VkconvError as error:
            str(error).encode("utf-8", "surrogatepass")
            return False


def file_of(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


def refusable(attempt: Callable[[], object]) -> bool:
    """One of several readers of the same bytes, of which each may refuse them: whether it took them."""
    try:
        attempt()
    except VkconvError:
        return False
    return True
