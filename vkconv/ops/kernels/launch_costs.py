"""What launches beside a product cost, by the bytes that they read and write: copies, transforms."""

import dataclasses

from vkconv.cost import Scale
from vkconv.device import Device, target_of


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchCosts:
    """Of so many launches, with their barriers, us and us of a MiB, on the device of the shipped file ``timed_on``."""

    us: float
    mib_us: float
    timed_on: str
    launches: int = 1

    def of(self, nbytes: float, device: Device) -> float:
        """Microseconds on a device, of launches that move so many bytes."""
        scale = Scale.of(self.timed_on, target_of(device))
        return scale.launched(self.us, self.launches) + scale.moved(self.mib_us * nbytes / 2**20)
