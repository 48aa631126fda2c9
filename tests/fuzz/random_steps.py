"""What a random graph may grow by: a function of its `Maker` for each kind of node.

It picks the values that the node reads, draws its attributes and says how large what it writes may be; GraphError where
there is nothing that fits.
"""

import math

import numpy as np
from random_maker import CHANNELS, MOST_ELEMENTS, SIDES

from vkconv.core import GraphError


def unary(m):
    x = m.pick()
    op = m.rng.choice(m.theme.unary[not m.exact])
    x = x if m.exact else m.small(x)
    attrs = {"a": float(m.rng.choice((-3, -1, 0))), "b": float(m.rng.choice((0, 2, 6)))} if op == "clip" else {}
    m.put(op, {"x": x}, attrs, {"exp": 64.0}.get(op, max(6.0, m.most[x]) * 1.1))


def other(m, x):
    """A value or a constant that broadcasts with x."""
    shape = m.dims(x)
    partners = [v for v in m.recent() if m.dims(v) == shape]
    if partners and m.rng.random() < 0.5:
        return m.rng.choice(partners)
    channels = (*shape[1:2], *(1,) * (len(shape) - 2)) if len(shape) > 1 else (1,)
    return m.constant(m.rng.choice(((), (1,), shape, shape[-1:], channels, tuple(m.rng.choice((1, d)) for d in shape))))


def binary(m):
    x = m.small(m.pick())
    y = m.small(other(m, x))
    op = m.rng.choice(m.theme.binary)
    a, b = (x, y) if m.rng.random() < 0.7 else (y, x)
    m.put(op, {"a": a, "b": b}, {}, m.most[x] * m.most[y] if op == "mul" else m.most[x] + m.most[y])


def comparison(m):
    """Comparisons and choices, in exact graphs: a rounding would turn one."""
    if not m.exact:
        raise GraphError("compares only whole numbers")
    x = m.pick()
    y = other(m, x)
    (cond,) = m.put(m.rng.choice(("less", "equal", "greater_equal")), {"a": x, "b": y}, {})
    if m.rng.random() < 0.4:
        (cond,) = m.put("logical_not", {"x": cond}, {})
    if m.rng.random() < 0.4:
        m.put("cast", {"x": cond}, {"to": "f32"}, 1.0)
    else:
        m.put("where", {"cond": cond, "a": x, "b": y}, {}, max(m.most[x], m.most[y]))


def window(m, kernel):
    """Stride, padding and dilation for a kernel on an image."""
    padding = tuple(m.rng.randrange(max(1, k)) for k in (*kernel, *kernel))
    return {"stride": m.rng.choice(m.theme.strides), "dilation": m.rng.choice(m.theme.dilations), "padding": padding}


def weights(m, shape, fan_in):
    """Whole numbers of -1 to 1, or such that a sum of products is no larger than what it is made from."""
    return m.constant(shape, -1, 1, scale=1.0 if m.exact else 1.0 / max(1, fan_in))


def epilogue(m):
    return {"act": m.rng.choice(m.theme.acts[not m.exact]), "act_a": 0.25, "act_b": 0.5}


