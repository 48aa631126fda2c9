"""The rules that choose routes and parameters, judged by times on file."""

import pytest
from cli_kit import ROOT
from tool_kit import load_tool

from vkconv.device import load_device

regret = load_tool("regret")
FILES = ROOT / "bench" / "results" / "regret"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "timed", "most", "worst"),
    [
        # Calls whose choice of today was timed; in the mean and of one call what the rules came to when they were last
        # changed. In f16 times of products by matrix units are of the kernels before 2026-11-27.
        ("h100_layers_first_f32", 11, 1.02, 1.25),
        ("h100_layers_first_f16", 30, 1.01, 1.05),
        ("h100_layers_second_f32", 14, 1.03, 1.2),
        ("h100_layers_second_f16", 9, 1.01, 1.05),
        ("h100_layers_third_f32", 11, 1.03, 1.3),
        ("h100_layers_third_f16", 40, 1.02, 1.25),
        ("h100_layers_fourth_f32", 46, 1.02, 1.15),
        ("h100_layers_fourth_f16", 14, 1.01, 1.05),
        ("h100_layers_fifth_f32", 76, 1.04, 1.45),
        ("h100_layers_fifth_f16", 25, 1.03, 1.2),
        ("h200_layers_sixth_f32", 63, 1.01, 1.25),
        ("h100_layers_sixth_f32", 63, 1.03, 1.25),
        ("h200_layers_sixth_f16", 54, 1.02, 1.3),
        ("h100_depthwise_f32", 17, 1.02, 1.2),
        ("h100_5x5_f32", 21, 1.02, 1.35),
        ("h100_backward_weight_tiles", 44, 1.02, 1.25),
        ("h100_backward_weight", 15, 1.02, 1.1),
        ("h200_backward_weight", 11, 1.02, 1.15),
    ],
)
def test_rules_lose_no_more_than_they_did(name, timed, most, worst):
    rows = regret.judged(FILES / f"{name}.jsonl", load_device("h200"))
    lost = [row.with_parameters for row in rows if row.with_parameters]
    assert len(lost) >= timed and regret.mean(lost) <= most and max(lost) <= worst


def test_the_fastest_is_judged_by_the_times_of_the_end(tmp_path):
    call = "conv2d:x=1x64x56x56,w=64x64x1x1,dtype=f32"
    ways = [("implicit_gemm", 10.0, True), ("direct", 8.0, True), ("direct", 12.0, True), ("implicit_gemm", 9.0, True)]
    choice = regret.choose(regret.OPS["conv2d"].routes, regret.parse_call(call, regret.OPS), load_device("h200"))
    rows = [{"schema": regret.SCHEMA}, {"call": call, "peer_us": 18.0}]
    for route, us, default in ways:
        params = dict(choice.params) if route == choice.route.name else {"local": 64}
        rows.append({"call": call, "route": route, "params": params, "default": default, "us": us})
    path = tmp_path / "times.jsonl"
    path.write_text("".join(regret.json.dumps(row) + "\n" for row in rows))
    (row,) = regret.judged(path, load_device("h200"))
    assert (row.us, row.by_default, row.best_us, row.peer_us) == (9.0, "implicit_gemm", 9.0, 18.0)
    assert row.regret == row.with_parameters == 1.0 and row.ratio == 2.0
