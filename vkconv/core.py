"""Errors, element types, shapes and small helpers that everything else may use. Imports nothing of vkconv.

Error tree (every one has an ``exit_code`` for the command line):

    VkconvError (2)
      UsageError          an argument, option or name that does not exist
      ModelError          a file that is not a readable model
        UnsupportedError  a readable model that asks for what vkconv does not have (lists everything at once)
      GraphError          a graph that contradicts itself: names, shapes, dtypes, attributes
      InputError          a run-time input of the wrong name, shape or dtype
      RouteError          a forced route that cannot take the call
      LimitError          a device limit that a plan would exceed (both numbers)
      ShaderError         a shader that does not compile
      DeviceError (3)     no device, a lost device, a driver that refuses
"""

import contextlib
import difflib
import enum
import errno
import fcntl
import io
import itertools
import math
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Shape = tuple[int, ...]

MAX_BYTES = 1 << 62  # numpy ends at 2^63; offsets and padding need room beyond the array itself
MAX_RANK = 32  # what every numpy that vkconv runs with can hold
# Planning takes 5 to 9 s for so many on a 2-core machine, in proportion to their number (plan/spans.py; figures in
# docs/reliability.md); the largest published networks have a third of this.
MAX_NODES = 16_384
_MAX_SUGGESTED_CHARS = 80
_MAX_SUGGESTED_FROM = 2_000
# Of a word that another one begins or ends with, or is short for.
_FEWEST_LETTERS = 3
# difflib's ratio from which on a word is a slip of another: one letter of three, or a few of more.
_ALIKE_SHORT, _ALIKE = 0.66, 0.72


class VkconvError(Exception):
    """Base of every error that vkconv raises on purpose; the text says what, where and how to go on."""

    exit_code = 2


class UsageError(VkconvError):
    """An argument, option, op, route or device name that does not exist."""


class ModelError(VkconvError):
    """A file that cannot be read as a model."""


class UnsupportedError(ModelError):
    """A model that asks for something vkconv does not have; the text lists every such place."""


class GraphError(VkconvError):
    """A graph or call that contradicts itself."""


class InputError(VkconvError):
    """A run-time input with the wrong name, shape or dtype."""


class RouteError(VkconvError):
    """A forced route that the call or the device does not allow."""


class LimitError(VkconvError):
    """A device limit that the plan would exceed."""


class ShaderError(VkconvError):
    """A shader that does not compile, or no compiler to do it."""


class DeviceError(VkconvError):
    """No usable Vulkan device, or one that failed."""

    exit_code = 3


class VkconvWarning(UserWarning):
    """Something that was ignored and is worth a look; nothing failed."""


class DType(enum.StrEnum):
    """Element types of tensors. ``f16`` and ``bf16`` are storage types: arithmetic is f32 or wider."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    U32 = "u32"
    U16 = "u16"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return _DTYPES[self][0]

    @property
    def mantissa_bits(self) -> int:
        """Explicit mantissa bits of a float type (0 for integers), as the tolerance formula needs them."""
        return _DTYPES[self][2]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype that holds it; that of bf16 is ml_dtypes'."""
        return _DTYPES[self][1]

    @property
    def is_float(self) -> bool:
        return self.mantissa_bits > 0

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> "DType":
        """The element type of a numpy dtype; raises GraphError naming it when vkconv has none."""
        native = np.dtype(dtype).newbyteorder("=")
        for member in cls:
            if member.numpy == native:
                return member
        known = ", ".join(str(m.numpy) for m in cls)
        raise GraphError(
            f"numpy dtype {native} is not one vkconv has ({known}); convert the array first, as "
            "np.asarray(values, np.float32) does"
        )


# What floats may be stored as.
FLOAT_TYPES = (DType.F32, DType.F16, DType.BF16)

_DTYPES: dict[DType, tuple[int, np.dtype[np.generic], int]] = {
    DType.F32: (4, np.dtype("float32"), 23),
    DType.F16: (2, np.dtype("float16"), 10),
    DType.BF16: (2, np.dtype(ml_dtypes.bfloat16), 7),
    DType.I64: (8, np.dtype("int64"), 0),
    DType.I32: (4, np.dtype("int32"), 0),
    DType.U32: (4, np.dtype("uint32"), 0),
    DType.U16: (2, np.dtype("uint16"), 0),
    DType.I16: (2, np.dtype("int16"), 0),
    DType.I8: (1, np.dtype("int8"), 0),
    DType.U8: (1, np.dtype("uint8"), 0),
    DType.BOOL: (1, np.dtype("bool"), 0),
}


def shape_str(shape: Iterable[int | str]) -> str:
    """``(1, 64, 56, 56)`` as ``1x64x56x56``, rank 0 as ``scalar``; with named dimensions ``[n, 3, h, w]``."""
    dims = list(shape)
    if any(isinstance(d, str) for d in dims):
        return f"[{', '.join(map(str, dims))}]"
    return "x".join(map(str, dims)) or "scalar"


