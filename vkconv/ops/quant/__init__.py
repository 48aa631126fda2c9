"""Integers of 8 bits."""
