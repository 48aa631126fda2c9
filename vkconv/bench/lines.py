"""Lines of other tools as call strings: MIOpenDriver, ckProfiler, benchdnn, llama.cpp's test-backend-ops and PyTorch's
profiler."""

from vkconv.bench import benchdnn, ckprofiler, ggml, miopen, miopen_more, torch_shapes
from vkconv.core import UsageError

_READERS = (
    (miopen_more.is_line, miopen_more.calls),  # before those of convolutions, which take any line with the tool's name
    (miopen.is_miopen, miopen.miopen_calls),
    (ckprofiler.is_line, ckprofiler.calls),
    (benchdnn.is_line, benchdnn.calls),
    (ggml.is_line, ggml.calls),
    (torch_shapes.is_line, torch_shapes.calls),
)
KINDS = (
    "MIOpenDriver (conv -n 1 -c 3 ...), ckProfiler (grouped_conv_bwd_weight 0 2 ...), benchdnn (--conv "
    "mb1ic16ih14oc32oh14kh3ph1), llama.cpp (MUL_MAT(...)) or PyTorch's profiler (aten::mm [[8, 4], [4, 2]])"
)


def is_line(text: str) -> bool:
    """True for a text that begins as a line of a tool that is known."""
    return any(recognises(text) for recognises, _ in _READERS)


def line_calls(text: str) -> list[tuple[str, str]]:
    """The calls of a line, and a note for each on what of the line is not in it (empty: all is).

    Raises UsageError for a line of no known tool, or naming what vkconv does not take of it.
    """
    for recognises, read in _READERS:
        if recognises(text):
            return read(text)
    raise UsageError(f"{text!r} is no line of {KINDS}")


def one_call(text: str) -> str:
    """The call string of a line that stands for one call; UsageError for several."""
    calls = [call for call, _ in line_calls(text)]
    if len(calls) > 1:
        raise UsageError(f"{text!r} stands for {len(calls)} calls; give one of them: {', '.join(calls)}")
    return calls[0]
