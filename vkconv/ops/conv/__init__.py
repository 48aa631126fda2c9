"""Convolutions, forward, transposed and their gradients."""