def counted(count: int, what: str, ending: str = "s") -> str:
    """``1 row``, ``2 rows``; words of another ``ending`` name it."""
    return f"{count} {what}{ending if count != 1 else ''}"


def bytes_str(nbytes: float) -> str:
    """A byte count with a binary unit, three significant digits: ``1.50 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, int(math.log2(max(nbytes, 1))) // 10)
    value = nbytes / 1024**power
    digits = 0 if power == 0 else max(0, 2 - int(math.log10(value)))
    return f"{value:.{digits}f} {units[power]}"


def exact_bytes(nbytes: int) -> str:
    """The same, and how many they are: ``1.50 MiB (1572864 bytes)``; for less than a KiB the unit says both."""
    return bytes_str(nbytes) if nbytes < 1024 else f"{bytes_str(nbytes)} ({nbytes} bytes)"


def _speaks_dlpack_alone(value: object) -> bool:
    known = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")
    return hasattr(value, "__dlpack__") and not any(hasattr(value, name) for name in known)


def given_array(value: npt.ArrayLike, what: str) -> Array:
    """An array that somebody gives; InputError, calling it ``what``, for what is none, or hides elements, and for any
    error but MemoryError that its own conversion raises."""
    try:
        # numpy makes one object of what speaks DLPack alone.
        array = np.from_dlpack(value) if _speaks_dlpack_alone(value) else np.asarray(value)  # type: ignore[arg-type]
    except (MemoryError, VkconvError):
        raise
    except Exception as error:  # of numpy, or of the object's own __array__ or __dlpack__
        raise InputError(f"{what} is not an array: {str(error) or type(error).__name__}") from error
    if array.dtype.hasobject:
        shown = f"dtype {array.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise InputError(f"{what} is not an array of numbers: it is {shown}; {how_to_convert(value)}")
    hidden = int(np.count_nonzero(value.mask)) if isinstance(value, np.ma.MaskedArray) else 0
    if hidden:
        raise InputError(f"{what} has {hidden} masked elements, of {array.size}; give them values with .filled(VALUE)")
    return array


def how_to_convert(value: object, dtype: str = "float32") -> str:
    """What to do to what somebody gives, so that it is an array of a type; lists and numbers have no ``astype``."""
    way = f".astype({dtype!r})" if hasattr(value, "astype") else f"np.asarray(value, {dtype!r})"
    return f"convert it with {way}"


def shape_problem(shape: Sequence[int], dtype: DType) -> str:
    """Why no array can have this shape, also where a dimension is 0; empty where one can."""
    if len(shape) > MAX_RANK:
        return f"it has {len(shape)} dimensions; at most {MAX_RANK} can be"
    nbytes = math.prod(d for d in shape if d) * dtype.nbytes
    if nbytes >= MAX_BYTES:
        return f"its dimensions other than 0 make 2^{nbytes.bit_length() - 1} bytes or more; fewer than 2^62 can be"
    return ""


def printable(text: str, keep: str = "") -> str:
    r"""The text with what is not to be seen, or would move a terminal's cursor or turn text around, as ``\x1b`` and
    ``\u202e``; spaces stay, and the characters of ``keep``. All that goes to people comes through here."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def is_count(text: str) -> bool:
    """Whether a text is a whole number, not negative, of at most 18 digits: Python refuses to read very long ones."""
    return text.isdecimal() and len(text) <= 18


