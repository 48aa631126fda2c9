"""Tests of phones and boards against what stands on the other end: a real adb, and a player of arm64 under qemu.
`make boards` sets up what they need and runs them."""

import os

# What a developer measured on this machine must not choose the routes under test.
os.environ["VKCONV_MEASURED"] = "off"
