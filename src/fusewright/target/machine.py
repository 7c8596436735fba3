"""A GPU as data: what planning knows of it.

Costs in this project were fitted to an H200. A constant that was measured there stands in its module with that measurement, and is
scaled to another machine by what bounds it: `machine.by_memory(4.1)` is 4.1 on an H200 and 4.1 × (bandwidth / the H200's) elsewhere.

>>> A100.by_memory(4.14) == A100.memory_tb_per_s
True
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Refused

KIB, MIB = 1024, 1 << 20
LEAST_SHARED = 99 * KIB  # that a block has on every machine with TF32 tensor cores: compute capability 8.6, 8.9 and 12.0


@dataclass(frozen=True)
class Machine:
    """Rates are what is reached, not peaks. `rates` says where they come from."""

    name: str
    capability: tuple[int, int]  # compute capability
    multiprocessors: int
    shared_per_block: int  # bytes, at most
    shared_per_multiprocessor: int
    l2_bytes: int
    memory_tb_per_s: float  # a large read
    tf32_tflops: float  # a large matrix product by the library, on tensor cores
    half_tflops: float
    warp_tf32_tflops: float  # `mma.sync`, which a warp issues alone; of halves twice that
    fp32_tflops: float  # a large matrix product without tensor cores
    clock_ghz: float  # under load
    rates: str
    warpgroup_tf32_tflops: float = 0.0  # `wgmma`, which only compute capability 9.0 has
    registers: int = 65536  # of a multiprocessor
    threads: int = 2048  # of a multiprocessor
    special_per_clock: int = 16  # special functions of a multiprocessor
    launch_us: float = 2.5  # a kernel that does nothing, back to back

    @property
    def with_article(self) -> str:
        """`an H200`, `a B200`."""
        return f"{'an' if self.name[:1] in 'AEFHILMNORSX' else 'a'} {self.name}"

    @property
    def has_tf32(self) -> bool:
        return self.capability >= (8, 0)

    @property
    def has_wgmma(self) -> bool:
        return self.warpgroup_tf32_tflops > 0

    # ---- what was measured on an H200, on this machine

    def by_memory(self, rate: float) -> float:
        """Of bytes that cross memory in a time."""
        return rate * (self.memory_tb_per_s / H200.memory_tb_per_s)

    def by_tensor_cores(self, rate: float) -> float:
        """Of the library's products on tensor cores."""
        return rate * (self.tf32_tflops / H200.tf32_tflops)

    def by_half(self, rate: float) -> float:
        """As above, of float16 and bfloat16."""
        return rate * (self.half_tflops / H200.half_tflops)

    def by_warp_mma(self, rate: float) -> float:
        return rate * (self.warp_tf32_tflops / H200.warp_tf32_tflops)

    def by_wgmma(self, rate: float) -> float:
        return rate * (self.warpgroup_tf32_tflops / H200.warpgroup_tf32_tflops)

    def by_fp32(self, rate: float) -> float:
        """Of plain arithmetic."""
        return rate * (self.fp32_tflops / H200.fp32_tflops)

    def by_clock(self, rate: float) -> float:
        """Of what one multiprocessor does in a time."""
        return rate * (self.clock_ghz / H200.clock_ghz)

    def by_issue(self, rate: float) -> float:
        """Of what all multiprocessors do in a time, a clock's worth after another: instructions, wavefronts of shared memory."""
        return self.by_clock(rate) * (self.multiprocessors / H200.multiprocessors)

    def by_size(self, count: int) -> int:
        """Of blocks, threads or rows that keep the whole machine busy."""
        return max(1, count * self.multiprocessors // H200.multiprocessors)

    def by_cache(self, count: int) -> int:
        """Of elements that a block finds again in the L2 cache, which those of all multiprocessors share."""
        return count * self.l2_bytes * H200.multiprocessors // (H200.l2_bytes * self.multiprocessors)

    def by_special(self, slots: float) -> float:
        """Of issue slots that a special function takes."""
        return slots * (H200.special_per_clock / self.special_per_clock)

    def by_launch(self, time: float) -> float:
        return time * (self.launch_us / H200.launch_us)


MEASURED = "measured"
# What an H200 reaches of its published 4.8 TB/s, 495 TFLOP/s (TF32), 989 (halves), 67 (float32): taken for the others too.
MEMORY_SHARE, TF32_SHARE, HALF_SHARE, FP32_SHARE = 0.86, 0.80, 0.75, 0.75
PUBLISHED = "published, times the share that an H200 reaches of its own; not measured"

H200 = Machine(
    "H200", (9, 0), 132, 227 * KIB, 228 * KIB, 60 * MIB,
    memory_tb_per_s=4.14, tf32_tflops=395.0, half_tflops=741.0, fp32_tflops=50.0,
    warp_tf32_tflops=295.0,  # benchmarks/conv_ceiling.py: 289 to 301
    warpgroup_tf32_tflops=390.0,  # benchmarks/conv_founding.py: 379 to 393
    clock_ghz=1.76, rates=MEASURED,
)  # fmt: skip

# The H200's chip with other memory: what was measured there, and the bandwidth as published.
H100 = Machine(
    "H100", (9, 0), 132, 227 * KIB, 228 * KIB, 50 * MIB,
    memory_tb_per_s=MEMORY_SHARE * 3.35, tf32_tflops=395.0, half_tflops=741.0, fp32_tflops=50.0,
    warp_tf32_tflops=295.0, warpgroup_tf32_tflops=390.0, clock_ghz=1.76, rates=PUBLISHED,
)  # fmt: skip

# On these `mma.sync` is the only way to the tensor cores, and reaches what the library reaches.
A100 = Machine(
    "A100", (8, 0), 108, 163 * KIB, 164 * KIB, 40 * MIB,
    memory_tb_per_s=MEMORY_SHARE * 2.04, tf32_tflops=TF32_SHARE * 156, half_tflops=HALF_SHARE * 312, fp32_tflops=FP32_SHARE * 19.5,
    warp_tf32_tflops=TF32_SHARE * 156, clock_ghz=1.41, rates=PUBLISHED,
)  # fmt: skip
L4 = Machine(
    "L4", (8, 9), 58, 99 * KIB, 100 * KIB, 48 * MIB,
    memory_tb_per_s=MEMORY_SHARE * 0.30, tf32_tflops=TF32_SHARE * 60, half_tflops=HALF_SHARE * 121, fp32_tflops=FP32_SHARE * 30.3,
    warp_tf32_tflops=TF32_SHARE * 60, clock_ghz=2.04, threads=1536, rates=PUBLISHED,
)  # fmt: skip
RTX_4090 = Machine(
    "RTX 4090", (8, 9), 128, 99 * KIB, 100 * KIB, 72 * MIB,
    memory_tb_per_s=MEMORY_SHARE * 1.008, tf32_tflops=TF32_SHARE * 82.6, half_tflops=HALF_SHARE * 165, fp32_tflops=FP32_SHARE * 82.6,
    warp_tf32_tflops=TF32_SHARE * 82.6, clock_ghz=2.52, threads=1536, rates=PUBLISHED,
)  # fmt: skip

# Its own tensor-core instructions (tcgen05) we do not write. `mma.sync` is taken at the H200's rate a multiprocessor and clock.
B200 = Machine(
    "B200", (10, 0), 148, 227 * KIB, 228 * KIB, 126 * MIB,
    memory_tb_per_s=MEMORY_SHARE * 8.0, tf32_tflops=TF32_SHARE * 1100, half_tflops=HALF_SHARE * 2250, fp32_tflops=FP32_SHARE * 80,
    warp_tf32_tflops=295.0 * 148 / 132 * 1.85 / 1.76, clock_ghz=1.85, rates=PUBLISHED,
)  # fmt: skip

MACHINES = {machine.name: machine for machine in (H200, H100, A100, L4, RTX_4090, B200)}


def by_name(name: str) -> Machine:
    """However it is spelt: `rtx4090` and `RTX 4090` are one.

    >>> by_name("rtx4090").name
    'RTX 4090'
    """
    found = next((machine for machine in MACHINES.values() if spelt(machine.name) == spelt(name)), None)
    if found is None:
        raise Refused(f"arch {name!r} is not one of {', '.join(MACHINES)}")
    return found


def spelt(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
