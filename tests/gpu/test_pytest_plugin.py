"""The pytest plugin, used by projects of their own: the example that ships, and small ones that go wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "device_tests"
pytestmark = pytest.mark.gpu


def run(folder, *argv, **changes):
    """pytest with the plugin in a process of its own: its exit code and what it prints."""
    paths = [path for path in sys.path if path and not path.startswith(str(ROOT / "tests"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]), "COLUMNS": "200", **changes}
    env.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "vkconv.pytest_plugin", "-p", "no:cacheprovider", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    return done.returncode, done.stdout + done.stderr


def project(folder, body):
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(f"import numpy as np\nimport pytest\nfrom vkconv.testing import calls\n\n{body}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(), ("--vk-limits", "mali-g57")], ids=["here", "as-a-phone"])
def test_the_example_passes(limits, tmp_path, device):
    code, out = run(EXAMPLE, "--vk-device", device, "--vk-require", "--junitxml", tmp_path / "j.xml", *limits)
    assert code == 0, out
    summary = out[out.index("= vkconv =") :]
    assert re.search(r"\nconv2d depthwise: \d passed\n", summary)
    assert re.search(r"\nskipped, refused by the device: \d+\n", summary)
    assert "\nskipped, no such quirk: 1\n" in summary
    assert ("device: Mali-G57 on " in summary) is bool(limits)
    properties = {p.get("name"): p.get("value") for p in ET.parse(tmp_path / "j.xml").iter("property")}
    assert {"vk_device", "vk_route"} <= properties.keys()


FAILING = """
def test_wrong_reference(vk_call):
    x = np.ones((3, 7), np.float32)
    wanted = np.maximum(x, 0)
    wanted[1] = 5
    vk_call("relu:x=3x7", {"x": x}).assert_close(wanted)

def test_wrong_by_its_own_reference(vk_call):
    ran = vk_call("conv2d:x=1x3x9x9,w=4x3x3x3", route="direct", seed=3)
    ran.outputs["y"][:, 2] += 1
    ran.assert_close()
"""


def test_a_failure_says_what_where_and_how_to_repeat_it(tmp_path, device):
    code, out = run(project(tmp_path, FAILING), "--vk-device", device)
    assert code == 1
    assert "y[1, 0] is 1, the reference 5" in out
    assert "where    all of row 1" in out
    assert "where    all of channel 2" in out
    assert "call     conv2d:x=1x3x9x9,w=4x3x3x3,dtype=f32" in out
    assert "route    direct local=64" in out
    assert re.search(r"device   \S+.*, driver ", out)
    wanted = "repeat   vkconv check conv2d:x=1x3x9x9,w=4x3x3x3,dtype=f32 --route conv2d=direct"
    assert f"{wanted} --param conv2d:direct=local:64 --seed 3" in out
    saved = re.search(r"repeat   vkconv check (\S+/node\.vkc) --no-passes --input x=@(\S+)", out)
    assert Path(saved[1]).exists()
    assert Path(saved[2]).exists()
    assert "conv2d direct: 1 failed" in out
    assert "relu map: 1 failed" in out or re.search(r"relu \w+: 1 failed", out)


OTHERS = """
def test_unknown_operand(vk_call):
    with pytest.raises(Exception, match="has no operand 'y' here"):
        vk_call("relu:x=3x7", {"y": np.ones(3)})
    with pytest.raises(Exception, match="dtype float64"):
        vk_call("relu:x=3x7", {"x": np.ones((3, 7))})
    with pytest.raises(Exception, match="no route 'nope'"):
        vk_call("relu:x=3x7", route="nope")

def test_forced(vk_call, vk_device):
    assert vk_call("conv2d:x=1x3x9x9,w=4x3x3x3").route == "direct"
    assert vk_device.routes == {"conv2d": "direct"}

def test_params(vk_call):
    ran = vk_call("conv2d:x=1x3x9x9,w=4x3x3x3", params={"local": 32})
    assert ran.params["local"] == 32
    ran.assert_close()
    assert ran.output is ran.outputs["y"]
"""


@pytest.mark.slow
def test_the_job_of_the_example_compares_with_a_baseline(tmp_path, device):
    """ci/run.sh leaves a baseline where there is none, passes beside it, and fails where that is far faster."""
    folder = tmp_path / "device_tests"
    shutil.copytree(EXAMPLE, folder)
    (folder / "calls.txt").write_text("relu:x=64x64\n")
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": tools, "VKCONV_DEVICE": device, "MIN_TIME": "0.002", "FAIL_OVER": "1000000"}
    env["PYTEST_ADDOPTS"] = "-p no:cacheprovider -k reference_of_our_own"

    def job(**changes):
        done = subprocess.run([folder / "ci" / "run.sh"], capture_output=True, text=True, env={**env, **changes})
        return done.returncode, done.stdout + done.stderr

    assert job()[0] == 0 and (folder / "tests.xml").exists() and (folder / "now.html").exists()
    baseline = json.loads((folder / "baseline.json").read_text())
    assert job()[0] == 0
    for row in baseline["rows"]:
        row.update({name: row[name] / 1000 for name in ("us_median", "us_min", "us_p90")})
    (folder / "baseline.json").write_text(json.dumps(baseline))
    code, said = job(FAIL_OVER="1.5")
    assert code == 1 and "relu" in said, said


def test_options_reach_the_calls(tmp_path, device):
    code, out = run(project(tmp_path, OTHERS), "--vk-device", device, "--vk-route", "conv2d=direct")
    assert code == 0, out


@pytest.mark.parametrize(("require", "code"), [((), 0), (("--vk-require",), 1)])
def test_without_a_device_tests_are_skipped_or_fail(require, code, tmp_path):
    none = str(tmp_path / "no-driver.json")
    folder = project(tmp_path, "def test_it(vk_call):\n    pass\n")
    done, out = run(folder, *require, VK_DRIVER_FILES=none, VK_ICD_FILENAMES=none)
    assert done == code, out
    assert "no Vulkan device found" in out if require else "skipped, no Vulkan device: 1" in out


def test_wrong_options_are_told_once(tmp_path):
    code, out = run(project(tmp_path, "def test_it(vk_call):\n    pass\n"), "--vk-route", "conv2d=direkt")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --vk-route conv2d=direkt: conv2d has no route 'direkt' (did you mean 'direct'?)" in out
    assert "Traceback" not in out


ELSEWHERE = """
def test_call(vk_call):
    vk_call("relu:x=9")


@pytest.mark.vk_quirk("adreno-im2col-bnd")
def test_quirk(vk_device):
    pass
"""


def test_another_device_and_a_quirk_that_is_none(tmp_path, device):
    folder = project(tmp_path, ELSEWHERE)
    code, out = run(folder, "--vk-device", "no such GPU", "-k", "test_call", "-rs")
    assert code == 1 and "--vk-device no such GPU: device 'no such GPU' fits no device here" in out
    assert "1 error" in out and "skipped" not in out and "passed" not in out
    code, out = run(folder, "--vk-device", device)
    assert code == 1 and "1 passed" in out and "1 error" in out
    assert "knows no quirk 'adreno-im2col-bnd' (did you mean 'adreno-im2col-band'?)" in out


def test_a_project_without_vulkan_tests_is_left_alone(tmp_path):
    code, out = run(project(tmp_path, "def test_it():\n    pass\n"))
    assert code == 0
    assert "= vkconv =" not in out