def on_a_line(error: object) -> str:
    """What an error says, without breaks."""
    return " ".join(str(error).split())


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the nearest known word, or an empty string where none is like it. Words of a file
    may be millions, and of any length: neither long ones nor all of very many are looked at. Nothing is like what is no
    text."""
    if not isinstance(word, str) or len(word) > _MAX_SUGGESTED_CHARS:
        return ""
    short = (k for k in itertools.islice(known, _MAX_SUGGESTED_FROM) if len(k) <= _MAX_SUGGESTED_CHARS)
    near = min(((unlike, k) for k in short if (unlike := _unlikeness(word, k)) is not None), default=None)
    return f" (did you mean {near[1]!r}?)" if near else ""


def _unlikeness(word: str, known: str) -> tuple[int, float] | None:
    """How far a word is from a known one, to compare, or None where they are unlike: a slip or few for its length comes
    before a word that the other begins or ends with, and that before one that is short for it (fwd, or conv2d of
    convolution2d)."""
    a, b = word.casefold(), known.casefold()
    shorter, longer = sorted((a, b), key=len)
    least = _ALIKE_SHORT if len(shorter) < 4 else _ALIKE
    alike = difflib.SequenceMatcher(None, a, b)
    if alike.quick_ratio() >= least and (ratio := alike.ratio()) >= least:
        return 0, -ratio
    if len(shorter) < _FEWEST_LETTERS:
        return None
    if longer.startswith(shorter) or (longer.endswith(shorter) and not longer[-len(shorter) - 1].isalnum()):
        return 1, len(longer) - len(shorter)
    if 3 * len(shorter) < len(longer) or shorter[0] != longer[0] or shorter[-1] != longer[-1]:
        return None
    letters = iter(longer)
    skeleton = not set("aeiou").intersection(shorter) and all(letter in letters for letter in shorter)  # fwd
    cut = any(longer.startswith(shorter[:i]) and longer.endswith(shorter[i:]) for i in range(1, len(shorter)))
    return (2, len(longer) - len(shorter)) if skeleton or cut else None


def divisors(n: int) -> tuple[int, ...]:
    """All divisors of a positive number, in order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(dict.fromkeys((*small, *(n // d for d in reversed(small)))))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def align(value: int, to: int) -> int:
    """The smallest multiple of ``to`` that is not below ``value``."""
    return ceil_div(value, to) * to


def short(text: str) -> str:
    """A text in quotes, of which a long one is cut."""
    most = 80
    return repr(text) if len(text) <= most else f"{text[:most]!r}... ({len(text)} characters)"


def not_a_file(path: Path) -> str:
    """Why there is no file to read at ``path``, and what to do; empty where there is one."""
    try:
        if path.is_file():
            return ""
        found = path.exists()
    except OSError as error:
        return f"cannot be read ({error.strerror}); check the path and its permissions"
    return "is a directory or device, not a file; name the file itself" if found else "no such file; check the path"


def expand_user(path: str | Path, what: str) -> Path:
    """The path with ``~`` as a home folder; UsageError naming ``what`` where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{what} is {str(path)!r}, and there is no such user; write out the path") from None


def is_stream(path: Path) -> bool:
    """Whether ``path`` is no file of its own: standard output, also by the name ``-``, a device or a pipe."""
    if str(path) == "-":
        return True
    with contextlib.suppress(OSError):
        found = path.stat()
        plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        return not plain or _standard_stream(found) is not None
    return False


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write what is to be at ``path``, which is all there or as before: every output is written so.

    A file is written beside its place, synced, then renamed, and keeps the mode and owner of the one that it replaces.
    Links are followed. Standard output (``-``), devices and pipes are written to in the end. What writers that were
    killed left in the folder goes.
    """
    found = None
    if str(path) != "-":
        with contextlib.suppress(FileNotFoundError):  # nor where a link leads to
            found = path.stat()
        if found and stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    stream = 1 if str(path) == "-" else _standard_stream(found) if found else None
    if stream is None and (found is None or stat.S_ISREG(found.st_mode)):
        with _replacing(Path(os.path.realpath(path)), found) as file:
            yield file
        return
    whole = io.BytesIO()
    yield whole
    if stream is not None:
        sys.stdout.flush()
    with open(path if stream is None else stream, "wb", buffering=0, closefd=stream is None) as raw:
        rest = whole.getbuffer()
        while rest:
            rest = rest[raw.write(rest) :]


@contextlib.contextmanager
def cache_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file of a cache, of which links are no part: whatever is at ``path`` is replaced by a file that nobody
    else may write to, as `read_cache` wants it."""
    with _replacing(path, None, 0o644) as file:
        yield file


def _standard_stream(found: os.stat_result) -> int | None:
    """The descriptor of standard output or error, where that is what was found: /dev/stdout may be a file, which the
    process writes to by itself too."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    return None


@contextlib.contextmanager
def _replacing(path: Path, found: os.stat_result | None, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that takes the place of what is at ``path``, and its mode and owner where there is ``found`` to keep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent)
    # Not mkstemp: its files are private, and reading the umask to open them up is not thread-safe.
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{_PART}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600 if found else mode), "w+b") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if found:
                with contextlib.suppress(PermissionError):  # only root may give files away
                    os.fchown(file.fileno(), found.st_uid, found.st_gid)
                os.fchmod(file.fileno(), found.st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)  # while the lock still says that the file has an owner
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_PART = ".vkconv.part"
# A writer is given so long from making its file to locking it.
_LEFTOVER_AGE_S = 60
_tidied: set[Path] = set()


def _remove_leftovers(folder: Path) -> None:
    """Remove unfinished files without a living owner, once for each folder in a process. Each is locked by who writes
    it, and the lock ends with the process, however that ends."""
    if folder in _tidied:
        return
    _tidied.add(folder)
    with contextlib.suppress(OSError):
        for left in [entry for entry in os.scandir(folder) if entry.name.endswith(_PART)]:
            with contextlib.suppress(OSError):
                _remove_leftover(Path(left.path))


def _remove_leftover(path: Path) -> None:
    """Remove one unfinished file; OSError where it has an owner, or another's right of access is missing."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > _LEFTOVER_AGE_S:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(file)


def cache_dir() -> Path:
    """Folder of files that can be made again (SPIR-V, pipelines): VKCONV_CACHE_DIR when that is set, else the
    user's cache folder for vkconv. Not created here; any file in it may vanish at any time.

    Raises UsageError where VKCONV_CACHE_DIR begins with ``~`` and a name that is no user's."""
    root = os.environ.get("VKCONV_CACHE_DIR")
    if root:
        return expand_user(root, "VKCONV_CACHE_DIR")
    import platformdirs  # here: most commands never ask

    return platformdirs.user_cache_path("vkconv")
