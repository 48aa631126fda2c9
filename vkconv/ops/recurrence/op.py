"""recurrence: the steps of LSTM, GRU and RNN cells, behind the product of the inputs, which is one matmul for all."""

import numpy as np

from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.tolerance import of_error
from vkconv.ops.recurrence.cells import CELLS, DIRECTIONS, Measure, functions_of, run
from vkconv.ops.recurrence.routes import ROUTES


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    cell = CELLS[shapes.one_of("recurrence", attrs, "cell", CELLS)]
    backwards = shapes.one_of("recurrence", attrs, "direction", DIRECTIONS)
    functions = functions_of(attrs)
    x, r = (shapes.float_operand(specs, name, "recurrence") for name in ("x", "r"))
    shapes.one_float_dtype("recurrence", x, r, specs.get("initial"), specs.get("extra"))
    directions = 2 if backwards == "bidirectional" else 1
    hidden = r.dims[1] if len(r.dims) == 3 else 0
    if not hidden or r.dims != (directions, hidden, cell.gates * hidden):
        raise GraphError(
            f"recurrence: r is {shape_str(r.dims)}; of {attrs['cell']} it is {directions}xHx{cell.gates}H, for H units"
        )
    if len(x.dims) != 3 or not x.size or x.dims[2] != directions * cell.gates * hidden:
        raise GraphError(
            f"recurrence: x is {shape_str(x.dims)}; it is TxNx{directions * cell.gates * hidden} for T steps of N "
            f"sequences, both at least 1, with r {shape_str(r.dims)}"
        )
    steps, batch, _ = x.dims
    _wants(specs, "initial", (cell.parts, directions, batch, hidden))
    if cell.extra and (attrs["cell"] == "lstm" or attrs["linear_before_reset"]):
        _wants(specs, "extra", (directions, cell.extra * hidden))
    elif specs.get("extra") is not None:
        raise GraphError("recurrence: extra is of lstm, and of gru with linear_before_reset; leave it out")
    lengths = specs.get("lengths")
    if lengths is not None and (lengths.dtype is not DType.I32 or lengths.dims != (batch,)):
        raise GraphError(f"recurrence: lengths are {lengths}; of {batch} sequences they are {batch}:i32")
    clip = float(attrs["clip"])  # type: ignore[arg-type]
    if not 0 <= clip < np.inf:
        raise GraphError(f"recurrence: clip is {clip}; it is a number from 0, which clips nothing")
    canonical: Attrs = {
        **attrs,
        "functions": "-".join(name for name, _, _ in functions),
        "act_a": tuple(a for _, a, _ in functions),
        "act_b": tuple(b for _, _, b in functions),
    }
    y = TensorSpec((steps, directions, batch, hidden), x.dtype)
    return canonical, (y, TensorSpec((cell.parts, directions, batch, hidden), x.dtype))


def _wants(specs: Specs, name: str, dims: tuple[int, ...]) -> None:
    spec = specs.get(name)
    if spec is not None and spec.dims != dims:
        raise GraphError(f"recurrence: {name} is {shape_str(spec.dims)}; it is {shape_str(dims)}")


def _reference(call: Call, arrays: Arrays) -> Outputs:
    y, state = run(call, arrays)
    return [y.value, state.value]


def _terms(call: Call) -> int:
    return call.shape("r")[1] + 1


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    return _of(call, run(call, arrays)[0])


def _state_magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    return _of(call, run(call, arrays)[1])


def _of(call: Call, made: Measure) -> F64:
    """What every step's rounding comes to once the steps behind it took it through their gates."""
    return of_error(call, made.value, made.error, _terms(call))


def _flops(call: Call) -> int:
    steps, directions, batch, hidden = call.shape("y")
    return 2 * steps * batch * directions * hidden * call.shape("r")[2]


RECURRENCE = Op(
    "recurrence",
    (
        Operand("x"),
        Operand("r"),
        Operand("initial", optional=True),
        Operand("lengths", optional=True),
        Operand("extra", optional=True),
    ),
    _resolve,
    _reference,
    outputs=("y", "state"),
    attrs=(
        Attr("cell", "cell", str, "lstm"),
        Attr("direction", "dir", str, "forward"),
        Attr("functions", "functions", str, ""),
        Attr("act_a", "act_a", tuple[float, ...], ()),
        Attr("act_b", "act_b", tuple[float, ...], ()),
        Attr("clip", "clip", float, 0.0),
        Attr("linear_before_reset", "lbr", bool, False),
        Attr("input_forget", "input_forget", bool, False),
    ),
    routes=ROUTES,
    terms=_terms,
    magnitude=_magnitude,
    magnitudes={"state": _state_magnitude},
    flops=_flops,
    cases=(
        "recurrence:x=5x3x28,r=1x7x28",
        "recurrence:x=4x2x88,r=2x11x44,initial=2x2x2x11,lengths=2:i32,extra=2x33,dir=bidirectional",
        "recurrence:x=3x1x148,r=1x37x148,dir=reverse,clip=0.75,input_forget=1",
        "recurrence:x=5x3x21,r=1x7x21,cell=gru",
        "recurrence:x=4x3x78,r=2x13x39,initial=1x2x3x13,lengths=3:i32,cell=gru,dir=bidirectional",
        "recurrence:x=4x3x78,r=2x13x39,initial=1x2x3x13,extra=2x13,lengths=3:i32,cell=gru,dir=bidirectional,lbr=1",
        "recurrence:x=6x2x67,r=1x67x67,cell=rnn,dir=reverse,functions=relu",
        "recurrence:x=3x5x7,r=1x7x7,initial=1x1x5x7,cell=rnn,functions=scaled_tanh,act_a=1.5,act_b=0.5",
        "recurrence:x=2x3x20,r=1x5x20,functions=hard_sigmoid-softsign-affine,act_a=0.25x0x0.5,act_b=0.5x0x0.125",
        "recurrence:x=1x1x4,r=1x1x4",
    ),
    doc="The steps of a recurrent network (cell=lstm, gru or rnn) forwards, backwards or both. x (T, N, D G H) is the "
    "product of the inputs with their weights for D directions, G gates in ONNX's order and H units, biases added; r "
    "(D, H, G H) the recurrent weights, transposed; initial (1 or, of lstm, 2, D, N, H) the state before, 0 where left "
    "out; lengths (N) the steps of each sequence, behind which y is 0. extra is, of lstm, the peepholes (D, 3 H), of "
    "gru with lbr=1 the recurrent bias of the hidden gate (D, H). y (T, D, N, H) has h of every step, state h, and of "
    "lstm c, of the last. lbr is ONNX's linear_before_reset; functions=f-g-h with parameters act_a and act_b; clip "
    "bounds what gates sum, 0 leaves it.",
)
