"""Kernels that families share, without an op or a route of their own."""
