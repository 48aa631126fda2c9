"""Results of a made-up benchmark, for tests of the HTML report."""

from vkconv.bench.rows import Floors, Header, Result, Row, mark_best

HOSTILE = '<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">" onclick="window.pwned = 1'
ROUTES = ("direct", "im2col", "winograd", "pointwise")
COPY_GBPS, FMA_GFLOPS = 250.0, 4000.0


def measured(call, route, us, flops, nbytes, **fields):
    """A right row with the rates that follow from its time."""
    floor_us = max(flops / FMA_GFLOPS, nbytes / COPY_GBPS) / 1e3
    fields.setdefault("us_p90", us * 1.08)
    return Row(
        call=call,
        op=call.partition(":")[0],
        route=route,
        us_median=us,
        us_min=us * 0.97,
        us_spread_percent=0.8,
        runs=40,
        us_wall=us + 30,
        gflops=flops / us / 1e3,
        gbps=nbytes / us / 1e3,
        percent_of_floor=100 * floor_us / us,
        bound="fma" if flops / FMA_GFLOPS > nbytes / COPY_GBPS else "copy",
        max_abs=1e-6,
        max_rel=2.1e-7,
        allowed=4e-6,
        dispatches=1,
        flops=flops,
        bytes=nbytes,
        **fields,
    )


def header(**changes):
    fields = {
        "device": "Made-up GPU (test)",
        "device_key": "made-up",
        "driver": "made-up 1.2.3",
        "vulkan": "1.3.250",
        "versions": {"vkconv": "0.1.0", "kp": "0.9.0", "python": "3.11.7"},
        "date": "2026-08-01T12:00:00+00:00",
        "calls": "suite resnet50",
        "options": {"min_time_s": 0.1, "warmup": 3, "runs": None},
        "forced": {},
        "quirks": [],
        "floors": Floors(copy_gbps=COPY_GBPS, fma_gflops=FMA_GFLOPS),
        "elapsed_s": 12.5,
    }
    return Header(**{**fields, **changes})


def result(calls=12, **changes):
    """Each call on four routes, with a wrong, a refused and a hostile row among them; the wrong one is the fastest."""
    rows = []
    for i in range(calls):
        c, hw, k = 16 * (i % 7 + 1), 112 >> (i % 5), (1, 3, 5)[i % 3]
        call = f"conv2d:x=1x{c}x{hw}x{hw},w={2 * c}x{c}x{k}x{k},p={k // 2}x{k // 2}x{k // 2}x{k // 2},dtype=f32"
        flops, nbytes = 2 * 2 * c * c * k * k * hw * hw, 4 * (3 * c * hw * hw + 2 * c * c * k * k)
        for j, route in enumerate(ROUTES):
            floor_us = max(flops / FMA_GFLOPS, nbytes / COPY_GBPS) / 1e3
            rows.append(measured(call, route, floor_us * (1.3 + (i * 5 + j * 3) % 11) + 2, flops, nbytes))
        rows[-1].chosen = True
    wrong, refused = rows[1], rows[2]
    rows[1] = Row(
        call=wrong.call, op="conv2d", route="im2col", check="FAILED", why="max_rel 0.5 of 4e-06", us_median=0.01,
        gflops=9e9, gbps=9e9, max_rel=0.5, allowed=4e-6, flops=wrong.flops, bytes=wrong.bytes,
    )  # fmt: skip
    rows[2] = Row(call=refused.call, op="conv2d", route="winograd", check="refused", why="needs stride 1, here 2x2")
    rows.append(measured(f"relu:x=3x7x{HOSTILE},dtype=f32", "elementwise", 17.25, 4096, 32768))
    mark_best(rows)
    return Result(header=header(**changes), rows=rows)


def shown(page):
    """The text of a page's file without the places where lines may break."""
    return page.read_text().replace("<wbr>", "")
