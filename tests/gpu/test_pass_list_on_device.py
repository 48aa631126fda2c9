"""Networks on the device with each pass left out in turn, against the graph as written; dumps of run and check."""

import json

import numpy as np
import pytest
from cli_kit import vkconv
from every_pass import NETWORKS, OPTIONAL, acting
from graph_kit import draw, evaluate

from vkconv.backend.runtime import select_device
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.requirements import lane_by_lane
from vkconv.ops.fused.inverted_residual_routes import RATE as INVERTED_RESIDUAL
from vkconv.ops.fused.prologue_conv2d_routes import TAKEN
from vkconv.ops.fused.separable_routes import RATE as SEPARABLE
from vkconv.ops.fused.squeeze_excite_routes import RATE as SQUEEZE_EXCITE
from vkconv.plan.bound import bind
from vkconv.plan.passes import PASSES
from vkconv.plan.planner import Options
from vkconv.session import Session

pytestmark = pytest.mark.gpu
NOT_TIMED = {
    "fuse_inverted_residual": INVERTED_RESIDUAL,
    "fuse_prologue": TAKEN,
    "fuse_separable": SEPARABLE,
    "fuse_squeeze_excite": SQUEEZE_EXCITE,
}
REWRITING = [entry.name for entry in PASSES if entry.run]


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_network_gives_the_same_without_a_pass(name, device):
    ran, facts = [], select_device(device)[1]
    if name in NOT_TIMED and not NOT_TIMED[name].of(facts):
        pytest.skip("kept apart where it was not timed")
    if name == "cut_early":
        pytest.skip("inputs of megabytes are cut alone: test_images_as_they_come has them")
    if name == "fuse_attention" and lane_by_lane(facts):
        pytest.skip("kept apart on a CPU driver")
    for network, graph in NETWORKS.items():
        if name in acting(graph, facts):
            arrays = draw(graph.inputs)
            wanted = dict(zip(graph.outputs, evaluate(bind(graph, OPS), arrays), strict=True))
            with Session(graph, device, options=Options(skip_passes=(name,)), poison=True) as session:
                got = session.run(arrays)
            for output, want in wanted.items():
                np.testing.assert_allclose(got[output], want, rtol=0, atol=2e-5 * np.abs(want).max(), err_msg=output)
            ran.append(network)
    assert ran


def test_run_and_check_save_the_graphs_that_they_plan(device, tmp_path):
    save_vkc(NETWORKS["tokens"], tmp_path / "m.vkc")
    options = ("--device", device, "--no-pass", "fuse_activation", "--pass-dump")
    code, out, err = vkconv("run", tmp_path / "m.vkc", *options, tmp_path / "run", "--json", "--runs", 1)
    assert code == 0, err
    data = json.loads(out)
    assert data["no_pass"] == ["fuse_activation"] and str(tmp_path / "run") in data["written"]
    code, out, err = vkconv("check", tmp_path / "m.vkc", *options, tmp_path / "check")
    assert code == 0, err
    assert "passes left out: fuse_activation" in out and f"wrote {tmp_path / 'check'}: " in out
    files = [{path.name: path.read_text() for path in (tmp_path / name).iterdir()} for name in ("run", "check")]
    assert files[0] == files[1] and len(files[0]) == len(REWRITING)
    assert " gelu:" in files[0][f"{REWRITING.index('set_types') + 1:02}-set_types.txt"]
