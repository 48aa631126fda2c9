"""Random small graphs of most ops.

In an *exact* graph every value is a small whole number, so that results must be equal whatever order a route adds in;
the other graphs have the functions that round, and every step of them keeps values and errors from growing.
"""

import contextlib

import numpy as np
from random_maker import Maker
from random_steps import STEPS, binary, unary

from vkconv.core import GraphError
from vkconv.ops import OPS

KERNELS = ((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (2, 3), (1, 5), (5, 5), (2, 2))
STRIDES = ((1, 1), (1, 1), (1, 1), (2, 2), (2, 2), (1, 2), (3, 1), (3, 2))
DILATIONS = ((1, 1), (1, 1), (2, 1), (2, 3), (1, 4))
EXACT_UNARY = ("relu", "neg", "abs", "sign", "clip", "identity", "floor", "relu6")
ROUNDING_UNARY = ("tanh", "sigmoid", "silu", "gelu", "softplus", "erf", "elu", "sin", "mish", "hard_swish", "exp")
BINARY = ("add", "sub", "mul", "minimum", "maximum", "add", "mul")
ROUNDING_ACTS = ("relu", "hard_swish", "silu", "tanh", "leaky_relu", "elu", "sigmoid")


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
