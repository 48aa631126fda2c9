"""A product or convolution of which only a reduction is kept."""
