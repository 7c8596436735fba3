"""Planned kernels become CUDA: loop kernels in `loops`, tensor-core kernels in `mma`."""
