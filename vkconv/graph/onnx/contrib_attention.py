"""Import rules for the attention of exported language models: GroupQueryAttention and RotaryEmbedding of ONNX Runtime.

Definitions: onnxruntime, docs/ContribOperators.md. N images bring L new rows each, for H heads of queries and Hk of
keys and values, of D elements. The past is (N, Hk, P, D). The new rows of image b begin at max(0, seqlens_k[b] + 1 -
L), so that images may have pasts of other lengths.
"""

from collections.abc import Callable, Sequence

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(6)
_COS, _SIN, _POSITIONS, _BIAS, _SINK, _K_SCALE, _V_SCALE, _Q_NORM, _K_NORM, _QUERY_LENGTHS = range(7, 17)
_END = 1 << 31
# Elements of a head that tables may turn: no model has more, and a damaged one may say so.
_MOST_TURNED = 1 << 14

Key = tuple[object, ...]


def _once(n: NodeView, key: Key, make: Callable[[], str]) -> str:
    """A value that layers share, made for the first of them that has this ``key``; for each, where the key has a None:
    something that cannot be told from the model."""
    if None in key:
        return make()
    if key not in n.builder.shared:
        n.builder.shared[key] = make()
    return n.builder.shared[key]


def _constant(n: NodeView, values: Sequence[float] | float, dtype: DType) -> str:
    """A constant that layers share."""
    return _once(
        n, ("constant", dtype, np.asarray(values).tobytes(), np.shape(values)), lambda: n.number(values, dtype)
    )


