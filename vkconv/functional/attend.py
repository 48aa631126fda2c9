"""Attention as a function."""

import numpy.typing as npt

from vkconv.backend.given import flag
from vkconv.core import Array
from vkconv.functional.arguments import arrays, number
from vkconv.functional.cache import run
from vkconv.graph.ir import AttrValue


def attention(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """softmax(scale q k^T + mask) v for each head.

    q is (N, H, L, D), k (N, Hk, S, D), v (N, Hk, S, Dv), the result (N, H, L, Dv); all may be without heads, (N, L, D).
    Hk divides H: as many neighbouring heads share keys and values. ``mask`` is added to the scores; it broadcasts to
    (N, H, L, S), and its first dimension may be a divisor M of N, with image i taking the mask of i % M. ``scale`` is 1
    / sqrt(D) where it is not given. With ``causal`` query i sees keys 0 to i alone. A row whose scores are all -inf
    becomes 0. Raises what `softmax` raises.
    """
    operands = arrays("attention", q=q, k=k, v=v, mask=mask)
    attrs: dict[str, AttrValue] = {"causal": flag("causal", causal)}
    if scale is not None:
        attrs["scale"] = number("scale", scale)
    return run("attention", operands, attrs, route, device, out=out)
