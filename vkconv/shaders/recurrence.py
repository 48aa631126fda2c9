"""The kernels of shaders/recurrence."""

from vkconv.kernel import Kernel, constants, fields, reads, updates, writes

_PUSH = (
    *fields("uint", "steps batch hidden directions"),
    *fields("uint", "units"),  # of all sequences in all directions
    *fields("float", "clip_at"),
    *fields("float", "act_a[3] act_b[3]"),
)

_CELL = (
    *constants("uint", CELL=0),  # 0 LSTM, 1 GRU, 2 RNN
    *constants("uint", FUNCTION0=0, FUNCTION1=0, FUNCTION2=0),
    *constants("bool", REVERSED=False),  # the first direction runs backwards; a second one always does
    *constants("bool", HAS_LENGTHS=False, HAS_INITIAL=False, CLIP=False),
    *constants("bool", when="!GATED", HAS_EXTRA=False, INPUT_FORGET=False),
    *constants("uint", LANES=1),
)

_OPERANDS = (
    reads("ELEM x"),
    reads("ELEM r"),
    reads("int lengths"),
    reads("ELEM initial"),
)

RECURRENCE_STEP = Kernel(
    "recurrence_step",
    bindings=(
        *_OPERANDS,
        reads("ELEM extra", when="!GATED"),
        updates("float gated", when="GATED"),
        updates("ELEM y"),
        updates("ELEM state"),
    ),
    push=(*_PUSH, *fields("uint", "step_at")),
    constants=(*_CELL, *constants("uint", when="GATED", PHASE=0)),
)

RECURRENCE_SEQUENCE = Kernel(
    "recurrence_sequence",
    bindings=(*_OPERANDS, reads("ELEM extra"), writes("ELEM y"), writes("ELEM state")),
    push=_PUSH,
    constants=(
        *_CELL,
        *constants("bool", RESET_FIRST=False),  # of a GRU: its reset comes before the product
        *constants("uint", HIDDEN=1),
    ),
)
