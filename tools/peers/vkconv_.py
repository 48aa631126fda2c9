"""vkconv as a peer of the harness: every case from its ONNX file, arrays in and out of each run."""

from adapters import Call, Unsupported

import vkconv
from vkconv import functional


class Peer:
    def __init__(self, variant, threads):
        self.info = {"version": vkconv.__version__, "device": "", "includes": "upload + compute + download"}

    def prepare(self, case):
        if case.op == "wgrad":  # ONNX has no such operator; functions of arrays push, where sessions have constants
            return self._gradient(case)
        try:
            session = vkconv.load(case.onnx())
            inputs = case.inputs()
            session.run(inputs)
        except vkconv.UnsupportedError as error:
            raise Unsupported(str(error)) from None
        self.info["device"] = session.device.name
        routes = sorted({node.route for node in session.plan.nodes if node.route})
        return Call(lambda: session.run(inputs), lambda outputs: next(iter(outputs.values())), ", ".join(routes))

    def _gradient(self, case):
        inputs = case.inputs()

        def run():
            return functional.conv2d_backward_weight(
                inputs["x"], inputs["dy"], case.attrs["wshape"], padding=case.attrs["pad"]
            )

        run()
        return Call(run, lambda dw: dw, "conv2d_backward_weight")
