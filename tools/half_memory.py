"""Memory of the networks of the onnx package planned in f32 and in f16: ``python tools/half_memory.py [DEVICE]``."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / folder) for folder in ("", "suites")]

from light_networks import NETWORKS, light_network  # noqa: E402

from vkconv.core import DType  # noqa: E402
from vkconv.device import load_device  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.plan.planner import Options, plan  # noqa: E402


def main(argv: list[str]) -> None:
    device = load_device(argv[0] if argv else "lavapipe")
    print(f"{'network':14}{'f32 [MB]':>10}{'f16 [MB]':>10}{'f16 / f32':>11}   activations and weights on {device.name}")
    for name in NETWORKS:
        graph, megabytes = load_onnx_proto(light_network(name)), []
        for dtype in (None, DType.F16):
            memory = plan(graph, device, Options(dtype=dtype)).plan.memory
            megabytes.append((memory.activations_bytes + memory.weights_bytes) / 1e6)
        print(f"{name:14}{megabytes[0]:10.1f}{megabytes[1]:10.1f}{megabytes[1] / megabytes[0]:11.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
