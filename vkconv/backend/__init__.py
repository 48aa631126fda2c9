"""The runtime side of vkconv: the only package that imports kp and the native bridge."""
