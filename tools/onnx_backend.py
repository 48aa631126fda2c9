"""How many of ONNX's own backend tests pass on a device, and why the others do not: every node test, the expanded ones
and all element types, and every model that comes with onnx.

    python tools/onnx_backend.py [-d DEVICE] [NAME...]

The two counts of outputs are those that onnx's own runner asks for. ``NAME`` keeps tests whose name holds it.
"""

import argparse
import collections
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "suites"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import onnx_backend_tests as backend_tests

from vkconv.core import VkconvError
from vkconv.onnx_backend import VkconvBackend

_REASON_CHARS = 150


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--device", type=int, help="a number of `vkconv devices`, where it is not the default")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    device = "CPU" if arguments.device is None else f"VULKAN:{arguments.device}"
    tests = [*backend_tests.all_node_tests(), *backend_tests.model_tests()]
    tests = [test for test in tests if not arguments.names or any(name in test.name for name in arguments.names)]
    reasons = {test.name: reason for test in tests if (reason := why_not(test, device))}
    for name, reason in sorted(reasons.items()):
        print(f"{name}: {reason}")
    wrong = collections.Counter(reason.partition(":")[0] for reason in reasons.values())
    print(f"{len(tests) - len(reasons)} of {len(tests)} pass; {dict(wrong)}")
    return 0


def why_not(test: backend_tests.BackendTest, device: str) -> str:
    """The kind and text of the error that a test ends with, empty where it passes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, data_sets = test.load()
            with VkconvBackend.prepare(model, device) as prepared:
                for given, wanted in data_sets:
                    test.check(wanted, prepared.run(given))
    except (VkconvError, AssertionError) as error:
        at_random = isinstance(error, AssertionError) and test.name.startswith(backend_tests.RANDOM)
        return "random: numpy's numbers, which ONNX does not ask for" if at_random else _told(error)
    except Exception as error:  # of onnx's checker, or a defect: either is told
        return _told(error)
    return ""


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    kind = "wrong" if isinstance(error, AssertionError) else type(error).__name__
    return f"{kind}: {text[:_REASON_CHARS]}"


if __name__ == "__main__":
    sys.exit(main())
