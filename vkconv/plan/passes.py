"""The passes: everything that rewrites a bound graph before its routes are chosen, in order, under names.

Each keeps what the graph computes, so that any one can be left out, but for those that are required.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from functools import partial

from vkconv.call import HALVES
from vkconv.core import DType, UsageError, did_you_mean
from vkconv.device import Device, target_of
from vkconv.ops.core.base import Op
from vkconv.ops.laid_out import LAYOUTS
from vkconv.plan import folding, moving, recognise
from vkconv.plan.bound import BoundGraph
from vkconv.plan.bytes import widen_bytes
from vkconv.plan.chains import fuse_chain
from vkconv.plan.concats import ConcatNesting
from vkconv.plan.early import cut_early
from vkconv.plan.fuse_attention import AttentionFusion
from vkconv.plan.fuse_prologue import PrologueFusion
from vkconv.plan.fuse_reduce import ReduceFusion
from vkconv.plan.fuse_separable import InvertedResidualFusion, SeparableFusion
from vkconv.plan.fuse_squeeze_excite import SqueezeExciteFusion
from vkconv.plan.fusion import Chooser, Fusion
from vkconv.plan.laid_out import spell_layouts
from vkconv.plan.layouts import assign_layouts
from vkconv.plan.parts import in_parts
from vkconv.plan.precision import checked_type, checked_types, in_types
from vkconv.plan.rewrite import Rewriter, Rule
from vkconv.plan.transfers import Staging
from vkconv.plan.whole_numbers import counting_nodes


@dataclasses.dataclass(frozen=True)
class Context:
    """What passes may ask of the plan to be.

    ``ops`` is the registry. ``device`` is what is planned for. ``choose`` is the planner's choice of a route. ``given``
    has the routes (None: parameters) that the caller sets, by op or ``node:NAME``. ``dtype``, ``dtypes``, ``io_dtype``,
    ``staging`` and ``pieces`` are those of `Options`. ``caches`` are inputs that stay on the device. ``remarks`` is
    where passes leave what there is to say of a node, by name.
    """

    ops: Mapping[str, Op]
    device: Device
    choose: Chooser
    given: Mapping[str, str | None]
    dtype: DType | str | None = None
    dtypes: Mapping[str, DType | str] = dataclasses.field(default_factory=dict)
    io_dtype: DType | str | None = None
    staging: Staging = None
    pieces: int | None = None
    caches: Collection[str] = ()
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)


Transform = Callable[[BoundGraph, Context], BoundGraph]


@dataclasses.dataclass(frozen=True)
class Pass:
    """A pass under its name, with what it does in a line.

    ``run`` gives the graph after it: the same outputs under the same names. It is None for what lowering does on the
    programs of chosen routes. ``required`` passes cannot be left out.
    """

    name: str
    doc: str
    run: Transform | None
    required: bool = False


def _rule(rule: Rule, doc: str) -> Pass:
    """The pass that applies a rule to every node once, under the rule's name."""
    return Pass(rule.__name__, doc, lambda graph, context: Rewriter(graph, context.ops, context.device).run(rule))


def _assign_layouts(graph: BoundGraph, context: Context) -> BoundGraph:
    made, remarks = assign_layouts(graph, context.ops, target_of(context.device))
    context.remarks.update(remarks)
    return made


def _spell_layouts(graph: BoundGraph, context: Context) -> BoundGraph:
    return spell_layouts(graph, context.ops, LAYOUTS)


def _fold_affine(graph: BoundGraph, context: Context) -> BoundGraph:
    in_f16 = DType.F16 in (context.dtype, *context.dtypes.values())
    rule = partial(folding.fold_affine, in_f16=in_f16)
    return Rewriter(graph, context.ops, context.device).run(rule)


def _turn_slices(graph: BoundGraph, context: Context) -> BoundGraph:
    return moving.SliceTurning().run(graph, context.ops, context.device)


