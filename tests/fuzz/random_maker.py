"""A random graph while it grows: its values, how large they may be, and the nodes that made them."""

import math

import numpy as np

from vkconv.core import DType, GraphError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS

SIDES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17)
CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17)
MOST_ELEMENTS = 4096
MOST_EXACT = 1 << 24  # f32 holds every whole number up to it


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
