"""The kernels of shaders/movement."""

from vkconv.kernel import Kernel, constants, fields, reads, updates, writes
from vkconv.shaders.common import WALK

# The words that are written where an index is out of range.
OUTSIDE = (*fields("uint", "outside_low"), *fields("uint", "outside_high", when="DTYPE_i64"))

GATHER = Kernel(
    "gather",
    bindings=(
        reads("ELEM x"),
        reads("int indices"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "n_indices"),
        *fields("uint", "n_axis"),
        *fields("uint", "inner"),
        *OUTSIDE,
    ),
    constants=(
        *constants("uint", ITEMS=1),
        *constants("bool", WIDE=False),  # 64-bit indices, read as two words
    ),
)

GATHER_ELEMENTS = Kernel(
    "gather_elements",
    bindings=(
        reads("ELEM x"),
        reads("int indices"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total n_axis axis_stride"),
        *OUTSIDE,
        *fields("uint", "n[8]"),
        *fields("uint", "x_stride[8]"),  # 0 along the axis
    ),
    constants=(
        *constants("bool", WIDE=False),
        *constants("uint", RANK=1),
    ),
)

GATHER_ND = Kernel(
    "gather_nd",
    bindings=(
        reads("ELEM x"),
        reads("int indices"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total inner tuples batch_stride"),
        *OUTSIDE,
        *fields("uint", "n[8]"),
        *fields("uint", "x_stride[8]"),
    ),
    constants=(
        *constants("bool", WIDE=False),
        *constants("uint", DEPTH=1),  # indices in a tuple
    ),
)

NONZERO_COUNT = Kernel(
    "nonzero_count",
    bindings=(
        reads("ELEM x"),
        writes("uint counts"),
    ),
    push=(*fields("uint", "total run runs"),),  # elements in all, of a run, and how many runs
)

NONZERO_PLACE = Kernel(
    "nonzero_place",
    bindings=(
        reads("ELEM x"),
        reads("uint counts"),
        writes("uvec2 y"),
        writes("uvec2 count"),
    ),
    push=(
        *fields("uint", "total run runs"),
        *fields("uint", "n[8]"),
    ),
    constants=(*constants("uint", RANK=1),),
)

ONE_HOT = Kernel(
    "one_hot",
    bindings=(
        reads("uint indices"),
        reads("ELEM values"),
        writes("ELEM y"),
    ),
    push=(*fields("uint", "total depth inner"),),
    constants=(*constants("uint", INDEX=0),),
    moves=True,
)

PAD = Kernel(
    "pad",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "fill"),
        *fields("uint", "fill_high", when="DTYPE_i64"),
        *fields("uint", "n[8]"),
        *fields("int", "x_n[8]"),
        *fields("int", "before[8]"),
    ),
    constants=(
        *WALK,
        *constants("uint", MODE=0),  # 0 constant, 1 reflect, 2 edge, 3 wrap
    ),
)

REVERSE_SEQUENCE = Kernel(
    "reverse_sequence",
    bindings=(
        reads("ELEM x"),
        reads("int lengths"),
        writes("ELEM y"),
    ),
    push=(*fields("uint", "total n0 n1 inner"),),
    constants=(
        *constants("bool", WIDE=False),  # 64-bit lengths
        *constants("bool", TIME_FIRST=True),
    ),
    moves=True,
)

SCATTER_ELEMENTS = Kernel(
    "scatter_elements",
    bindings=(
        reads("int indices"),
        reads("ELEM updates"),
        updates("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "steps from_step"),  # updates of an invocation, and from one to the next
        *fields("uint", "n_axis axis_stride"),
        *fields("uint", "n[8]"),
        *fields("uint", "from_stride[8]"),
        *fields("uint", "y_stride[8]"),  # 0 along the axis
    ),
    constants=(
        *constants("bool", WIDE=False),
        *constants("uint", RANK=1, COMBINE=0),
    ),
)

SCATTER_ND = Kernel(
    "scatter_nd",
    bindings=(
        reads("int indices"),
        reads("ELEM updates"),
        updates("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "steps"),  # tuples that an invocation takes
        *fields("uint", "inner"),
        *fields("uint", "n[8]"),
        *fields("uint", "y_stride[8]"),
    ),
    constants=(
        *constants("bool", WIDE=False),
        *constants("uint", DEPTH=1),  # indices in a tuple
        *constants("uint", COMBINE=0),
    ),
)

TRILU = Kernel(
    "trilu",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total rows columns"),
        *fields("int", "k"),
    ),
    constants=(*constants("bool", UPPER=True),),
    moves=True,
)

TENSOR_SCATTER = Kernel(
    "tensor_scatter",
    bindings=(
        reads("int at"),
        reads("ELEM updates"),
        updates("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "n_rows n_axis inner"),
        *fields("uint", "outer_of_batch"),  # what lies before the axis, of a batch
    ),
    constants=(
        *constants("uint", ITEMS=1),
        *constants("bool", WIDE=False, WHOLE=False, CIRCULAR=False),  # WHOLE: one first row for all batches
    ),
)