def _split_matmul(graph: BoundGraph, context: Context) -> BoundGraph:
    return in_parts(graph, context.ops, context.device)


def _nest_concats(graph: BoundGraph, context: Context) -> BoundGraph:
    return ConcatNesting().run(graph, context.ops)


def _widen_bytes(graph: BoundGraph, context: Context) -> BoundGraph:
    made, remarks = widen_bytes(graph, context.ops, context.device)
    context.remarks.update(remarks)
    return made


def _fuse_attention(graph: BoundGraph, context: Context) -> BoundGraph:
    return _fused(graph, context, AttentionFusion(context.choose, context.given, context.dtype))


def _fuses(fusion: type[Fusion]) -> Transform:
    """What a pass does that makes one node of several."""
    return lambda graph, context: _fused(graph, context, fusion(context.choose, context.given))


_fuse_reduce = _fuses(ReduceFusion)
_fuse_squeeze_excite = _fuses(SqueezeExciteFusion)
_fuse_prologue = _fuses(PrologueFusion)
_fuse_inverted_residual = _fuses(InvertedResidualFusion)
_fuse_separable = _fuses(SeparableFusion)


def _fused(graph: BoundGraph, context: Context, fusion: Fusion) -> BoundGraph:
    made = fusion.run(graph, context.ops)
    context.remarks.update(fusion.remarks)
    return made


def _cut_early(graph: BoundGraph, context: Context) -> BoundGraph:
    how = context.staging, context.pieces, context.given, context.caches
    made, remarks = cut_early(graph, context.ops, context.device, *how)
    context.remarks.update(remarks)
    return made


def _set_types(graph: BoundGraph, context: Context) -> BoundGraph:
    if context.dtype is None and not context.dtypes and context.io_dtype is None:
        return graph
    io_dtype = checked_type(context.io_dtype, "inputs and outputs")
    nodes = [f"node:{node.name}" for node in graph.nodes]
    dtype, dtypes = checked_types(context.dtype, context.dtypes, nodes, context.ops)
    counting = counting_nodes(graph, context.ops) if dtype in HALVES else frozenset()
    context.remarks.update(dict.fromkeys(counting, "in f32: whole numbers, on their way back to integers"))
    return in_types(graph, context.ops, context.device, dtype, dtypes, io_dtype, counting)


ELIDE_COPIES = "elide_copies"

