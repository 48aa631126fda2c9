"""One dispatch by itself, over buffers of its own."""

import numpy as np

from vkconv.backend.executable import Executable
from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import plan_dispatch
from vkconv.plan.commands import Launch


def launch(device, buffers, dispatch, inputs=(), dtype=np.float32):
    """What a dispatch over buffers of so many bytes leaves in y, after x was given."""
    live = open_device(device)
    executable = Executable(plan_dispatch(live.device, buffers, dispatch), live, {}, poison=True)
    down = live.handle.buffer(buffers["y"], "download")
    recording = live.handle.recording()
    if len(inputs):
        up = live.handle.buffer(buffers["x"], "upload")
        np.frombuffer(up.view, dtype)[:] = inputs
        recording.copy(up, 0, executable._buffers["x"], 0, up.nbytes)
        recording.barrier(["transfer"], ["compute"])
    (command,) = executable.plan.run
    assert isinstance(command, Launch)
    binds = [(executable._buffers[r.buffer], r.offset, r.nbytes) for r, _ in command.binds]
    recording.dispatch(live.pipeline(command, []), binds, command.push, command.groups)
    recording.barrier(["compute"], ["transfer"])
    recording.copy(executable._buffers["y"], 0, down, 0, down.nbytes)
    recording.barrier(["transfer"], ["host"])
    recording.end()
    recording.run()
    return np.frombuffer(down.view, dtype).copy()