def conv2d(m):
    x = m.small(m.pick(4))
    _, c_in, *image = m.dims(x)
    kernel = m.rng.choice(m.theme.kernels)
    groups = m.rng.choice([g for g in range(1, c_in + 1) if c_in % g == 0] or [1]) if m.rng.random() < 0.5 else 1
    c_out = groups * m.rng.choice((1, 2, 3, 4, 5)) if groups > 1 else m.rng.choice(CHANNELS)
    fan_in = c_in // groups * math.prod(kernel)
    reads = {"x": x, "w": weights(m, (c_out, c_in // groups, *kernel), fan_in)}
    if m.rng.random() < 0.5:
        reads["b"] = m.constant((c_out,))
    attrs = {**window(m, kernel), "groups": groups, **epilogue(m)}
    most = (m.most[x] * fan_in if m.exact else m.most[x]) + 2
    if m.rng.random() < 0.15:
        op = m.rng.choice(("sum", "max", "min") if m.exact else ("sum", "mean", "max", "min"))
        attrs |= {"op": op, "keepdims": m.rng.random() < 0.5}
        m.put("conv_reduce", reads, attrs, most * math.prod(side + 8 for side in image))
        return
    if not m.exact and m.rng.random() < 0.15:
        channels = (c_in,) if m.rng.random() < 0.5 else (m.dims(x)[0], c_in, 1, 1)
        reads |= {"scale": m.constant(channels, -1, 1)}
        if m.rng.random() < 0.5:
            reads["shift"], most = m.constant((c_in,), -1, 1), most + fan_in
        m.put("prologue_conv2d", reads, {**attrs, "before": m.rng.choice(("none", "relu", "silu"))}, most)
        return
    m.put("conv2d", reads, attrs, most)


def conv_transpose2d(m):
    x = m.small(m.pick(4))
    c_in = m.dims(x)[1]
    kernel = m.rng.choice(m.theme.kernels)
    groups = m.rng.choice([g for g in range(1, c_in + 1) if c_in % g == 0] or [1]) if m.rng.random() < 0.3 else 1
    c_out = m.rng.choice((1, 2, 3, 5, 8))
    reads = {"x": x, "w": weights(m, (c_in, c_out, *kernel), c_in * math.prod(kernel))}
    if m.rng.random() < 0.5:
        reads["b"] = m.constant((c_out * groups,))
    attrs = {**window(m, kernel), "groups": groups, **epilogue(m)}
    if m.rng.random() < 0.4:
        attrs["output_padding"] = tuple(m.rng.randrange(s) for s in attrs["stride"])
    most = m.most[x] * (c_in * math.prod(kernel) if m.exact else 1) + 2
    m.put("conv_transpose2d", reads, attrs, most)


def conv2d_gradients(m):
    y = m.small(m.pick(4))
    n, c, *image = m.dims(y)
    kernel, more = m.rng.choice(m.theme.kernels), m.rng.choice(CHANNELS)
    attrs = window(m, kernel)
    across = zip(image, kernel, attrs["stride"], attrs["dilation"], range(2), strict=True)
    padding = attrs["padding"]
    if m.rng.random() < 0.5:  # y is dy
        sides = [(o - 1) * s + d * (k - 1) + 1 - padding[i] - padding[i + 2] for o, k, s, d, i in across]
        sides = [side + m.rng.randrange(s) for side, s in zip(sides, attrs["stride"], strict=True)]
        reads = {"dy": y, "w": weights(m, (c, more, *kernel), c * math.prod(kernel))}
        most = m.most[y] * (c * math.prod(kernel) if m.exact else 1)
        m.put("conv2d_backward_data", reads, {**attrs, "x_shape": (n, more, *sides)}, most)
        return
    sides = [(h + padding[i] + padding[i + 2] - d * (k - 1) - 1) // s + 1 for h, k, s, d, i in across]
    if min(sides) < 1:
        raise GraphError("the window is larger than the image")
    terms = n * math.prod(sides)
    reads = {"x": y, "dy": weights(m, (n, more, *sides), terms)}
    most = m.most[y] * (terms if m.exact else 1)
    m.put("conv2d_backward_weight", reads, {**attrs, "w_shape": (more, c, *kernel)}, most)


def pool2d(m):
    x = m.small(m.pick(4))
    kernel = m.rng.choice(((2, 2), (3, 3), (1, 3), (3, 2), m.dims(x)[2:]))
    attrs = {**window(m, kernel), "kernel": kernel, "ceil_mode": m.rng.random() < 0.3}
    kind = "max" if m.exact else m.rng.choice(("max", "avg", "avg"))
    if kind == "max" and m.exact and m.rng.random() < 0.2:
        m.put("pool2d_argmax", {"x": x}, attrs)
        return
    if kind == "avg":
        attrs["count_include_pad"] = m.rng.random() < 0.5
    m.put("pool2d", {"x": x}, {**attrs, "kind": kind}, m.most[x])


def matmul(m):
    a = m.small(m.pick(2, 3, 4))
    *batch, rows, k = m.dims(a)
    trans_a, trans_b, n = m.rng.random() < 0.2, m.rng.random() < 0.4, m.rng.choice((*SIDES, *CHANNELS))
    k = rows if trans_a else k
    partners = [v for v in m.recent() if len(m.dims(v)) > 1 and m.dims(v)[-1 if trans_b else -2] == k]
    alpha = 1.0
    if partners and m.rng.random() < 0.4:
        b = m.small(m.rng.choice(partners))
        alpha = 1.0 if m.exact else 1.0 / max(1, k) / 4
    else:
        lead = m.rng.choice(((), tuple(batch)))
        b = weights(m, (*lead, *((n, k) if trans_b else (k, n))), k)
    n = m.dims(b)[-2 if trans_b else -1]
    reads = {"a": a, "b": b}
    if m.rng.random() < 0.4:
        reads["bias"] = m.constant((n,))
    attrs = {"trans_a": trans_a, "trans_b": trans_b, "alpha": alpha, **epilogue(m)}
    most = m.most[a] * (k * m.most[b] if m.exact else 4) + 2
    if m.rng.random() < 0.2:
        op = m.rng.choice(("sum", "max", "min") if m.exact else ("sum", "mean", "max", "min"))
        attrs |= {"axis": m.rng.choice("mn"), "op": op, "keepdims": m.rng.random() < 0.5}
        m.put("gemm_reduce", reads, attrs, most * max(n, rows, k))
        return
    m.put("matmul", reads, attrs, most)


def reduce(m):
    x = m.small(m.pick())
    rank = len(m.dims(x))
    axes = tuple(sorted(m.rng.sample(range(rank), m.rng.randint(1, rank))))
    ops = ("sum", "max", "min") if m.exact else ("sum", "mean", "max", "l1", "log_sum_exp", "sum_square")
    op = m.rng.choice(ops)
    if op != "sum" and any(m.dims(x)[a] == 0 for a in axes):
        raise GraphError("infinite")
    attrs = {"op": op, "axes": axes, "keepdims": m.rng.random() < 0.5}
    m.put("reduce", {"x": x}, attrs, m.most[x] ** (2 if op == "sum_square" else 1) * MOST_ELEMENTS)


def arg_reduce(m):
    if not m.exact:
        raise GraphError("a rounding would turn it")
    x = m.pick()
    attrs = {"op": m.rng.choice(("max", "min")), "axis": m.axis(x), "select_last": m.rng.random() < 0.3}
    m.put("arg_reduce", {"x": x}, {**attrs, "keepdims": m.rng.random() < 0.5, "dtype": m.rng.choice(("i32", "i64"))})


def cumulative(m):
    x = m.small(m.pick())
    attrs = {"axis": m.axis(x), "exclusive": m.rng.random() < 0.4, "reverse": m.rng.random() < 0.4}
    m.put("cumulative", {"x": x}, attrs, m.most[x] * 20)


def topk(m):
    if not m.exact:
        raise GraphError("a rounding would turn it")
    x = m.pick()
    axis = m.axis(x)
    k = m.rng.randint(0, m.dims(x)[axis])
    m.put("topk", {"x": x}, {"k": k, "axis": axis, "largest": m.rng.random() < 0.5}, m.most[x])


def normalize(m):
    if m.exact:
        raise GraphError("it rounds")
    op = m.rng.choice(("softmax", "softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"))
    x = m.small(m.pick() if op in ("softmax", "layer_norm", "rms_norm") else m.pick(3, 4))
    if 0 in m.dims(x):
        raise GraphError("nothing to normalize")
    reads, attrs = {"x": x}, {"eps": 0.1}
    if op == "softmax":
        attrs = {"axis": m.axis(x), "log": m.rng.random() < 0.3}
    elif op in ("layer_norm", "rms_norm"):
        attrs["axis"] = m.axis(x)
        reads["scale"] = m.constant(m.dims(x)[attrs["axis"] :], 0, 1)
        if op == "layer_norm" and m.rng.random() < 0.5:
            reads["bias"] = m.constant(m.dims(x)[attrs["axis"] :])
    else:
        channels = m.dims(x)[1]
        if op != "batch_norm" and m.rng.random() < 0.3:
            names = []
        else:
            names = ["scale", "bias", *(["mean", "var"] if op == "batch_norm" else [])]
        reads |= {name: m.constant((channels,), 0, 1) for name in names}
        if op == "group_norm":
            attrs["groups"] = m.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
        if op == "batch_norm" and m.rng.random() < 0.3:
            op = "batch_norm_training"
    m.put(op, reads, attrs, 12.0)


def reshaped(m):
    x = m.pick()
    shape, rank = m.dims(x), len(m.dims(x))
    kind = m.rng.choice(("transpose", "transpose", "flat", "last", "split", "squeeze", "unsqueeze"))
    if kind == "transpose":
        m.put("transpose", {"x": x}, {"perm": tuple(m.rng.sample(range(rank), rank))}, m.most[x])
    elif kind == "unsqueeze" and rank < 5:
        m.put("unsqueeze", {"x": x}, {"axes": (m.rng.randrange(rank + 1),)}, m.most[x])
    elif kind == "squeeze" and 1 in shape and rank > 1:
        m.put("squeeze", {"x": x}, {"axes": (shape.index(1),)}, m.most[x])
    elif 0 not in shape:
        size = math.prod(shape)
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        first = m.rng.choice(divisors)
        target = (size,) if kind == "flat" else (first, size // first)
        if kind == "split":
            more = m.rng.choice([d for d in divisors if (size // first) % d == 0])
            target = (1, first, more, size // first // more)
        m.put("reshape", {"x": x}, {"shape": target, "allowzero": True}, m.most[x])


def moved(m):
    x = m.pick()
    shape, axis, rng = m.dims(x), m.axis(x), m.rng
    side = shape[axis]
    kind = rng.choice(("split", "slice", "slice", "concat", "concat", "pad", "pad", "tile", "expand", "depth"))
    if kind == "split":
        at = rng.randint(0, side)
        m.put("split", {"x": x}, {"axis": axis, "sizes": (at, side - at)}, m.most[x])
    elif kind == "slice":
        step = rng.choice((1, 2, 3, -1, -2))
        ends = sorted((rng.randint(-1, side), rng.randint(0, side)))
        starts, ends = (ends[0], ends[1]) if step > 0 else (ends[1], -side - 1 if ends[0] < 1 else ends[0])
        attrs = {"starts": (starts,), "ends": (ends,), "axes": (axis,), "steps": (step,)}
        m.put("slice", {"x": x}, attrs, m.most[x])
    elif kind == "concat":
        across = (*shape[:axis], *shape[axis + 1 :])
        fits = [v for v in m.recent() if (*m.dims(v)[:axis], *m.dims(v)[axis + 1 :]) == across]
        chosen = [x, *rng.choices(fits, k=rng.choice((1, 1, 2, 3)))]
        m.put("concat", {f"x{i}": v for i, v in enumerate(chosen)}, {"axis": axis}, max(m.most[v] for v in chosen))
    elif kind == "pad":
        pads = [0] * (2 * len(shape))
        for at in rng.sample(range(len(shape)), min(2, len(shape))):
            pads[at], pads[at + len(shape)] = rng.randint(-1, 3), rng.randint(-1, 3)
        mode = rng.choice(("constant", "constant", "reflect", "edge", "wrap"))
        value = {"value": float(rng.choice((0, 0, 1, -2)))} if mode == "constant" else {}
        m.put("pad", {"x": x}, {"pads": tuple(pads), "mode": mode, **value}, max(2.0, m.most[x]))
    elif kind == "tile":
        m.put("tile", {"x": x}, {"repeats": tuple(rng.choice((1, 1, 2, 3)) for _ in shape)}, m.most[x])
    elif kind == "expand":
        target = tuple(rng.choice((1, 2, 5)) if d == 1 else d for d in shape)
        m.put("expand", {"x": x}, {"shape": target}, m.most[x])
    else:
        op, mode = rng.choice((("depth_to_space", rng.choice(("dcr", "crd"))), ("space_to_depth", "dcr")))
        m.put(op, {"x": m.pick(4)}, {"block": rng.choice((2, 3)), "mode": mode}, m.most[x])


def indexed(m):
    x = m.small(m.pick())
    shape, axis, rng = m.dims(x), m.axis(x), m.rng
    side, dtype = shape[axis], rng.choice(m.theme.dtypes)
    if 0 in shape:
        raise GraphError("nothing to pick from")
    kind = rng.choice(("gather", "gather", "gather_elements", "scatter_elements", "gather_nd", "scatter_nd", "one_hot"))
    if kind == "gather":
        shape = rng.choice(((), (3,), (2, 5), (1,)))
        m.put("gather", {"x": x, "indices": m.constant(shape, -side, side - 1, dtype)}, {"axis": axis}, m.most[x])
    elif kind == "gather_elements":
        wanted = tuple(rng.choice((1, 5, d)) if i == axis else max(1, d - 1) for i, d in enumerate(shape))
        indices = m.constant(wanted, -side, side - 1, dtype)
        m.put("gather_elements", {"x": x, "indices": indices}, {"axis": axis}, m.most[x])
    elif kind == "scatter_elements":
        wanted = tuple(rng.choice((1, 5)) if i == axis else max(1, d - 1) for i, d in enumerate(shape))
        reads = {"x": x, "indices": m.constant(wanted, -side, side - 1, dtype), "updates": m.constant(wanted)}
        attrs = {"axis": axis, "reduction": rng.choice(("add", "max", "min"))}
        m.put("scatter_elements", reads, attrs, m.most[x] + 10)
    elif kind == "gather_nd":
        m.put("gather_nd", {"x": x, "indices": m.constant((rng.choice((1, 7)), 1), 0, shape[0] - 1, dtype)}, {}, 64.0)
    elif kind == "scatter_nd":
        indices = m.constant((4, 1), 0, shape[0] - 1, dtype)
        reads = {"x": x, "indices": indices, "updates": m.constant((4, *shape[1:]))}
        m.put("scatter_nd", reads, {"reduction": rng.choice(("add", "max"))}, m.most[x] + 8)
    elif m.exact:
        reads = {"indices": x, "values": m.constant((2,))}
        m.put("one_hot", reads, {"depth": rng.choice((1, 3, 7)), "axis": -1}, 2.0)


def sampled(m):
    x = m.small(m.pick(4))
    n, _, *image = m.dims(x)
    if 0 in m.dims(x):
        raise GraphError("nothing to sample")
    kind = m.rng.choice(("resize", "resize", "trilu", "scatter_strided", "reverse", "grid", "deform"))
    if kind == "resize":
        sizes = (*m.dims(x)[:2], *(m.rng.choice((1, 2, side, 2 * side, 2 * side + 1)) for side in image))
        attrs = {"mode": "nearest", "coordinate": "asymmetric", "nearest": "floor"}
        if not m.exact:
            attrs = {"mode": m.rng.choice(("linear", "cubic")), "antialias": m.rng.random() < 0.2}
            attrs["coordinate"] = m.rng.choice(("half_pixel", "asymmetric"))
        m.put("resize", {"x": x}, {**attrs, "sizes": sizes}, 2 * m.most[x])
    elif kind == "trilu":
        m.put("trilu", {"x": x}, {"k": m.rng.randint(-3, 3), "upper": m.rng.random() < 0.5}, m.most[x])
    elif kind == "scatter_strided":
        target = (*m.dims(x)[:2], *(side + m.rng.randint(0, 9) for side in image))
        stride = (1, 1, m.rng.choice((1, 2, 3)), m.rng.choice((1, 2)))
        offset = (0, 0, m.rng.randint(-1, 2), m.rng.randint(-1, 2))
        m.put("scatter_strided", {"x": x}, {"shape": target, "offset": offset, "stride": stride}, m.most[x])
    elif kind == "reverse":
        lengths = m.constant(m.dims(x)[1:2], 1, n, np.int64)
        m.put("reverse_sequence", {"x": x, "lengths": lengths}, {"time_axis": 0, "batch_axis": 1}, m.most[x])
    elif not m.exact and kind == "grid":
        grid = m.constant((n, 3, 5, 2), -1, 1)
        attrs = {"padding": m.rng.choice(("zeros", "border", "reflection")), "align_corners": m.rng.random() < 0.5}
        m.put("grid_sample", {"x": x, "grid": grid}, attrs, m.most[x])
    elif not m.exact:
        kernel = m.rng.choice(((1, 1), (3, 3), (2, 3)))
        sides = [side - k + 1 for side, k in zip(image, kernel, strict=True)]
        if min(sides) < 1:
            raise GraphError("the window is larger than the image")
        channels = m.dims(x)[1]
        reads = {"x": x, "w": weights(m, (3, channels, *kernel), channels * math.prod(kernel))}
        reads["offset"] = m.constant((n, 2 * math.prod(kernel), *sides))
        m.put("deform_conv2d", reads, {}, m.most[x])


STEPS = (
    *(unary, binary, binary, comparison, conv2d, conv2d, conv2d, conv_transpose2d, conv2d_gradients, pool2d, matmul),
    *(matmul, reduce, reduce, arg_reduce, cumulative, topk, normalize, normalize, reshaped, reshaped, moved, moved),
    *(indexed, sampled),
)
