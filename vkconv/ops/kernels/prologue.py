"""What becomes of a convolution's input before it is multiplied: times a scale, plus a shift, then an activation."""

import dataclasses

from vkconv.call import Call
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.activation import activation
from vkconv.program import Word

# Those without parameters under which a number that is off by little stays so, relative to what it was added up from.
ACTIVATIONS = ("none", "relu", "hard_swish", "silu")
# The define of a kernel that has one: a form of `vkconv.ops.kernels.compiled`.
FORM = "PROLOGUE"


@dataclasses.dataclass(frozen=True)
class Prologue:
    """What a launch makes of elements of its input as it loads them: act(x * scale + shift), as `ACTIVATIONS` has it.

    ``scale`` is a buffer with a number for each channel or, where ``each_image``, of each image and channel; ``shift``
    one with a number for each channel, or None.
    """

    scale: str
    shift: str | None
    act: str = "none"
    each_image: bool = False

    @property
    def buffers(self) -> dict[str, str | None]:
        """What a launch binds for it."""
        return {"scale": self.scale, "shift": self.shift}

    @property
    def constants(self) -> dict[str, Word]:
        """Its specialization constants."""
        return {
            "BEFORE": activation(self.act).id,
            "HAS_SHIFT": self.shift is not None,
            "EACH_IMAGE": self.each_image,
        }


def with_prologue(shader: Shader) -> Shader:
    """The variant of a shader that has one."""
    return shader.having((FORM, ""))


def bound_buffers(call: Call) -> int:
    """Storage buffers that a launch binds: input, weights, what is per channel, output, scale, shift, residual."""
    return 6 + call.has("residual")


def binds_prologue(call: Call, device: Device) -> bool:
    """Whether kernels of the device may bind a prologue beside all else."""
    return bound_buffers(call) <= int(device.limit("maxPerStageDescriptorStorageBuffers"))
