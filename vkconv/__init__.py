"""vkconv: a Vulkan compute runtime for convolution networks, on Kompute."""

__version__ = "0.1.0"
