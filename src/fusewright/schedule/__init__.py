"""`Graph` and primitives become a `Plan`: which nodes share a kernel, what stays with cuDNN and cuBLAS, where values live."""
