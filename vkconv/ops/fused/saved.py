"""What it saves to keep tensors between layers in a launch, and what it costs to make parts of them again."""

import dataclasses
from collections.abc import Callable

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.cost import lanes_us, moving_us
from vkconv.device import Device, target_of
from vkconv.policy import Policy
from vkconv.requirement import Requirement


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """Bytes that are neither written nor read again, launches that do not run, and the multiply-adds that are made for
    it beside the ``needed`` ones: again at borders of tiles and for other output channels, and beyond the image."""

    nbytes: int
    launches: int
    needed: int
    repeated: int

    def saved_us(self, device: Device) -> float:
        """Microseconds of the launches, and of memory traffic."""
        return moving_us(self.nbytes, target_of(device), self.launches)

    def repeated_us(self, device: Device, share: float) -> float:
        """Microseconds of what is repeated, at this share of all multiply-adds that the device can make."""
        return lanes_us(self.repeated, target_of(device), share)

    def __str__(self) -> str:
        launches = f"{self.launches} launch{'es' if self.launches > 1 else ''}"
        more = round(100 * self.repeated / max(1, self.needed))
        return (
            f"saves {bytes_str(self.nbytes)} written and read between them, and {launches}; {more}% more multiply-adds"
        )


def pays(saving: Callable[[Call, Device], Saving], rate: Policy[float]) -> Requirement:
    """The requirement that a device saves more time than what is repeated takes. ``rate`` is the share of its
    multiply-adds at which it repeats them, 0 where fusing is not known to pay."""

    def test(call: Call, device: Device) -> bool:
        share = rate.of(device)
        if not share:
            return False
        what = saving(call, device)
        return what.saved_us(device) > what.repeated_us(device, share)

    def actual(call: Call, device: Device) -> str:
        share = rate.of(device)
        if not share:
            return "not known to pay there"
        what = saving(call, device)
        return f"{what.saved_us(device):.1f} us saved for {what.repeated_us(device, share):.1f}; it {what}"

    return Requirement("a device that saves more than repeated work costs", test, actual)
