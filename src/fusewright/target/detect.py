"""Which machine a plan is made for: the one that is named, the GPU that is here, or an H200."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

from .machine import A100, B200, H100, H200, MACHINES, MEMORY_SHARE, RTX_4090, Machine, by_name

SCALED = "scaled from a machine of its kind by multiprocessors and clock; not measured"
# Of each kind of chip, one whose multiprocessors do as much in a clock. Others (compute capability 8.6, 12.0, …) are as a desktop's.
ALIKE = {(8, 0): A100, (9, 0): H100, (10, 0): B200, (10, 3): B200}


def machine_for(arch: str) -> Machine:
    """The machine of this name; without one, the GPU that is here; where there is none, an H200."""
    return by_name(arch) if arch else machine_here() or H200


def machine_here() -> Machine | None:
    """The current GPU."""
    if not torch.cuda.is_available():
        return None
    return of_properties(torch.cuda.get_device_properties(torch.cuda.current_device()))


def of_properties(properties: Any) -> Machine:
    """A known machine by its name and size, or a record of what PyTorch shows of this one. Of a part of a GPU (MIG) the name alone
    would say too much."""
    capability, multiprocessors = (properties.major, properties.minor), properties.multi_processor_count
    for machine in MACHINES.values():
        named = re.search(rf"\b{machine.name}\b", properties.name) is not None
        if named and (machine.capability, machine.multiprocessors) == (capability, multiprocessors):
            return machine
    like = ALIKE.get(capability, RTX_4090)
    clock = getattr(properties, "clock_rate", 0) * 1e-6 or like.clock_ghz  # kHz
    share = multiprocessors / like.multiprocessors * (clock / like.clock_ghz)
    older = capability < (8, 0)  # no TF32
    return replace(
        like,
        name=re.sub(r"^NVIDIA (GeForce )?", "", properties.name),
        capability=capability,
        multiprocessors=multiprocessors,
        shared_per_block=getattr(properties, "shared_memory_per_block_optin", 48 * 1024 if older else like.shared_per_block),
        shared_per_multiprocessor=getattr(properties, "shared_memory_per_multiprocessor", like.shared_per_multiprocessor),
        l2_bytes=getattr(properties, "L2_cache_size", 0) or like.l2_bytes,
        memory_tb_per_s=bandwidth(properties) or like.memory_tb_per_s * multiprocessors / like.multiprocessors,
        tf32_tflops=share * like.tf32_tflops,
        half_tflops=share * like.half_tflops,
        warp_tf32_tflops=share * like.warp_tf32_tflops,
        warpgroup_tf32_tflops=share * like.warpgroup_tf32_tflops,
        fp32_tflops=share * like.fp32_tflops,
        clock_ghz=clock,
        registers=getattr(properties, "regs_per_multiprocessor", like.registers),
        threads=properties.max_threads_per_multi_processor,
        rates=SCALED,
    )


def bandwidth(properties: Any) -> float:
    """TB/s of memory that moves twice a clock, times what an H200 reaches of its own; 0 where PyTorch does not show it."""
    kilohertz, bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return MEMORY_SHARE * 2 * kilohertz * 1e3 * bits / 8 * 1e-12
