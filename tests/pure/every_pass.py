"""Small networks in which, taken together, every pass has something to do."""

import numpy as np
from graph_kit import f32, make_graph

from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.commands import Launch
from vkconv.plan.passes import ELIDE_COPIES, PASSES
from vkconv.plan.planner import Options, plan, rewritten

OPTIONAL = [entry.name for entry in PASSES if not entry.required]

FIRST, LAST = {"perm": (0, 3, 1, 2)}, {"perm": (0, 2, 3, 1)}
_PADDED = {"padding": (1,)}
_NUMBERS = {"one": 1, "two": 2, "three": 3, "six": 6, "half": 0.5, "root_2": 2**0.5, "eps": 1e-5, "quarter": 0.25}
_CHANNELS = {
    **{name: f32(4, low=0.75, seed=seed) for seed, name in enumerate(("factor", "scale", "var"), 1)},
    **{name: f32(4, seed=seed) / 4 for seed, name in enumerate(("shift", "mean", "slope", "b"), 11)},
}
CONSTANTS = {
    **_CHANNELS,
    **{f"{name}s": array.reshape(4, 1, 1) for name, array in _CHANNELS.items()},  # along the channels of an image
    **{name: np.array(number, np.float32) for name, number in _NUMBERS.items()},
    "w": f32(4, 4, 3, 3, seed=21) / 6,
    "w_1x1": f32(4, 8, 1, 1, seed=22) / 3,
    "w_square": f32(4, 4, 1, 1, seed=25) / 2,
    "w_more": f32(8, 4, 1, 1, seed=26) / 2,
    "deep": f32(8, 1, 3, 3, seed=27) / 3,
    "d_4": f32(4, 1, 3, 3, seed=28) / 3,
    "k": f32(4, 6, seed=23) / 2,
    "bias": f32(6, seed=24),
    "index": np.array(0, np.int64),
}

