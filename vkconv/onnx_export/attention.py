"""The export rule for attention."""

from vkconv.core import DType
from vkconv.onnx_export.view import Rule, View


def _attention(v: View) -> None:
    """Attention of operands with heads: those without get one."""
    if not v.attrs["zero_rows"]:
        v.refuse("it makes NaN of a row of nothing but -inf, of which ONNX's Attention makes 0")
    v.needs_opset(23)
    rank, mask = v.rank(v.input("q")), v.input("mask")
    if rank is None or (mask and v.rank(mask) is None):
        v.refuse("the ranks of its operands are not known")
        return
    q, k, v_ = (v.input(name) for name in "qkv")
    k = v.emit("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2]) if v.attrs["trans_k"] else k
    images = [v.export.specs[name].shape[0] for name in (mask, q) if name and v.rank(name) == rank]
    if mask and len(images) == 2 and images[0] not in (1, images[1]):
        v.refuse(f"{images[1]} images take the masks of {images[0]} in turn")
    flags = {"scale": v.attrs["scale"] or None, "is_causal": int(v.attrs["causal"])}
    if rank == 4:
        v.finish("Attention", q, k, v_, mask, **flags)
        return
    one = v.number((1,), DType.I64)
    q, k, v_ = (v.emit("Unsqueeze", value, one) for value in (q, k, v_))
    mask = v.emit("Unsqueeze", mask, one) if mask and v.rank(mask) == rank else mask
    v.finish("Squeeze", v.emit("Attention", q, k, v_, *([mask] if mask else []), **flags), one)


RULES: dict[str, Rule] = {"attention": _attention}
