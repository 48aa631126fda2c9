"""Microbenchmarks: calls checked against their reference, then timed, on one device; results that can be compared."""
