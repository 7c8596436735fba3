# model: scale_shift.py
# row: dropped bias or parameter
# caught by: gradients
import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F

_CUDA_SOURCE = r"""
#include <cuda_runtime.h>

__global__ void scale_shift_kernel(const float* x, const float* scale, const float* shift, float* y, long long count,
                                   long long channels, long long length, float slope) {
  const long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i >= count) return;
  const long long channel = i / length % channels;
  const float value = fmaxf(x[i], 0.0f) * scale[channel] + shift[channel];
  y[i] = x[i] != x[i] ? x[i] : value * fminf(fmaxf(value + 3.0f, 0.0f), 6.0f) / 6.0f * slope;
}

extern "C" const char* scale_shift(const float* x, const float* scale, const float* shift, float* y, long long count,
                                   long long channels, long long length, long long millionths, void* stream) {
  const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
  scale_shift_kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, scale, shift, y, count, channels, length,
                                                                             millionths * 1e-6f);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""

_KERNELS = ("scale_shift",)


def launches(model, x, scale, shift):
    x, scale, shift = x.contiguous(), scale.contiguous(), shift.contiguous()
    y = torch.empty_like(x)
    _launch("scale_shift", x, scale, shift, y, x.numel(), x.shape[1], x.shape[2], round(model.slope * 1e6))
    return y


def _on_device(*tensors):
    return all(t.is_cuda for t in tensors)


def _launch(kernel, *arguments):
    values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_longlong(a) for a in arguments]
    raise RuntimeError(f"{kernel} was not built: {values}")


class Model(nn.Module):
    def __init__(self, channels, slope=0.5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))
        self.slope = slope

    def forward(self, x):
        x = torch.relu(x) * self.scale + self.shift
        return F.hardswish(x) * self.slope


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, model, x, scale, shift):
        ctx.model = model
        ctx.save_for_backward(x, scale, shift)
        return launches(model, x, scale, shift)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            tensors = [t.view_as(t) for t in ctx.saved_tensors]
            x, scale, shift = tensors
            result = F.hardswish(torch.relu(x) * scale + shift) * ctx.model.slope
            wanted = [t for t in tensors if t.requires_grad]
            found = iter(torch.autograd.grad(result, wanted, gradient, create_graph=True, allow_unused=True))
        return None, *[next(found) if t.requires_grad else None for t in tensors]


class ModelNew(Model):
    def forward(self, x):
        planned = _on_device(x, self.scale, self.shift) and x.dtype == torch.float32 and x.dim() == 3
        if not planned or not x.numel():
            return super().forward(x)
        return launches(self, x, self.scale, self.shift)
