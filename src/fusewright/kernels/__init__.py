"""Kernel templates: one file each. Each turns a planned kernel into CUDA text."""
