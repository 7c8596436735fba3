"""What kernels run on: GPUs as records, and the device functions that kernels share."""
