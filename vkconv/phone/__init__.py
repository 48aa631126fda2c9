"""Devices where vkconv does not run: packs for them, their player, the cable or network to them, their results."""