PASSES: tuple[Pass, ...] = (
    Pass(
        "spell_layouts",
        "Put transposes around what is in a layout of its own, in a graph of several nodes.",
        _spell_layouts,
        required=True,
    ),
    Pass("assign_layouts", "Move transposes to the borders of regions that work in any layout.", _assign_layouts),
    _rule(folding.drop_neutral, "Drop x * 1, x / 1, x + 0, x - 0, x ** 1, and moves that leave all where it was."),
    _rule(moving.slice_for_gather, "Make a slice of a gather at constant indices that are evenly spaced."),
    _rule(moving.pad_for_roll, "Make one pad that wraps around of slices and concats that roll a value."),
    _rule(moving.transpose_for_phases, "Make a transpose of a concat of every second element and those between."),
    _rule(moving.join_transposes, "Make one transpose, or none, of two in a row, also in another shape."),
    _rule(folding.reshape_for_transpose, "Make a reshape of a transpose that moves nothing but dimensions of 1."),
    _rule(folding.fold_pad, "Let a convolution pad its input with zeros itself."),
    _rule(folding.fold_batch_norm, "Fold a batch normalization into the weights of the convolution before it."),
    _rule(folding.fold_scale, "Fold a factor per channel into the weights of the convolution before it."),
    _rule(folding.fold_bias, "Fold a constant summand into the bias of the convolution or matmul before it."),
    Pass(
        "fold_affine", "Fold further constants per channel or column into weights and bias before them.", _fold_affine
    ),
    _rule(folding.fold_into_batch_norm, "Fold a factor or summand per channel into the batch normalization before it."),
    _rule(folding.spell_batch_norm, "Make a batch normalization a multiply and an add, which a chain can take."),
    _rule(recognise.recognise_hard_swish, "Make one hard_swish of the operations that spell it."),
    _rule(recognise.recognise_silu, "Make one silu of x * sigmoid(x)."),
    _rule(recognise.recognise_gelu, "Make one gelu or gelu_tanh of the operations that spell it."),
    _rule(recognise.recognise_layer_norm, "Make one layer_norm of the operations that spell it."),
    _rule(folding.fold_alpha, "Fold a constant factor of an operand into the alpha of the matmul that reads it."),
    _rule(folding.fold_transpose, "Let a matmul read an operand transposed in place of transposing it."),
    Pass("turn_slices", "Transpose at once what slices take apart and transposes turn alike.", _turn_slices),
    Pass("fuse_attention", "Make one attention of products and softmax, where that pays.", _fuse_attention),
    _rule(folding.fuse_residual, "Add a residual in the launch of the convolution or matmul before it."),
    _rule(folding.fuse_activation, "Apply an activation in the launch of the convolution or matmul before it."),
    _rule(folding.fuse_prelu, "Apply a prelu of constant slope in the launch of the convolution or matmul before it."),
    _rule(folding.fuse_rescale, "Apply a constant factor or summand behind an activation in the same launch."),
    _rule(fuse_chain, "Make one launch of elementwise operations in a row."),
    Pass("nest_concats", "Let a concat read the one that joins its first parts.", _nest_concats),
    Pass("split_matmul", "Split a matmul by columns where no binding holds its weights.", _split_matmul, required=True),
    Pass(
        "widen_bytes",
        "Compute in i32 what no kernel has in bytes.",
        _widen_bytes,
        required=True,
    ),
    Pass("fuse_reduce", "Reduce what a convolution or matmul makes in its launch, where that pays.", _fuse_reduce),
    Pass("set_types", "Store floats in the types that are asked for.", _set_types, required=True),
    Pass(
        "fuse_squeeze_excite", "Make one node of the gate of squeeze-and-excite, where that pays.", _fuse_squeeze_excite
    ),
    Pass("fuse_prologue", "Scale, shift and activate in the launch of the convolution behind it.", _fuse_prologue),
    Pass(
        "fuse_inverted_residual",
        "Make one launch of a 1x1, a depthwise and another 1x1 convolution, where that pays.",
        _fuse_inverted_residual,
    ),
    Pass("fuse_separable", "Make one launch of a depthwise and a 1x1 convolution, where that pays.", _fuse_separable),
    Pass(
        "cut_early",
        "Run the first nodes by images, as those are streamed, where that pays.",
        _cut_early,
    ),
    Pass(ELIDE_COPIES, "Write parts of a concat in place, read slices and splits where they lie.", None),
)


def skipped_passes(names: Collection[str]) -> frozenset[str]:
    """The names of passes to leave out. UsageError for a name that no pass has, or a required one."""
    optional = [entry.name for entry in PASSES if not entry.required]
    wanted = frozenset((names,) if isinstance(names, str) else names)
    for name in sorted(wanted.difference(optional)):
        required = any(entry.name == name for entry in PASSES)
        problem = "is required" if required else f"does not exist{did_you_mean(name, optional)}"
        raise UsageError(f"pass {name!r} {problem}; those that can be left out are {', '.join(optional)}")
    return wanted


def run_passes(
    graph: BoundGraph,
    context: Context,
    skipped: Collection[str] = (),
    seen: Callable[[Pass, BoundGraph], None] | None = None,
) -> BoundGraph:
    """The graph after every pass but the ``skipped`` ones. ``seen`` is told of the graph after each."""
    for entry in PASSES:
        if entry.run is not None and entry.name not in skipped:
            graph = entry.run(graph, context)
            if seen is not None:
                seen(entry, graph)
    return graph
