"""From a graph to commands, without Vulkan: binding, passes, routes, memory, hazards, one plain-data `Plan`."""
