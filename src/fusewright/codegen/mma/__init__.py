"""Tensor-core kernels with fused epilogues: convolutions, products, attention; and depthwise convolutions, which share their epilogues."""
