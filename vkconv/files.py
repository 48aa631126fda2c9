"""Reading files that others may have made, or may change meanwhile."""

import contextlib
import math
import os
import stat
from pathlib import Path
from typing import IO, TypeVar

import msgspec
import numpy as np

from vkconv.core import Array, DType, InputError, ModelError, Shape, exact_bytes, not_a_file

_MAX_RESULT_BYTES = 256 << 20
_T = TypeVar("_T")


def read_result_as(kind: type[_T], path: Path, what: str) -> _T:
    """What a result's JSON file says, as ``kind`` has it. ModelError, naming the file and the place in it, where it
    cannot be read, has more than 256 MiB, or is no ``what``."""
    if problem := not_a_file(path):
        raise ModelError(f"{path} cannot be read: {problem}")
    try:
        nbytes = path.stat().st_size
        if nbytes > _MAX_RESULT_BYTES:
            raise ModelError(f"{path} has {nbytes} bytes; a result has at most {_MAX_RESULT_BYTES}")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path} is no {what}: {error}") from None


def available_bytes() -> int | None:
    """Host memory that can still be had, or None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def read_model_file(path: Path) -> bytes:
    """All that a model's file holds. Raises ModelError where there is no such file, or no right to read it."""
    if problem := not_a_file(path):
        raise ModelError(f"{path}: {problem}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def read_array(file: IO[bytes], offset: int, shape: Shape, dtype: DType) -> Array:
    """A read-only array of what a file holds there. It is read, not mapped: a mapped file that somebody cuts short ends
    the process. Raises InputError where there is no memory for it or the file has become shorter, and OSError."""
    nbytes = math.prod(shape) * dtype.nbytes
    free = available_bytes() if nbytes > 4096 else None  # asking takes as long as reading that
    if free is not None and nbytes > free:
        raise InputError(f"it takes {exact_bytes(nbytes)}, and {exact_bytes(free)} are free")
    try:
        array = np.empty(shape, dtype.numpy)
    except MemoryError:
        raise InputError(f"it takes {exact_bytes(nbytes)}, and there is no memory for them") from None
    rest = memoryview(array.reshape(-1).view(np.uint8).data)
    file.seek(offset)
    while rest:
        count = file.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise InputError(f"the file has become {len(rest)} bytes shorter while it was read")
        rest = rest[count:]
    array.flags.writeable = False
    return array


def read_cache(path: Path, most_bytes: int) -> bytes:
    """What a file of a cache holds; nothing where it is no regular file of at most so many bytes, or where others than
    this user and root may have put it there. Follows no link, and waits for nobody."""
    with contextlib.suppress(OSError, MemoryError):
        if not is_ours(path.parent.stat(), stat.S_IWOTH):
            return b""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            ours = stat.S_ISREG(found.st_mode) and is_ours(found, stat.S_IWOTH | stat.S_IWGRP)
            if ours and found.st_size <= most_bytes:
                return file.read(found.st_size)
    return b""


def is_ours(found: os.stat_result, writable: int) -> bool:
    """Whether a file or folder is this user's or root's, and nobody has these bits of its mode."""
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & writable
