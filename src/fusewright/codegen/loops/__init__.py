"""Pointwise, reduce, scan and transposing kernels, made of primitives."""
