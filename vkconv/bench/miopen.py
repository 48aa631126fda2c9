"""Lines of MIOpenDriver (``conv -n 16 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -F 1``) as call strings.

Flags, defaults and the bit mask -F are those of MIOpenDriver's own help (ROCm/MIOpen, driver/conv_driver.hpp).
"""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping

from vkconv.core import DType, UsageError, did_you_mean, is_count, shape_str

DTYPES: Mapping[str, DType] = {
    "conv": DType.F32,
    "convfp16": DType.F16,
    "convbfp16": DType.BF16,
    "convint8": DType.I8,
}
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = 1, 2, 4
ALL_DIRECTIONS = FORWARD | BACKWARD_DATA | BACKWARD_WEIGHT

_PROGRAM = "MIOpenDriver"
# Letter -> (long name, default); None: the line must say it, a network's layer is never a default.
_NUMBERS: Mapping[str, tuple[str, int | None]] = {
    "n": ("batchsize", None),
    "c": ("in_channels", None),
    "H": ("in_h", None),
    "W": ("in_w", None),
    "k": ("out_channels", None),
    "y": ("fil_h", None),
    "x": ("fil_w", None),
    "p": ("pad_h", 0),
    "q": ("pad_w", 0),
    "u": ("conv_stride_h", 1),
    "v": ("conv_stride_w", 1),
    "l": ("dilation_h", 1),
    "j": ("dilation_w", 1),
    "Y": ("trans_output_pad_h", 0),
    "X": ("trans_output_pad_w", 0),
    "g": ("group_count", 1),
    "F": ("forw", 0),
}
_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "m": ("mode", ("conv", "trans")),
    "I": ("in_layout", ("NCHW", "NHWC")),
    "O": ("out_layout", ("NCHW", "NHWC")),
    "f": ("fil_layout", ("NCHW", "NHWC")),
    "_": ("spatial_dim", ("2",)),
    "z": ("pad_mode", ("default",)),
    "b": ("bias", ("0",)),
    "r": ("pad_val", ("0",)),
}
# How MIOpenDriver measures and reports, which is not part of the call.
_IGNORED: Mapping[str, str] = {
    "i": "iter",
    "t": "time",
    "V": "verify",
    "w": "wall",
    "s": "search",
    "S": "solution",
    "P": "printconv",
    "C": "verification_cache",
    "o": "dump_output",
}
_LETTERS: Mapping[str, str] = {
    name: letter
    for letter, name in ({k: v[0] for k, v in (*_NUMBERS.items(), *_WORDS.items())} | dict(_IGNORED)).items()
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution layer in numbers; ``padding`` is top, left, bottom, right. Data and weights have their channels
    first, or ``last`` and ``w_last``."""

    n: int
    c_in: int
    h: int
    w: int
    c_out: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: DType = DType.F32
    last: bool = False
    w_last: bool = False

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output of the forward convolution."""
        sides = zip((self.h, self.w), self.kernel, self.stride, self.dilation, (0, 1), strict=True)
        p = self.padding
        h, w = ((x + p[i] + p[i + 2] - d * (k - 1) - 1) // s + 1 for x, k, s, d, i in sides)
        return h, w

    def transposed_out(self, output_padding: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the output of the transposed convolution."""
        sides = zip((self.h, self.w), self.kernel, self.stride, self.dilation, output_padding, (0, 1), strict=True)
        p = self.padding
        h, w = ((x - 1) * s - p[i] - p[i + 2] + d * (k - 1) + o + 1 for x, k, s, d, o, i in sides)
        return h, w

    def problem(self, transposed: tuple[int, int] | None = None) -> str:
        """What makes it no convolution, or none transposed with this output padding; an empty text for nothing."""
        if min(self.n, self.c_in, self.h, self.w, self.c_out, *self.kernel, *self.stride, *self.dilation) < 1:
            return "sizes, strides and dilations are at least 1"
        if self.groups < 1 or self.c_in % self.groups or self.c_out % self.groups:
            return f"{self.c_in} and {self.c_out} channels do not divide into {self.groups} groups"
        out = self.out if transposed is None else self.transposed_out(transposed)
        if min(out) < 1:
            return f"the {shape_str(self.kernel)} kernel does not fit {self.h}x{self.w}: the output is {shape_str(out)}"
        return ""

    def calls(self, directions: int) -> Iterator[str]:
        """The call string of each direction in the bit mask."""
        x, y = (self.n, self.c_in, self.h, self.w), (self.n, self.c_out, *self.out)
        w = (self.c_out, self.c_in // self.groups, *self.kernel)
        if directions & FORWARD:
            yield self._text("conv2d", x=x, w=w)
        if directions & BACKWARD_DATA:
            yield self._text("conv2d_backward_data", dy=y, w=w, x_shape=x)
        if directions & BACKWARD_WEIGHT:
            yield self._text("conv2d_backward_weight", x=x, dy=y, w_shape=w)

    def transposed_calls(self, directions: int, output_padding: tuple[int, int]) -> Iterator[str]:
        """The same for a transposed convolution, which takes x of ``c_in`` channels to ``c_out``; its gradient by x
        is a plain convolution of dy, and its weight gradient that of this convolution."""
        x, dy = (self.n, self.c_in, self.h, self.w), (self.n, self.c_out, *self.transposed_out(output_padding))
        w = (self.c_in, self.c_out // self.groups, *self.kernel)
        if directions & FORWARD:
            more = {"output_padding": output_padding} if any(output_padding) else {}
            yield self._text("conv_transpose2d", x=x, w=w, **more)
        if directions & BACKWARD_DATA:
            yield self._text("conv2d", x=dy, w=w)
        if directions & BACKWARD_WEIGHT:
            yield self._text("conv2d_backward_weight", x=dy, dy=x, w_shape=w)

    def _text(self, op: str, **shapes: tuple[int, ...]) -> str:
        lies = {name: self.w_last if name in ("w", "w_shape") else self.last for name in shapes}
        pairs = {name: (dims[0], *dims[2:], dims[1]) if lies[name] else dims for name, dims in shapes.items()}
        more = {"output_padding": shapes["output_padding"]} if "output_padding" in shapes else {}
        fields = [f"{name}={shape_str(shape)}" for name, shape in {**pairs, **more}.items()]
        optional = (("s", self.stride, (1, 1)), ("p", self.padding, (0,) * 4), ("d", self.dilation, (1, 1)))
        fields += [f"{key}={shape_str(value)}" for key, value, default in optional if value != default]
        fields += [f"g={self.groups}"] if self.groups != 1 else []
        fields += ["layout=NHWC"] if self.last else []
        fields += [f"w_layout={'CYXK' if op == 'conv_transpose2d' else 'KYXC'}"] if self.w_last else []
        return f"{op}:{','.join([*fields, f'dtype={self.dtype}'])}"


def is_miopen(text: str) -> bool:
    """True for a text that begins as a line of MIOpenDriver does."""
    words = text.split()
    return bool(words) and (words[0].endswith(_PROGRAM) or (words[0] in DTYPES and len(words) > 1))


def miopen_calls(line: str) -> list[tuple[str, str]]:
    """The calls of a line, one for each direction of its -F, and a note for each (empty: none).

    Raises UsageError naming every flag that is unknown, missing or out of range.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line!r} is no line of {_PROGRAM}: {error}") from None
    if words and words[0].endswith(_PROGRAM):
        words = words[1:]
    if not words or words[0] not in DTYPES:
        known = ", ".join(DTYPES)
        raise UsageError(f"{line!r} is no convolution of {_PROGRAM}: it begins with one of {known}")
    flags, problems = _read_flags(words[1:])
    numbers: dict[str, int] = {}
    for letter, (name, default) in _NUMBERS.items():
        value = flags.get(letter, default)
        if value is None:
            problems.append(f"-{letter} ({name}) is missing")
        elif not is_count(str(value)):
            problems.append(f"-{letter} ({name}) is {value!r}, no whole number")
        else:
            numbers[letter] = int(value)
    for letter, (name, values) in _WORDS.items():
        if letter in flags and flags[letter] not in values:
            problems.append(f"-{letter} ({name}) is {flags[letter]!r}; vkconv takes {' or '.join(values)}")
    if numbers.get("F", 0) > ALL_DIRECTIONS:
        problems.append(f"-F (forw) is {numbers['F']}; it is a mask of 1 forward, 2 backward data, 4 backward weights")
    if problems:
        raise UsageError(f"{line!r}: {'; '.join(problems)}")
    lies = {letter: flags.get(letter, "NCHW") for letter in "IOf"}
    data_last = lies["I"] == lies["O"] == "NHWC"
    conv = dataclasses.replace(_conv(numbers, DTYPES[words[0]]), last=data_last, w_last=lies["f"] == "NHWC")
    directions = numbers["F"] or ALL_DIRECTIONS
    output_padding = (numbers["Y"], numbers["X"])
    transposed = flags.get("m") == "trans"
    problem = conv.problem(output_padding if transposed else None)
    if problem:
        raise UsageError(f"{line!r}: {problem}")
    calls = conv.transposed_calls(directions, output_padding) if transposed else conv.calls(directions)
    differ = f"measured with both in NCHW; the line has -I {lies['I']} and -O {lies['O']}"
    note = differ if lies["I"] != lies["O"] else ""
    return [(call, note) for call in calls]


def _conv(v: Mapping[str, int], dtype: DType) -> Conv:
    return Conv(
        n=v["n"],
        c_in=v["c"],
        h=v["H"],
        w=v["W"],
        c_out=v["k"],
        kernel=(v["y"], v["x"]),
        stride=(v["u"], v["v"]),
        padding=(v["p"], v["q"], v["p"], v["q"]),
        dilation=(v["l"], v["j"]),
        groups=max(v["g"], 1),
        dtype=dtype,
    )


def _read_flags(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Values by letter, and what is wrong with the flags."""
    flags: dict[str, str] = {}
    problems: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        letter = _LETTERS.get(name[2:], "") if name.startswith("--") else name[1:]
        if not word.startswith("-") or letter not in _LETTERS.values():
            known = [f"--{long}" for long in _LETTERS]
            problems.append(f"{word!r} is no flag that vkconv knows{did_you_mean(name, known)}")
            if word.startswith("-") and not equals:
                next(rest, "")
            continue
        value = value if equals else next(rest, "")
        if not value:
            problems.append(f"{word} has no value")
        flags[letter] = value
    return flags, problems
