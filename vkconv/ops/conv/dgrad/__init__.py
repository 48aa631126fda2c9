"""conv2d_backward_data."""
