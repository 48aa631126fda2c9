"""GPUs' own compilers without the GPUs: Mesa's drivers behind DRM shims, and what they make of vkconv's pipelines.

Nothing here is executed by a GPU, and nothing needs Vulkan on this machine: docs/compilers.md.
"""
