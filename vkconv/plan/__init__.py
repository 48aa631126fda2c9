"""From a graph to commands, without Vulkan: specialize, passes, routes, memory, hazards, one plain-data `Plan`."""
