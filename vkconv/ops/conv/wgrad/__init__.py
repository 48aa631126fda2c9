"""conv2d_backward_weight and conv3d_backward_weight."""
