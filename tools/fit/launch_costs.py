"""Fit what launches beside a product cost, by the bytes that they move, to times of whole routes.

    python tools/fit/launch_costs.py measure conv2d.winograd_cooperative calls.txt -o times.json
    python tools/fit/launch_costs.py fit conv2d.winograd_cooperative times.json

*measure* times each call of a file (a line each, ``#`` begins a comment) by the route with its default parameters;
results are not checked. *fit* takes from each time what the product takes by its costs, and prints us, and us of a MiB,
with the least sum of squared errors relative to the times; and what the route is then estimated to take over what it
took, in the mean and at most: of all calls, and of those of each third when they are fitted to the others. A file keeps
what the products were estimated to take when it was measured: later costs may be of another tile than was timed.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from fitting import RESULTS, fit_id, least_squares, lines, mean, parsers, thirds, write

from vkconv.call import Call
from vkconv.device import Device, load_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.channels_last import ChannelsLast, copied_bytes
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE, product_us
from vkconv.ops.conv.conv2d.winograd_cooperative import moved_bytes, products_of
from vkconv.ops.core.base import defaults
from vkconv.ops.core.calls import parse_call

TOOL, SCHEMA = "launch_costs", "vkconv.route-times/1"


@dataclasses.dataclass(frozen=True)
class Fit:
    """A route, us of its product, and what its other launches move."""

    route: str
    product_us: Callable[[Call, Device], float | None]
    nbytes: Callable[[Call, Device], int]


def _direct_us(call: Call, device: Device) -> float | None:
    return product_us(call, device, defaults(COOPERATIVE.params(call, device)))


def _transformed_us(call: Call, device: Device) -> float | None:
    return _direct_us(products_of(call, device), device)


FITS = {
    "conv2d.channels_last": Fit("cooperative", _direct_us, lambda call, device: copied_bytes(ChannelsLast(call))),
    "conv2d.winograd_cooperative": Fit("winograd_cooperative", _transformed_us, moved_bytes),
}


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call and its time, what its product takes, and MiB that the other launches move."""

    call: str
    us: float
    product_us: float
    mib: float


def timed(name: str, path: Path, device: Device) -> list[Timed]:
    """The times of a file, of calls that had a product with costs, and for the copy had one."""
    read, fit = json.loads(path.read_text()), FITS[name]
    nbytes = {text: fit.nbytes(parse_call(text, OPS), device) for text in read["product_us"]}
    return [Timed(text, read["us"][text], us, nbytes[text] / 2**20) for text, us in read["product_us"].items()]


def costs(rows: Sequence[Timed]) -> tuple[float, float]:
    """Microseconds of the launches, and of a MiB."""
    weight = np.array([1 / row.us for row in rows])
    terms = np.array([[1.0, row.mib] for row in rows])
    own = np.array([row.us - row.product_us for row in rows])
    us, mib_us = least_squares(terms * weight[:, None], own * weight)[0]
    return float(f"{us:.3g}"), float(f"{mib_us:.3g}")


def errors(made: tuple[float, float], rows: Iterable[Timed]) -> list[float]:
    """The estimate over the time of each call, or the time over the estimate, whichever is more."""
    estimated = ((row, row.product_us + made[0] + made[1] * row.mib) for row in rows)
    return [max(us / row.us, row.us / us) for row, us in estimated]


def held_out(name: str, rows: Sequence[Timed]) -> list[float]:
    """The errors of each third of the calls, with costs fitted to the other two."""
    found: list[float] = []
    for third in thirds((row.call for row in rows), name):
        made = costs([row for row in rows if row.call not in third])
        found += errors(made, [row for row in rows if row.call in third])
    return found


def measure(name: str, calls: Path, device: str) -> dict[str, object]:
    """The times of calls by the route, and what their products are estimated to take, of those with a copy for that."""
    from timing import header, times

    from vkconv.backend.runtime import open_device

    fit, opened = FITS[name], open_device(device).device
    us = {text: round(us, 2) for (text, _, _), us in times([(text, fit.route, {}) for text in lines(calls)], device)}
    product_us: dict[str, float] = {}
    for text in us:
        call = parse_call(text, OPS)
        product = fit.product_us(call, opened)
        if product is not None and (
            fit.route != COOPERATIVE.name or defaults(COOPERATIVE.params(call, opened))["last"]
        ):
            product_us[text] = round(product, 3)
    return {"schema": SCHEMA, **header(device), "us": us, "product_us": product_us}


def main() -> None:
    parser, making = parsers(__doc__, "measure", "calls", FITS)
    making.add_argument("--device", default="auto")
    wanted = parser.parse_args()
    if wanted.command == "measure":
        write(measure(wanted.name, wanted.calls, wanted.device), wanted.output)
        return
    path = wanted.times or RESULTS / f"{wanted.name}.json"
    rows = timed(wanted.name, path, load_device(wanted.device))
    made, held = costs(rows), held_out(wanted.name, rows)
    own = errors(made, rows)
    print(f"# {len(own)} calls: off by {mean(own):.3f} in the mean, {max(own):.2f} at most;")
    print(f"# held out {mean(held):.3f} and {max(held):.2f}")
    print(f'fit = "{fit_id(TOOL, wanted.name, path)}"')
    print(f"us = {made[0]}\nmib_us = {made[1]}")


if __name__ == "__main__":
    main()
