"""Lines of MIOpenDriver that are no convolutions (``pool -n 16 -c 64 -H 56 -W 56 -v 2 -u 2``) as call strings.

Flags and defaults are those of MIOpenDriver's own help (ROCm/MIOpen, driver/pool_driver.hpp, gemm_driver.hpp,
softmax_driver.hpp, bn_driver.hpp).
"""

import shlex
from collections.abc import Callable, Mapping

from vkconv.core import DType, UsageError, is_count, shape_str

_PROGRAM = "MIOpenDriver"
_DTYPES: Mapping[str, DType] = {"": DType.F32, "fp16": DType.F16, "bfp16": DType.BF16}
# Letter -> (long name, default).
_IMAGE = {"c": ("in_channels", "3"), "H": ("in_h", "32"), "W": ("in_w", "32"), "A": ("alpha", "1"), "B": ("beta", "0")}
_FLAGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "pool": {
        **{"n": ("batchsize", "100"), **_IMAGE, "F": ("forw", "0"), "y": ("win_h", "3"), "x": ("win_w", "3")},
        **{"v": ("pool_stride_h", "1"), "u": ("pool_stride_w", "1"), "p": ("pad_h", "0"), "q": ("pad_w", "0")},
        **{"m": ("mode", "max"), "z": ("pad_mode", "default"), "r": ("pad_val", "0")},
    },
    "gemm": {
        **{"F": ("forw", "1"), "b": ("batch_count", "1"), "C": ("isColMajor", "1"), "m": ("a_h", "256")},
        **{"k": ("a_w", "256"), "n": ("b_w", "256"), "A": ("alpha", "1"), "B": ("beta", "0")},
        **{"u": ("transA", "0"), "v": ("transB", "0")},
    },
    "softmax": {
        **{"n": ("batchsize", "100"), **_IMAGE, "F": ("forw", "0"), "a": ("algorithm", "1"), "m": ("mode", "1")},
    },
    "bnorm": {
        **{"n": ("batchsize", "32"), **_IMAGE, "F": ("forw", "1"), "b": ("back", "0"), "m": ("mode", "0")},
        **{"s": ("save", "0"), "r": ("run", "0"), "L": ("layout", "NCHW")},
    },
}
# How MIOpenDriver measures and reports, which is not part of the call.
_IGNORED = {"i": "iter", "V": "verify", "t": "time", "w": "wall", "P": "printconv", "o": "dump_output"}


def is_line(text: str) -> bool:
    """True for a text that begins as such a line of MIOpenDriver does."""
    words = _words(text)
    return len(words) > 1 and _split(words[0])[0] in _FLAGS and words[1].startswith("-")


def calls(line: str) -> list[tuple[str, str]]:
    """The forward call of a line, and a note on what of it is left out. Raises UsageError naming what does not fit."""
    words = _words(line)
    name, dtype = _split(words[0])
    flags = {letter: default for letter, (_, default) in _FLAGS[name].items()}
    letters = {long: letter for letter, (long, _) in _FLAGS[name].items()} | {v: k for k, v in _IGNORED.items()}
    rest = iter(words[1:])
    for word in rest:
        key, equals, value = word.partition("=")
        letter = letters.get(key[2:], "") if key.startswith("--") else key[1:]
        if not word.startswith("-") or letter not in {*flags, *_IGNORED}:
            raise UsageError(f"{line!r}: {word!r} is no flag of {_PROGRAM} {name} that vkconv knows")
        flags[letter] = value if equals else next(rest, "")
        if not flags[letter]:
            raise UsageError(f"{line!r}: {word} has no value")
    try:
        text, note = _READERS[name](flags)
    except UsageError as error:
        raise UsageError(f"{line!r}: {error}") from None
    return [(f"{text},dtype={dtype}", note)]


