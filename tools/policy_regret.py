"""How the split-K policies of backward-weight compare: the time of each call under every policy.

    python tools/policy_regret.py [--min-time SECONDS] [SUITE | CALL ...]

Regret is the time under a policy over that of the fastest one. Every result is checked against the float64 reference.
"""

import argparse
import math

from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import floors
from vkconv.bench.engine import measure
from vkconv.bench.sampling import BenchOptions
from vkconv.bench.suites import is_call, parse_entries, read_suite
from vkconv.core import DType
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.ops.kernels.split_rules import POLICIES
from vkconv.table import Column, Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="SUITE | CALL", default=["backward-weight-30"])
    parser.add_argument("--min-time", type=float, default=0.02)
    args = parser.parse_args()
    live = open_device("auto")
    options, known = BenchOptions(min_time_s=args.min_time), floors(live)
    entries = [e for text in args.texts for e in (parse_entries if is_call(text) else read_suite)(text, DType.F32)]
    rows: list[list[object]] = []
    logs = dict.fromkeys(POLICIES, 0.0)
    worst = dict.fromkeys(POLICIES, 1.0)
    calls = [e.call for e in entries if e.call is not None and e.call.op.endswith("_backward_weight")]
    for call in calls:
        measured: dict[str, tuple[str, float]] = {}
        for policy in POLICIES:
            # The default policy is part of the choice of a route; another one is of two_stage.
            forced, params = (None, {}) if policy == POLICIES[0] else ("two_stage", {"policy": policy})
            row = measure(call, forced, params=params, options=options, floors=known)
            if row.check != "ok" or row.us_median is None:
                raise SystemExit(f"{format_call(call, OPS)}, policy {policy}: {row.check} {row.why}")
            measured[policy] = row.route, row.us_median
        best = min(us for _, us in measured.values())
        cells: list[object] = [format_call(call, OPS)]
        for policy, (route, us) in measured.items():
            regret = us / best
            logs[policy] += math.log(regret)
            worst[policy] = max(worst[policy], regret)
            cells += [route, us, regret]
        rows.append(cells)
    columns = [Column("call")]
    for policy in POLICIES:
        columns += [Column(policy), Column("us"), Column("regret", digits=3)]
    means = ", ".join(f"{p} {math.exp(logs[p] / max(1, len(calls))):.3f} (worst {worst[p]:.2f})" for p in POLICIES)
    print(
        Table(f"{live.device.name}: regret of policies over {len(calls)} calls: {means}", columns, rows).to_markdown()
    )


if __name__ == "__main__":
    main()
