"""Elements moved, gathered and scattered."""