def _pool(flags: Mapping[str, str]) -> tuple[str, str]:
    kinds = {"max": "max", "avg": "avg", "avg_in": "avg,cip=1"}
    if flags["m"] not in kinds:
        raise UsageError(f"-m (mode) is {flags['m']!r}; vkconv takes {', '.join(kinds)}")
    if flags["z"] != "default":
        raise UsageError(f"-z (pad_mode) is {flags['z']!r}; vkconv takes default")
    window, stride, padding = (shape_str(_numbers(flags, *pair)) for pair in (("y", "x"), ("v", "u"), ("p", "q")))
    text = f"pool2d:x={shape_str(_numbers(flags, 'n', 'c', 'H', 'W'))},kind={kinds[flags['m']]},k={window}"
    return f"{text},s={stride},p={padding}", "" if flags["F"] == "1" else _FORWARD_ONLY


def _gemm(flags: Mapping[str, str]) -> tuple[str, str]:
    batch, m, k, n, columns, ta, tb = _numbers(flags, "b", "m", "k", "n", "C", "u", "v")
    first, second = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    if columns:  # by columns the memory of A B is that of its transposed by rows, which is that of B times that of A
        first, second, ta, tb = second[::-1], first[::-1], tb, ta
    batches = (batch,) if batch > 1 else ()
    text = f"matmul:a={shape_str((*batches, *first))},b={shape_str((*batches, *second))}"
    text += ",ta=1" * bool(ta) + ",tb=1" * bool(tb)
    text += f",alpha={flags['A']}" if _factor(flags, "A") != 1 else ""
    return text, "measured without beta: nothing is added to" if _factor(flags, "B") else ""


def _softmax(flags: Mapping[str, str]) -> tuple[str, str]:
    n, c, h, w = _numbers(flags, "n", "c", "H", "W")
    if flags["a"] not in ("0", "1", "2") or flags["m"] not in ("0", "1"):
        raise UsageError(f"-a (algorithm) is {flags['a']}, 0 to 2, and -m (mode) {flags['m']}, 0 or 1")
    text = f"softmax:x={n}x{c * h * w}" if flags["m"] == "0" else f"softmax:x={n}x{c}x{h}x{w},axis=1"
    return text + ",log=1" * (flags["a"] == "2"), "" if flags["F"] == "1" else _FORWARD_ONLY


def _bnorm(flags: Mapping[str, str]) -> tuple[str, str]:
    n, c, h, w = _numbers(flags, "n", "c", "H", "W")
    if flags["m"] not in ("0", "1") or flags["F"] not in ("0", "1", "2"):
        raise UsageError(f"-m (mode) is {flags['m']}, 0 or 1, and -F (forw) {flags['F']}, 0 to 2")
    if flags["F"] == "0":
        raise UsageError("-F 0 runs the backward pass alone, for which vkconv has no op")
    x, count = ((n, c, h, w), c) if flags["m"] == "1" else ((n, c * h * w), c * h * w)
    op = "batch_norm" if flags["F"] == "2" else "batch_norm_training"
    text = f"{op}:x={shape_str(x)}" + "".join(f",{name}={count}" for name in ("scale", "bias", "mean", "var"))
    notes = [_FORWARD_ONLY] if flags["b"] != "0" else []
    notes += [f"measured in NCHW; the line asks for {flags['L']}"] if flags["L"] != "NCHW" else []
    return text, "; ".join(notes)


_FORWARD_ONLY = "the forward pass alone: vkconv has no op for the other"
_READERS: Mapping[str, Callable[[Mapping[str, str]], tuple[str, str]]] = {
    "pool": _pool,
    "gemm": _gemm,
    "softmax": _softmax,
    "bnorm": _bnorm,
}


def _numbers(flags: Mapping[str, str], *letters: str) -> tuple[int, ...]:
    wrong = [f"-{letter} is {flags[letter]!r}, no whole number" for letter in letters if not is_count(flags[letter])]
    if wrong:
        raise UsageError("; ".join(wrong))
    return tuple(int(flags[letter]) for letter in letters)


def _factor(flags: Mapping[str, str], letter: str) -> float:
    try:
        return float(flags[letter])
    except ValueError:
        raise UsageError(f"-{letter} is {flags[letter]!r}, no number") from None


def _split(word: str) -> tuple[str, DType]:
    """``poolfp16`` as the name and the type; another word as itself."""
    for suffix in ("bfp16", "fp16"):
        if word.endswith(suffix):
            return word.removesuffix(suffix), _DTYPES[suffix]
    return word, DType.F32


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    return words[1:] if words and words[0].endswith(_PROGRAM) else words
