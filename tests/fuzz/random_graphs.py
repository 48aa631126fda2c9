"""Random small graphs of most ops.

In an *exact* graph every value is a small whole number, so that results must be equal whatever order a route adds in;
the other graphs have the functions that round, and every step of them keeps values and errors from growing.
"""

import contextlib
import math

import numpy as np

from vkconv.core import DType, GraphError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS

SIDES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17)
CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17)
KERNELS = ((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (2, 3), (1, 5), (5, 5), (2, 2))
STRIDES = ((1, 1), (1, 1), (1, 1), (2, 2), (2, 2), (1, 2), (3, 1), (3, 2))
DILATIONS = ((1, 1), (1, 1), (2, 1), (2, 3), (1, 4))
EXACT_UNARY = ("relu", "neg", "abs", "sign", "clip", "identity", "floor", "relu6")
ROUNDING_UNARY = ("tanh", "sigmoid", "silu", "gelu", "softplus", "erf", "elu", "sin", "mish", "hard_swish", "exp")
BINARY = ("add", "sub", "mul", "minimum", "maximum", "add", "mul")
ROUNDING_ACTS = ("relu", "hard_swish", "silu", "tanh", "leaky_relu", "elu", "sigmoid")
MOST_ELEMENTS = 4096
MOST_EXACT = 1 << 24  # f32 holds every whole number up to it


class Theme:
    """What graphs are made of: all there is, or with ``narrow`` some of it, drawn once for many graphs, so that they
    share the pipelines that a driver takes so long to compile."""

    def __init__(self, rng, narrow=False):
        def some(values, count):
            return rng.sample(values, count) if narrow else values

        self.steps = [*some(STEPS, 5), unary, binary]
        self.ranks = some((1, 2, 2, 3, 3, 4, 4, 4, 4, 5), 3)
        self.unary = [some(EXACT_UNARY, 3), some((*ROUNDING_UNARY, "relu", "neg", "abs", "clip", "identity"), 3)]
        self.binary = some(BINARY, 2)
        self.kernels = some(KERNELS, 1)
        self.strides = some(STRIDES, 1)
        self.dilations = some(DILATIONS, 1)
        self.acts = [("none", "relu"), ("none", *some(ROUNDING_ACTS, 1))]
        self.params = 0.002 if narrow else 0.1  # how often a node gets parameters other than the default
        self.dtypes = some((np.int32, np.int64), 1)
        self._rng, self._narrow, self._routes = rng, narrow, {}

    def routes(self, op, allowed):
        """Those of the allowed routes that the theme has, which is one for each op where it is narrow."""
        order = self._routes.setdefault(op, self._rng.sample([r.name for r in OPS[op].routes], len(OPS[op].routes)))
        ranked = sorted(allowed, key=lambda route: order.index(route.name))
        return ranked[:1] if self._narrow else ranked


class Maker:
    """A graph that grows by one step at a time; ``most`` bounds the absolute of every f32 value."""

    def __init__(self, rng, theme):
        self.rng, self.theme = rng, theme
        self.exact = rng.random() < 0.6
        self.inputs, self.constants, self.nodes, self.specs, self.most = {}, {}, [], {}, {}
        for i in range(rng.choice((1, 1, 2, 3))):
            shape = self.shape()
            self.inputs[f"in{i}"] = self.specs[f"in{i}"] = TensorSpec(shape)
            self.most[f"in{i}"] = 4.0

    def shape(self):
        rng = self.rng
        while True:
            rank = rng.choice(self.theme.ranks)
            dims = [rng.choice(SIDES) for _ in range(rank)]
            if rank > 3:
                dims[:2] = rng.choice((1, 1, 2, 3)), rng.choice(CHANNELS)
            if rng.random() < 0.02:
                dims[rng.randrange(rank)] = 0
            if math.prod(dims) <= MOST_ELEMENTS:
                return tuple(dims)

    def constant(self, shape, low=-2, high=2, dtype=np.float32, scale=1.0):
        """Whole numbers from low to high, in graphs that round anything between them; times ``scale``."""
        draw = np.random.default_rng(self.rng.getrandbits(32))
        array = draw.integers(low, high + 1, shape).astype(dtype)
        if not self.exact and np.dtype(dtype).kind == "f":
            array = draw.uniform(low, high, shape).astype(dtype)
        name = f"c{len(self.constants)}"
        self.constants[name] = (array * scale).astype(dtype)
        self.specs[name] = TensorSpec(tuple(shape), DType.of(dtype))
        self.most[name] = max(abs(low), abs(high)) * scale
        return name

    def put(self, op, reads, attrs, most=4.0):
        """A node that reads these values by operand; its outputs' names. GraphError where the op refuses the call."""
        if self.exact and most > MOST_EXACT:
            raise GraphError("sums would round")
        row = OPS[op]
        variadic = any(operand.variadic for operand in row.operands)
        names = list(reads) if variadic else [o.name for o in row.operands if not o.host]
        operands = {name: self.specs[reads[name]] if name in reads else None for name in names}
        call = row.call(operands, attrs)
        if sum(spec.size for spec in call.outputs.values()) > MOST_ELEMENTS:
            raise GraphError("too large for here")
        i = len(self.nodes)
        written = tuple(f"v{i}_{k}" for k in range(len(call.outputs)))
        self.nodes.append(Node(f"{op}{i}", op, tuple(reads.get(name, "") for name in names), written, attrs))
        for name, spec in zip(written, call.outputs.values(), strict=True):
            self.specs[name], self.most[name] = spec, most
        return written

    def small(self, value):
        """The value, or what keeps it small: later sums of it stay exact, or do not magnify its rounding."""
        if self.most[value] <= (64 if self.exact else 4):
            return value
        if self.exact:
            return self.put("clip", {"x": value}, {"a": -9.0, "b": 9.0}, 9.0)[0]
        return self.put("tanh", {"x": value}, {}, 1.0)[0]

    def pick(self, *ranks):
        """A recent f32 value of one of these ranks (any but 0, where none is given)."""
        fits = [v for v in self.recent() if len(self.specs[v].dims) in (ranks or range(1, 9))]
        if not fits:
            raise GraphError("no value of that rank here")
        return self.rng.choice(fits)

    def recent(self):
        made = [v for v, s in self.specs.items() if s.dtype is DType.F32 and v not in self.constants]
        return made[-6:]

    def dims(self, value):
        return self.specs[value].dims

    def axis(self, value):
        return self.rng.randrange(len(self.dims(value)))

    def graph(self):
        outputs = [name for name in self.specs if name not in self.constants]
        named = dict.fromkeys([outputs[-1], *self.rng.sample(outputs, min(len(outputs), self.rng.choice((0, 1, 2))))])
        return Graph(self.inputs, tuple(named), tuple(self.nodes), self.constants, "random")


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


def random_graph(rng, theme, steps=10):
    """A graph of up to so many steps, and whether its values are whole numbers."""
    maker, wanted = Maker(rng, theme), rng.randint(1, steps)
    for _ in range(3 * wanted):
        if len(maker.nodes) < wanted:
            with contextlib.suppress(GraphError):
                rng.choice(theme.steps)(maker)
    if not maker.nodes:
        maker.put("relu", {"x": next(iter(maker.inputs))}, {})
    return maker.graph(), maker.exact