NETWORKS = {
    "image": make_graph(
        {"x": (1, 4, 9, 8)},
        [
            ("pad", "x", "around", {"pads": (0, 0, 1, 0, 0, 0, 1, 2)}),
            ("conv2d", "around w b", "c"),
            ("batch_norm", "c scale shift mean var", "normal"),
            ("mul", "normal factors", "scaled"),
            ("add", "scaled shifts", "shifted"),
            ("add", "shifted x", "sum"),
            ("relu", "sum", "r"),
            ("conv2d", "r w", "d", _PADDED),
            ("prelu", "d slopes", "p"),
            ("conv2d", "p w", "e", _PADDED),
            ("sigmoid", "e", "gate"),
            ("mul", "gate two", "q"),
            ("pool2d", "q", "pool", {"kind": "max", "kernel": (3, 3), "padding": (1,)}),
            ("batch_norm", "pool scale shift mean var", "n2"),
            ("mul", "n2 factors", "t"),
            ("add", "t three", "t3"),
            ("clip", "t3", "t6", {"a": 0.0, "b": 6.0}),
            ("mul", "t t6", "tt"),
            ("div", "tt six", "hard"),
            ("sigmoid", "hard", "soft"),
            ("mul", "hard soft", "u"),
            ("mul", "u one", "v"),
            ("tanh", "v", "squashed"),
            ("sub", "squashed x", "z"),
            ("concat", "z q", "y", {"axis": 1}),
            ("conv2d", "y w_1x1 b", "f"),
            ("reduce", "f", "pooled", {"op": "mean", "axes": (2, 3)}),
        ],
        "y pooled",
        CONSTANTS,
    ),
    "pre-activation": make_graph(
        {"x": (1, 4, 9, 8)},
        [("mul", "x factors", "s"), ("relu", "s", "r"), ("conv2d", "r w_square", "y")],
        "y",
        CONSTANTS,
    ),
    "squeeze and excite": make_graph(
        {"x": (1, 8, 12, 10)},
        [
            ("conv2d", "x deep", "m", {"groups": 8, "padding": (1,), "act": "relu6"}),
            ("reduce", "m", "m_means", {"op": "mean", "axes": (2, 3)}),
            ("conv2d", "m_means w_1x1 b", "less", {"act": "relu"}),
            ("conv2d", "less w_more", "gate8", {"act": "hard_sigmoid", "act_a": 1 / 6, "act_b": 0.5}),
            ("mul", "m gate8", "m_scaled"),
            ("conv2d", "m_scaled w_1x1", "less_deep"),
            ("conv2d", "less_deep d_4", "deep_again", {"groups": 4, "padding": (1,), "act": "relu"}),
            ("conv2d", "deep_again w_square b", "narrow"),
            ("conv2d", "narrow w_more", "wide8", {"act": "relu6"}),
            ("conv2d", "wide8 deep", "wide_again", {"groups": 8, "padding": (1,), "act": "relu6"}),
            ("conv2d", "wide_again w_1x1 b", "y"),
            ("conv2d", "x deep", "apart", {"groups": 8, "act": "relu6"}),
            ("conv2d", "apart w_1x1 b", "other"),
        ],
        "y other",
        CONSTANTS,
    ),
    "dense block": make_graph(
        {"x": (1, 4, 8, 8)},
        [
            ("conv2d", "x w b", "a", _PADDED),
            ("concat", "x a", "xa", {"axis": 1}),
            ("conv2d", "xa w_1x1 b", "c"),
            ("concat", "x a c", "xac", {"axis": 1}),
            ("tanh", "xac", "y"),
        ],
        "y",
        CONSTANTS,
    ),
    "tokens": make_graph(
        {"x": (2, 6, 4)},
        [
            ("reduce", "x", "mu", {"op": "mean", "axes": (-1,)}),
            ("sub", "x mu", "centred"),
            ("pow", "centred two", "squares"),
            ("reduce", "squares", "variance", {"op": "mean", "axes": (-1,)}),
            ("add", "variance eps", "v_eps"),
            ("sqrt", "v_eps", "deviation"),
            ("div", "centred deviation", "n"),
            ("mul", "n scale", "ns"),
            ("add", "ns shift", "h"),
            ("mul", "h quarter", "query"),
            ("transpose", "h", "key", {"perm": (0, 2, 1)}),
            ("matmul", "query key", "scores"),
            ("slice", "scores", "of_one", {"starts": (0,), "ends": (1,), "axes": (0,)}),
            ("tanh", "of_one", "squashed"),
            ("softmax", "scores", "p", {"axis": -1}),
            ("matmul", "p h", "mixed"),
            ("matmul", "mixed k", "wide"),
            ("add", "wide bias", "wide_b"),
            ("div", "wide_b root_2", "g"),
            ("erf", "g", "g_erf"),
            ("add", "g_erf one", "g_one"),
            ("mul", "wide_b g_one", "g_both"),
            ("mul", "g_both half", "gelu"),
            ("transpose", "gelu", "turned", {"perm": (1, 0, 2)}),
            ("transpose", "turned", "y", {"perm": (0, 2, 1)}),
            ("reduce", "gelu", "largest", {"op": "max", "axes": (2,)}),
            ("transpose", "largest", "row", {"perm": (0, 2, 1)}),
        ],
        "y turned row squashed",
        CONSTANTS,
    ),
    "heads": make_graph(
        {"x": (2, 2, 9, 4)},
        [
            ("transpose", "x", "key", {"perm": (0, 1, 3, 2)}),
            ("matmul", "x key", "scores"),
            ("div", "scores two", "scaled"),
            ("softmax", "scaled", "p", {"axis": -1}),
            ("matmul", "p x", "y"),
        ],
        "y",
        CONSTANTS,
    ),
    "shifted windows": make_graph(
        {"x": (1, 8, 6, 4)},
        [
            ("slice", "x", "below", {"starts": (5,), "ends": (8,), "axes": (1,)}),
            ("slice", "x", "above", {"starts": (0,), "ends": (5,), "axes": (1,)}),
            ("concat", "below above", "rolled", {"axis": 1}),
            ("matmul", "rolled k bias", "m"),
            ("mul", "m bias", "scaled"),
            ("slice", "scaled", "even", {"starts": (0,), "ends": (8,), "axes": (1,), "steps": (2,)}),
            ("slice", "scaled", "odd", {"starts": (1,), "ends": (8,), "axes": (1,), "steps": (2,)}),
            ("concat", "even odd", "merged", {"axis": 3}),
            ("gather", "merged index", "y", {"axis": 0}),
        ],
        "y",
        CONSTANTS,
    ),
    "one product": make_graph(
        {"x": (1, 6, 48)},
        [
            ("split", "x", "q k v", {"axis": 2, "num_outputs": 3}),
            *(("reshape", name, f"{name}4", {"shape": (1, 6, 4, 4)}) for name in "qkv"),
            *(("transpose", f"{name}4", f"{name}t", {"perm": (0, 2, 1, 3)}) for name in "qkv"),
            ("matmul", "qt kt", "scores", {"trans_b": True}),
            ("matmul", "scores vt", "y"),
        ],
        "y",
    ),
    "channels last": make_graph(
        {"x": (1, 9, 8, 4)},
        [
            ("transpose", "x", "first", FIRST),
            ("conv2d", "first w", "c", _PADDED),
            ("transpose", "c", "last", LAST),
            ("tanh", "last", "t"),
            ("transpose", "t", "again", FIRST),
            ("conv2d", "again w b", "d", _PADDED),
            ("transpose", "d", "y", LAST),
        ],
        "y",
        CONSTANTS,
    ),
}


def launches(graph, device, **options):
    """How many launches a run of the graph takes."""
    return sum(isinstance(command, Launch) for command in plan(graph, device, Options(**options)).plan.run)


def acting(graph, device):
    """Names of the optional passes that have something to do in a graph on a device."""
    found, before = [], bind(graph, OPS).nodes

    def seen(entry, after):
        nonlocal before
        if after.nodes != before and not entry.required:
            found.append(entry.name)
        before = after.nodes

    rewritten(bind(graph, OPS), device, Options(), seen)
    with_copies = launches(graph, device, skip_passes=(ELIDE_COPIES,))
    return found + [ELIDE_COPIES] * (launches(graph, device) < with_copies)