def _part(n: NodeView, x: str, start: int, end: int, axis: int) -> str:
    return n.emit("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))


def _count(n: NodeView, x: str, axis: int) -> str:
    """How long an axis of a value is, a scalar of i64."""
    return n.emit("squeeze", n.emit("shape", x, start=axis, end=axis + 1), axes=(0,))


def _numbers(n: NodeView, x: str, axis: int, dtype: DType) -> str:
    """0 to the length of an axis less one."""
    numbers = n.emit("range", "", _count(n, x, axis), start=0.0, delta=1.0, dtype=str(DType.I64))
    return numbers if dtype is DType.I64 else n.emit("cast", numbers, to=str(dtype))


class _Rotation:
    """What turns the first R elements of heads at ``places``, (N, L). The tables at inputs ``cos`` and ``sin`` are
    (most, R / 2)."""

    def __init__(self, n: NodeView, cos: int, sin: int, places: str, interleaved: bool) -> None:
        half = n.size(cos, 1)
        if not isinstance(half, int):
            n.refuse(f"the width of input {cos} ({n.input(cos)!r}) cannot be told from the model; give it a known one")
        if not 0 < 2 * half <= _MOST_TURNED:
            n.refuse(f"input {cos} ({n.input(cos)!r}) is {half} wide; a head has 2 to {_MOST_TURNED} elements to turn")
        self.n, self.size, self.interleaved = n, 2 * half, interleaved
        self.dtype, self.tables, self.places = n.dtype(cos), (n.input(cos), n.input(sin)), places
        steps = range(self.size)
        if interleaved:
            self.twice, self.partners = [i // 2 for i in steps], [i ^ 1 for i in steps]
            self.signs = [1.0 if i % 2 else -1.0 for i in steps]
        else:
            self.twice = [i % half for i in steps]
            self.partners = [(i + half) % self.size for i in steps]
            self.signs = [-1.0 if i < half else 1.0 for i in steps]

    def _factors(self, axis: int) -> tuple[str, str]:
        """Cosines, and sines with their signs, (N, L, R) with a dimension of 1 for heads at ``axis``."""
        n, twice = self.n, _constant(self.n, self.twice, DType.I64)

        def spread(table: str) -> str:
            return n.emit("gather", n.emit("gather", table, self.places, axis=0), twice, axis=-1)

        def cosines() -> str:
            return n.emit("unsqueeze", spread(self.tables[0]), axes=(axis,))

        def sines() -> str:
            signed = n.emit("mul", spread(self.tables[1]), _constant(n, self.signs, self.dtype))
            return n.emit("unsqueeze", signed, axes=(axis,))

        key = (self.tables, self.places, self.interleaved, axis)
        return _once(n, ("cosines", *key), cosines), _once(n, ("sines", *key), sines)

    def of(self, x: str, heads_axis: int, head_size: int | None) -> str:
        """x, (N, L, H, D) or with its heads at axis 1, rotated."""
        n = self.n
        if head_size is None:
            n.refuse("the size of its heads cannot be told from the model; give its inputs shapes that say it")
        if self.size > head_size:
            n.refuse(
                f"its tables turn {self.size} elements, and heads have {head_size}; give it tables as wide as those"
            )
        cos, sin = self._factors(heads_axis)
        whole = self.size == head_size
        straight = n.emit("mul", x if whole else _part(n, x, 0, self.size, -1), cos)
        partners = n.emit("gather", x, _constant(n, self.partners, DType.I64), axis=-1)
        turned = n.emit("add", straight, n.emit("mul", partners, sin))
        return turned if whole else n.emit("concat", turned, _part(n, x, self.size, _END, -1), axis=-1)


def _rotary(n: NodeView) -> None:
    """RotaryEmbedding(x, places, cos, sin): x is (N, L, H D) or (N, H, L, D), places are (N, L) or where they begin."""
    if not all(map(n.has, range(4))):
        n.refuse("it lacks one of input, position_ids, cos_cache and sin_cache; ONNX Runtime needs all four")
    if n.attr_flag("is_packed_batching"):
        n.refuse("is_packed_batching=1, sequences of several lengths in one; export without it")
    if (scale := n.attr_float("scale", 1.0)) != 1:
        n.refuse(f"scale={scale:g}, which ONNX Runtime's own code leaves out on a CPU; multiply the tables by it")
    heads, given = n.attr_int("num_heads", 0), n.attr_int("rotary_embedding_dim", 0)
    if given and heads < 1:
        n.refuse(f"rotary_embedding_dim={given} with num_heads={heads}; num_heads says how many heads there are")
    rank, places, x = n.need_rank(0), n.input(1), n.input(0)
    if rank not in (3, 4):
        n.refuse(f"its input has rank {rank}; it takes (N, L, hidden) or (N, heads, L, head size)")
    if n.need_rank(1) < 2:
        steps = _numbers(n, x, rank - 2, n.dtype(1))
        places = n.emit("unsqueeze", n.emit("add", places, steps), axes=(0,))
    rotation = _Rotation(n, 2, 3, places, n.attr_flag("interleaved"))
    width = n.size(0, rank - 1)
    if rank == 4:
        n.finish("identity", rotation.of(x, 1, width if isinstance(width, int) else None))
    elif not given:
        heads_apart = n.emit("reshape", x, shape=(0, 0, -1, rotation.size))
        n.finish("reshape", rotation.of(heads_apart, 2, rotation.size), shape=(0, 0, -1))
    else:
        heads_apart = n.emit("reshape", x, shape=(0, 0, heads, -1))
        size = width // heads if isinstance(width, int) else None
        n.finish("reshape", rotation.of(heads_apart, 2, size), shape=(0, 0, -1))


def _refuse_what_is_missing(n: NodeView) -> None:
    """Refuse, by attribute and input, what changes the result and has no equivalent."""
    for name, instead in (
        ("qk_output", "scores as an output; export without it"),
        ("sliding_window_cache", "caches that drop their oldest rows; export it with caches of all rows"),
    ):
        if value := n.attr_int(name, 0):
            n.refuse(f"{name}={value}, {instead}")
    for name in ("k_quant_type", "v_quant_type"):
        if (kind := n.attr_str(name, "NONE")) not in ("", "NONE"):
            n.refuse(f"{name}={kind!r}, quantized caches; export it with caches of floats")
    n.ignore("kv_cache_bit_width")  # of quantized caches
    for i, what in (
        (_K_SCALE, "k_scale, of quantized caches; export it with caches of floats"),
        (_V_SCALE, "v_scale, of quantized caches; export it with caches of floats"),
        (_QUERY_LENGTHS, "query_seqlens, rows that are padding in a chunk; give chunks their own length"),
    ):
        if n.has(i):
            n.refuse(f"its input {i} is {what}")
    if any(output and output in n.builder.consumed for output in n.outputs[3:]):
        n.refuse("its output output_qk is used; vkconv makes the first three")
    window, causal = n.attr_int("local_window_size", -1), n.attr_int("causal", 1)
    if window == 0 or window < -1:
        n.refuse(f"local_window_size={window}; it is -1 for none, or a number of rows from 1 on")
    if causal not in (0, 1) or (not causal and window > 0):
        n.refuse(f"causal={causal} with local_window_size={window}; causal is 0 or 1, and a window needs 1")
    for name in ("scale", "softcap"):
        if not 0 <= (number := n.attr_float(name, 0.0)) < np.inf:
            n.refuse(f"{name}={number:g}; it is a positive number, or 0 for none of its own")
    for first, second, names in (
        (_KEY, _VALUE, "key and value"),
        (_PAST_KEY, _PAST_VALUE, "past_key and past_value"),
        (_Q_NORM, _K_NORM, "q_norm_weight and k_norm_weight"),
    ):
        if n.has(first) != n.has(second):
            n.refuse(f"one of {names}; it takes both or none")
    for i, what in ((_QUERY, "query"), (_LENGTHS, "seqlens_k, the rows that each image has, less one")):
        if not n.has(i):
            n.refuse(f"it has no {what}; ONNX Runtime needs it too")
    for i, rank in ((_QUERY, 3), (_KEY, 3), (_VALUE, 3), (_PAST_KEY, 4), (_PAST_VALUE, 4)):
        if n.has(i) and n.rank(i) not in (None, rank):
            n.refuse(f"its input {i} ({n.input(i)!r}) has rank {n.rank(i)}; vkconv takes {rank}")


class _GroupQuery:
    """One GroupQueryAttention on its way to vkconv's ops; S is the rows of a cache behind the node."""

    def __init__(self, n: NodeView) -> None:
        _refuse_what_is_missing(n)
        self.n, self.dtype, self.outputs = n, n.dtype(_QUERY), n.outputs
        if not self.dtype.is_float:
            n.refuse(f"its query ({n.input(_QUERY)!r}) is {self.dtype}; it takes f32, f16 or bf16, cast it")
        self.heads, self.kv_heads = n.attr_int("num_heads", 0), n.attr_int("kv_num_heads", 0)
        if min(self.heads, self.kv_heads) < 1 or self.heads % self.kv_heads:
            n.refuse(f"num_heads={self.heads} and kv_num_heads={self.kv_heads}; the second divides the first")
        # What two layers have in common whose new rows have the same places, and caches the same rows.
        self.at: Key = (n.input(_LENGTHS), n.size(_QUERY, 1))
        self.all: Key = (*self.at, n.size(_PAST_KEY, 2) if n.has(_PAST_KEY) else 0)
        self.lengths = _once(n, ("lengths", *self.at), self._lengths)
        self.firsts = _once(n, ("firsts", *self.at), self._firsts)
        self.own = _once(n, ("own", *self.at), self._own)

    def _lengths(self) -> str:
        """seqlens_k, (N) of i32: some files have it as (N, 1)."""
        return self.n.emit("reshape", self.n.input(_LENGTHS), shape=(-1,))

    def _firsts(self) -> str:
        """The place of the first new row of each image, (N) of i32."""
        n = self.n
        rows = n.emit("cast", n.emit("shape", n.input(_QUERY), start=1, end=2), to=str(DType.I32))
        before = n.emit("sub", self.lengths, n.emit("sub", rows, _constant(n, 1, DType.I32)))
        return n.emit("maximum", before, _constant(n, 0, DType.I32))

    def _own(self) -> str:
        """The places of the new rows, (N, L) of i32."""
        steps = _numbers(self.n, self.n.input(_QUERY), 1, DType.I32)
        return self.n.emit("add", self.n.emit("unsqueeze", self.firsts, axes=(1,)), steps)

    def _head_size(self) -> int | None:
        """D, where the model says it."""
        n, heads = self.n, self.heads + (0 if self.n.has(_KEY) else 2 * self.kv_heads)
        known = n.size(_PAST_KEY, 3) if n.has(_PAST_KEY) else None
        width = n.size(_QUERY, 2)
        found = width // heads if known is None and isinstance(width, int) else known
        return found if isinstance(found, int) else None

    def run(self) -> None:
        """Emit all nodes."""
        n = self.n
        q, k, v = self._operands()
        q, k = self._normalized(q, k)
        if n.attr_flag("do_rotary"):
            q, k = self._rotated(q, k)
        else:
            n.ignore("rotary_interleaved")
        new = [n.emit("transpose", value, perm=(0, 2, 1, 3)) for value in (k, v)]
        keys, values = (
            self._present(i, past, x) for i, past, x in zip((1, 2), (_PAST_KEY, _PAST_VALUE), new, strict=True)
        )
        mask = self._mask(keys)
        n.outputs = self.outputs[:1]
        if n.attr_float("softcap", 0.0) or n.attr_flag("smooth_softmax") or n.has(_SINK):
            self._by_steps(q, keys, values, mask)
            return
        scale = n.attr_float("scale", 0.0)
        mixed = n.emit("attention", n.emit("transpose", q, perm=(0, 2, 1, 3)), keys, values, mask, scale=scale)
        n.finish("reshape", n.emit("transpose", mixed, perm=(0, 2, 1, 3)), shape=(0, 0, -1))

    def _operands(self) -> tuple[str, str, str]:
        """Queries, keys and values of the new rows, (N, L, heads, D)."""
        n, h, k = self.n, self.heads, self.kv_heads
        if n.has(_KEY):
            operands = ((_QUERY, h), (_KEY, k), (_VALUE, k))
            found = [n.emit("reshape", n.input(i), shape=(0, 0, heads, -1)) for i, heads in operands]
        else:
            whole = n.emit("reshape", n.input(_QUERY), shape=(0, 0, h + 2 * k, -1))
            found = [_part(n, whole, start, end, 2) for start, end in ((0, h), (h, h + k), (h + k, h + 2 * k))]
        return found[0], found[1], found[2]

    def _normalized(self, q: str, k: str) -> tuple[str, str]:
        """Queries and keys, each head by its root mean square, where there are weights for that."""
        n = self.n
        both = n.attr_float("qk_norm_epsilon", 1e-6)
        q_eps, k_eps = (n.attr_float(f"{name}_norm_epsilon", both) for name in "qk")
        if not n.has(_Q_NORM):
            return q, k
        return (
            n.emit("rms_norm", q, n.input(_Q_NORM), axis=-1, eps=q_eps),
            n.emit("rms_norm", k, n.input(_K_NORM), axis=-1, eps=k_eps),
        )

    def _rotated(self, q: str, k: str) -> tuple[str, str]:
        n = self.n
        if not (n.has(_COS) and n.has(_SIN)):
            n.refuse("do_rotary=1 without cos_cache and sin_cache; give it both")
        places = n.input(_POSITIONS) if n.has(_POSITIONS) else self.own
        rotation, size = _Rotation(n, _COS, _SIN, places, n.attr_flag("rotary_interleaved")), self._head_size()
        return rotation.of(q, 2, size), rotation.of(k, 2, size)

    def _present(self, i: int, past: int, new: str) -> str:
        """The cache with the new rows (N, Hk, L, D) in it, which is output i."""
        n = self.n
        if not n.has(past):
            return self._made(i, "identity", new)
        if n.is_as_long(past, i, 2):
            return self._made(i, "tensor_scatter", n.input(past), new, self.firsts, axis=2)
        # Rows of an image with a shorter past, or room behind it, come before the end. Else this changes nothing.
        longer = n.emit("concat", n.input(past), new, axis=2)
        return self._made(i, "tensor_scatter", longer, new, self.firsts, axis=2, in_place=True)

    def _made(self, i: int, op: str, *inputs: str, **attrs: AttrValue) -> str:
        """What a node makes, as output i where that is used."""
        n = self.n
        if i < len(self.outputs) and self.outputs[i] and self.outputs[i] in n.builder.consumed:
            n.write(i, op, *inputs, **attrs)
            return self.outputs[i]
        return n.emit(op, *inputs, **attrs)

    def _mask(self, keys: str) -> str:
        """What is added to scores, (N, 1 or H, L, S): 0, or the bias, where a query sees a key, else -inf."""
        n = self.n
        window, causal = n.attr_int("local_window_size", -1), n.attr_int("causal", 1)
        none = _constant(n, -np.inf, self.dtype)
        key: Key = (causal, window, *self.all)

        def seen() -> str:
            places = _once(n, ("places", *self.all), lambda: _numbers(n, keys, 2, DType.I32))
            if not causal:
                return n.emit("less_equal", places, n.emit("unsqueeze", self.lengths, axes=(1, 2, 3)))
            last = n.emit("unsqueeze", self.own, axes=(1, 3))
            found = n.emit("less_equal", places, last)
            if window < 0:
                return found
            before = n.emit("sub", last, _constant(n, window, DType.I32))
            return n.emit("logical_and", found, n.emit("greater", places, before))

        def mask() -> str:
            return n.emit("where", _once(n, ("seen", *key), seen), _constant(n, 0.0, self.dtype), none)

        if n.has(_BIAS):
            return n.emit("where", _once(n, ("seen", *key), seen), n.input(_BIAS), none)
        return _once(n, ("mask", self.dtype, *key), mask)

    def _by_steps(self, q: str, keys: str, values: str, mask: str) -> None:
        """Products, soft cap, mask and softmax by themselves: the op has no cap, and no sink beside the keys. Scores
        are (N, Hk, H / Hk, L, S)."""
        n, groups = self.n, (self.kv_heads, self.heads // self.kv_heads)
        scale, size = n.attr_float("scale", 0.0), self._head_size()
        if not scale and size is None:
            n.refuse(
                "the size of its heads cannot be told from the model; give its inputs shapes that say it, or a scale"
            )
        q = n.emit("transpose", n.emit("reshape", q, shape=(0, 0, *groups, -1)), perm=(0, 2, 3, 1, 4))
        keys, values = (n.emit("unsqueeze", x, axes=(2,)) for x in (keys, values))
        scores = n.emit("matmul", q, keys, trans_b=True, alpha=scale or float(size or 1) ** -0.5)
        if cap := n.attr_float("softcap", 0.0):
            bounded = n.emit("tanh", n.emit("div", scores, _constant(n, cap, self.dtype)))
            scores = n.emit("mul", bounded, _constant(n, cap, self.dtype))
        scores = n.emit("add", scores, self._by_groups(mask))
        weights = self._weights(scores) if n.has(_SINK) or n.attr_flag("smooth_softmax") else ""
        weights = weights or n.emit("softmax", scores, axis=-1)
        mixed = n.emit("transpose", n.emit("matmul", weights, values), perm=(0, 3, 1, 2, 4))
        n.finish("reshape", mixed, shape=(0, 0, -1))

    def _by_groups(self, mask: str) -> str:
        """A mask (N, 1 or H, L, S) for scores by groups."""
        n = self.n
        if not n.has(_BIAS) or n.size(_BIAS, 1) == 1:
            return n.emit("unsqueeze", mask, axes=(1,))
        if n.size(_BIAS, 1) != self.heads:
            n.refuse(
                f"attention_bias with softcap or a sink, for {n.size(_BIAS, 1) or 'unknown'} heads; it has 1 or all"
            )
        behind = n.emit("transpose", mask, perm=(0, 2, 3, 1))
        apart = n.emit("reshape", behind, shape=(0, 0, 0, self.kv_heads, self.heads // self.kv_heads))
        return n.emit("transpose", apart, perm=(0, 3, 4, 1, 2))

    def _weights(self, scores: str) -> str:
        """softmax of scores with one number more for each head, of which no value is taken: 0, or the head's sink."""
        n = self.n
        if n.has(_SINK):
            sink = n.emit("reshape", n.input(_SINK), shape=(1, self.kv_heads, self.heads // self.kv_heads, 1, 1))
        else:
            sink = _constant(n, 0.0, self.dtype)
        largest = n.emit("maximum", n.emit("reduce", scores, op="max", axes=(-1,), keepdims=True), sink)
        powers = n.emit("exp", n.emit("sub", scores, largest))
        total = n.emit("reduce", powers, op="sum", axes=(-1,), keepdims=True)
        return n.emit("div", powers, n.emit("add", total, n.emit("exp", n.emit("sub", sink, largest))))


def _group_query_attention(n: NodeView) -> None:
    _GroupQuery(n).run()


RULES: dict[str, Rule] = {"GroupQueryAttention": _group_query_attention, "RotaryEmbedding": _rotary}
