"""Device facts as data: from a live device or a JSON file, never from the name of a GPU in code."""

from vkconv.device.facts import Device
from vkconv.device.files import load_device, shipped_devices
from vkconv.device.target import Target, target_of

__all__ = ["Device", "Target", "load_device", "shipped_devices", "target_of"]
