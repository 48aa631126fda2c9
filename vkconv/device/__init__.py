"""Device facts as data: from a live device or a JSON file, never from the name of a GPU in code."""

from vkconv.device.facts import Device, load_device

__all__ = ["Device", "load_device"]
