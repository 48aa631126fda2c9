"""Problems of oneDNN's benchdnn (``--conv --dir=FWD_D mb1ic16ih14oc32oh14kh3ph1``) as call strings.

The descriptors are those of oneDNN, tests/benchdnn/doc (driver_conv.md, driver_pool.md, driver_matmul.md,
driver_reduction.md, driver_softmax.md): sizes that are left out follow from others, a width from the height, padding
from the output.
"""

import re
import shlex
from collections.abc import Callable, Mapping

from vkconv.bench.miopen import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, Conv
from vkconv.core import DType, UsageError, did_you_mean, is_count, shape_str
from vkconv.ops.core.calls import parse_shape

_DESCRIPTOR = re.compile(r"(?:(?:mb|g|[io]c|[iokspd][dhw])\d{1,9}_?)+(?:n.*)?")
_PART = re.compile(r"(mb|g|[io]c|[iokspd][dhw])(\d{1,9})")
_DTYPES: Mapping[str, DType] = {"f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16}
_DIRECTIONS: Mapping[str, int] = {
    **dict.fromkeys(("FWD_B", "FWD_D", "FWD_I"), FORWARD),
    "BWD_D": BACKWARD_DATA,
    **dict.fromkeys(("BWD_W", "BWD_WB"), BACKWARD_WEIGHT),
}
_PREFIX_MB = 2  # what benchdnn takes where a descriptor has no mb


def is_line(text: str) -> bool:
    """True for a line of benchdnn, with or without its name, or a bare descriptor of a convolution."""
    words = text.split()
    if words and words[0].rpartition("/")[2] == "benchdnn":
        return True
    return bool(words) and ((words[0].lstrip("-") in _DRIVERS and words[0].startswith("--")) or _is_conv(text))


def _is_conv(text: str) -> bool:
    return bool(_DESCRIPTOR.fullmatch(text.strip())) and "ic" in text and "kh" in text + text.replace("kw", "kh")


def calls(line: str) -> list[tuple[str, str]]:
    """The calls of a line, one for each of its problems, and a note on what of it is left out. Raises UsageError naming
    what vkconv does not take."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line!r} is no line of benchdnn: {error}") from None
    words = words[1:] if words and words[0].rpartition("/")[2] == "benchdnn" else words
    driver, knobs, problems = "conv", {}, []
    for word in words:
        if not word.startswith("-"):
            problems.append(word)
        elif word[2:] in _DRIVERS:
            driver = word[2:]
        else:
            name, _, value = word.lstrip("-").partition("=")
            knobs[name] = value
    if not problems:
        raise UsageError(f"{line!r} has no problem; drivers that vkconv takes are {', '.join(_DRIVERS)}")
    kept = {name for name in _OF_LAYOUT.get(driver, {}) if knobs.get(name) in (*_CHANNELS_FIRST, *_CHANNELS_LAST)}
    kept -= (
        {"stag", "dtag"} if (knobs.get("stag") in _CHANNELS_LAST) != (knobs.get("dtag") in _CHANNELS_LAST) else set()
    )
    kept -= {"wtag"} if any(re.match(r"g\d", problem) for problem in problems) else set()
    note = ", ".join(f"--{name}={knobs[name]}" for name in knobs if name in _LEFT_OUT and name not in kept)
    unknown = [name for name in knobs if name not in {*_LEFT_OUT, *_TAKEN, *_REPORTING}]
    if unknown:
        raise UsageError(f"{line!r}: --{unknown[0]} is no knob that vkconv knows{did_you_mean(unknown[0], _TAKEN)}")
    try:
        texts = [_DRIVERS[driver](problem, knobs) for problem in problems]
        dtype = _dtype(knobs)
    except UsageError as error:
        raise UsageError(f"{line!r}: {error}") from None
    return [(f"{text},dtype={dtype}", f"left out: {note}" if note else "") for text in texts]


_TAKEN = ("dir", "dt", "cfg", "sdt", "ddt", "mb", "alg", "axis")
# Layouts other than those below, and what the call would need more of.
_LEFT_OUT = ("tag", "stag", "wtag", "dtag", "attr-post-ops", "attr-scales", "attr-fpmath", "attr-scratchpad")
# Memory tags of the tensors that a driver has, and those that are channels first and last. Weights in groups have a
# dimension more, which none of these puts in its place.
_OF_LAYOUT = {"conv": ("stag", "wtag", "dtag"), "pool": ("tag",)}
_CHANNELS_FIRST, _CHANNELS_LAST = ("abx", "abcd", "nchw", "oihw"), ("axb", "acdb", "nhwc", "ohwi")
_REPORTING = ("mode", "v", "verbose", "engine", "batch", "match", "fix-times-per-prb", "max-ms-per-prb", "skip-impl")


def _dtype(knobs: Mapping[str, str]) -> DType:
    text = knobs.get("dt") or knobs.get("cfg") or knobs.get("sdt") or "f32"
    first = text.split(":")[0].removesuffix("_wino")
    first = "bf16" if first.startswith("bf16bf16") else first
    if first not in _DTYPES or any(part != first for part in text.split(":")[1:]):
        raise UsageError(f"the types are {text}; vkconv takes {', '.join(_DTYPES)}, the same of all tensors")
    return _DTYPES[first]


def _numbers(problem: str, knobs: Mapping[str, str]) -> dict[str, int]:
    text = problem.partition('n"')[0]
    text = re.sub(r"_?n[^_]*$", "", text) if not _DESCRIPTOR.fullmatch(text) else text
    body = re.match(r"(?:(?:mb|g|[io]c|[iokspd][dhw])\d{1,9}_?)+", text)
    if body is None:
        raise UsageError(f"{problem!r} is no problem; it is written as mb1ic16ih14oc32oh14kh3ph1")
    v = {name: int(value) for name, value in _PART.findall(body[0])}
    deep = [name for name in v if name.endswith("d") and name != "g" and v[name] > (name[0] in "iok")]
    if deep:
        raise UsageError(f"{problem!r} has {deep[0]}: vkconv takes two spatial dimensions")
    if "iw" in v and "ih" not in v:  # one dimension
        v |= {f"{kind}h": 1 for kind in "iok" if f"{kind}w" in v}
    batch = knobs.get("mb") or "0"
    if not is_count(batch):
        raise UsageError(f"--mb={batch} is no whole number")
    v["mb"] = int(batch) or v.get("mb", 0) or _PREFIX_MB
    for name in ("ic", "ih", "kh"):
        if name not in v:
            raise UsageError(f"{problem!r} has no {name}")
    for kind in "iokspd":
        if f"{kind}h" in v and f"{kind}w" not in v:
            v[f"{kind}w"] = v[f"{kind}h"]
    zero = [name for name, value in v.items() if not value and name[0] not in "pd"]
    if zero:
        raise UsageError(f"{problem!r}: {zero[0]} is 0; it is at least 1")
    return v


def _side(v: Mapping[str, int], side: str, problem: str) -> tuple[int, int, int, int, int]:
    """Stride, dilation as vkconv counts it, padding before and after, and the size of the output, of one side."""
    size, stride, step = v[f"i{side}"], v.get(f"s{side}", 1), v.get(f"d{side}", 0) + 1
    extent = step * (v[f"k{side}"] - 1) + 1
    if f"o{side}" not in v:
        pad = v.get(f"p{side}", 0)
        return stride, step, pad, pad, (size + 2 * pad - extent) // stride + 1
    out = v[f"o{side}"]
    needs = (out - 1) * stride + extent - size
    before = v.get(f"p{side}", max(0, needs) // 2)
    after = max(0, needs - before)
    if (size + before + after - extent) // stride + 1 != out:
        made = (size + before + after - extent) // stride + 1
        raise UsageError(f"{problem!r}: o{side} is {out}, and the sizes make {made}")
    return stride, step, before, after, out


def _conv(problem: str, knobs: Mapping[str, str]) -> str:
    v = _numbers(problem, knobs)
    if "oc" not in v:
        raise UsageError(f"{problem!r} has no oc")
    (sh, dh, top, bottom, _), (sw, dw, left, right, _) = (_side(v, side, problem) for side in "hw")
    conv = Conv(
        n=v["mb"],
        c_in=v["ic"],
        h=v["ih"],
        w=v["iw"],
        c_out=v["oc"],
        kernel=(v["kh"], v["kw"]),
        stride=(sh, sw),
        padding=(top, left, bottom, right),
        dilation=(dh, dw),
        groups=v.get("g", 1),
        last=_is_last(knobs, "stag", "dtag"),
        w_last="g" not in v and _is_last(knobs, "wtag"),
    )
    if found := conv.problem():
        raise UsageError(f"{problem!r}: {found}")
    (text,) = conv.calls(_direction(knobs))
    biased = knobs.get("dir", "FWD_B") == "FWD_B"
    return text.removesuffix(",dtype=f32") + (f",b={v['oc']}" if biased else "")


def _is_last(knobs: Mapping[str, str], *tags: str) -> bool:
    return all(knobs.get(tag) in _CHANNELS_LAST for tag in tags)


def _deconv(problem: str, knobs: Mapping[str, str]) -> str:
    v = _numbers(problem, knobs)
    if "oc" not in v:
        raise UsageError(f"{problem!r} has no oc")
    if _direction(knobs) != FORWARD:
        raise UsageError("of --deconv vkconv takes the forward directions")
    pads, strides, steps, more = [], [], [], []
    for side in "hw":
        stride, step = v.get(f"s{side}", 1), v.get(f"d{side}", 0) + 1
        full = (v[f"i{side}"] - 1) * stride + step * (v[f"k{side}"] - 1) + 1
        out = v.get(f"o{side}", full - 2 * v.get(f"p{side}", 0))
        before = v.get(f"p{side}", max(0, full - out) // 2)
        after = full - out - before
        pads.append((before, max(0, after)))
        more.append(max(0, -after))
        strides.append(stride)
        steps.append(step)
    groups = v.get("g", 1)
    w = (v["ic"], v["oc"] // groups, v["kh"], v["kw"])
    text = f"conv_transpose2d:x={shape_str((v['mb'], v['ic'], v['ih'], v['iw']))},w={shape_str(w)}"
    text += f",s={shape_str(strides)},p={shape_str((pads[0][0], pads[1][0], pads[0][1], pads[1][1]))}"
    text += f",d={shape_str(steps)}" + (f",op={shape_str(more)}" if any(more) else "")
    text += f",g={groups}" if groups > 1 else ""
    return text + (f",b={v['oc']}" if knobs.get("dir", "FWD_B") == "FWD_B" else "")


def _pool(problem: str, knobs: Mapping[str, str]) -> str:
    kinds = {"max": "max", "pooling_max": "max", "avg_np": "avg", "avg_p": "avg,cip=1"}
    kind = kinds.get(knobs.get("alg", "max").lower())
    if kind is None or _direction(knobs) != FORWARD:
        raise UsageError(f"of --pool vkconv takes forward directions and --alg={', '.join(kinds)}")
    v = _numbers(problem, knobs)
    (sh, dh, top, bottom, _), (sw, dw, left, right, _) = (_side(v, side, problem) for side in "hw")
    n, c, h, w = (v[name] for name in ("mb", "ic", "ih", "iw"))
    last = _is_last(knobs, "tag")
    text = f"pool2d:x={shape_str((n, h, w, c) if last else (n, c, h, w))},kind={kind},k={v['kh']}x{v['kw']},s={sh}x{sw}"
    return f"{text},p={shape_str((top, left, bottom, right))},d={dh}x{dw}" + ",layout=NHWC" * last


def _matmul(problem: str, knobs: Mapping[str, str]) -> str:
    shapes = problem.partition("n")[0].rstrip("_").split(":")
    if len(shapes) not in (2, 3):
        raise UsageError(f"{problem!r} is no problem of --matmul; it is written as 10x30:30x20")
    a, b = (parse_shape(shape) for shape in shapes[:2])
    return f"matmul:a={shape_str(a)},b={shape_str(b)}"


def _reduction(problem: str, knobs: Mapping[str, str]) -> str:
    names = {"sum": "sum", "max": "max", "min": "min", "mul": "prod", "mean": "mean"}
    name = names.get(knobs.get("alg", "sum").lower().removeprefix("reduction_"))
    source, colon, target = problem.partition("n")[0].rstrip("_").partition(":")
    if name is None or not colon:
        known = ", ".join(names)
        raise UsageError(f"{problem!r}: --reduction is written as 1x2x3:1x1x3, and vkconv takes --alg={known}")
    x, y = parse_shape(source), parse_shape(target)
    if len(x) != len(y) or any(b not in (a, 1) for a, b in zip(x, y, strict=True)):
        raise UsageError(f"{problem!r}: {target} is no reduction of {source}")
    axes = [i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b]
    if not axes:
        raise UsageError(f"{problem!r} reduces nothing")
    return f"reduce:x={source},op={name},axes={shape_str(axes)}"


def _softmax(problem: str, knobs: Mapping[str, str]) -> str:
    if _direction(knobs) != FORWARD:
        raise UsageError("of --softmax vkconv takes the forward directions")
    x = parse_shape(problem.partition("n")[0].rstrip("_"))
    log = "LOG" in knobs.get("alg", "SOFTMAX").upper()
    return f"softmax:x={shape_str(x)},axis={knobs.get('axis', '1')}" + ",log=1" * log


_DRIVERS: Mapping[str, Callable[[str, Mapping[str, str]], str]] = {
    "conv": _conv,
    "deconv": _deconv,
    "pool": _pool,
    "matmul": _matmul,
    "reduction": _reduction,
    "softmax": _softmax,
}


def _direction(knobs: Mapping[str, str]) -> int:
    text = knobs.get("dir", "FWD_B")
    if text not in _DIRECTIONS:
        raise UsageError(f"--dir={text} is none{did_you_mean(text, _DIRECTIONS)}; {', '.join(_DIRECTIONS)}")
    return _DIRECTIONS[text]
