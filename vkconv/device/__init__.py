"""Device facts as data: from a live device or a JSON file, never from the name of a GPU in code."""

from vkconv.device.facts import Device
from vkconv.device.files import load_device, shipped_devices

__all__ = ["Device", "load_device", "shipped_devices"]
