"""conv2d."""
