"""Kernels with a bug are found: by a message, by the order of threads, or by a sanitizer that names the line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from host_sources import PRELUDE, RIGHT, WRONG

from fusewright.host import FOUND_SOMETHING, HostLibrary, compile_host, run_sanitized, sanitizer_report

CALLS = Path(__file__).parent / "sanitized_calls.py"


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith(f"// MARK {mark}"))


def call(library: HostLibrary, kernel: str) -> torch.Tensor:
    y = torch.zeros(128)
    library.call(kernel, torch.arange(128.0), y)
    return y


# ---- found by the runtime

MESSAGES = {
    "shared_overflow": r"block \(0,0,0\): a write 0 bytes past the end of a \(256 bytes declared at line \d+\)",
    "dynamic_overflow": r"a write 0 bytes past the end of dynamic shared memory \(256 bytes",
    "wild_pointer": r"thread \(33,0,0\): invalid memory access near 0x40 at line \d+",
    "misaligned": r"not aligned as its type asks at line LINE",
    "stack_overflow": r"stack overflow: its local variables take more than 128 KiB",
    "division": r"integer division by zero at line \d+",
    "divergent": r"(after \d+ of 128 threads|ends while another thread waits in __syncthreads)",
    "two_barriers": r"divergent barriers: .* line LINE\b",
    "early_return": r"(ends while another thread waits in __syncthreads|after \d+ of 128 threads)",
    "nobody_comes": r"deadlock: 64 threads wait at .* thread 0 at line LINE, barrier 2 has 64 of 96 threads\); 64 of 128",
    "other_counts": r"barrier 2 is for (64|128) threads at line \d+, and for (128|64) at line",
    "left_behind": r"the block ends, and barrier 3 \(line LINE\) has 32 of its 128 threads",
    "no_such_barrier": r"there is no barrier 16 \(line LINE\)",
    "half_a_warp": r"deadlock: 16 threads wait in __shfl_xor_sync at line LINE .* 0xffff0000: thread 16 has exited",
    "not_in_mask": r"__shfl_xor_sync at line LINE: lane \d+ is not in its own mask 0x0000ffff",
    "reads_outside_mask": r"__shfl_down_sync at line \d+ reads from lane \d+, which is not in mask 0x0000ffff",
    "different_masks": r"deadlock: 32 threads wait in __shfl_sync .* thread 16 waits elsewhere",
    "short_warp": r"reads from lane \d+, which is not in mask",
    "never_waits": r"ends with 1 cp.async copies not waited for",
    "unaligned_copy": r"cp.async at line LINE: address not aligned to 16",
    "large_block": r"kernel plain_kernel: invalid launch: a block of more than 1024 threads",
    "no_blocks": r"kernel plain_kernel: invalid launch: a grid of no blocks",
    "too_much_shared": r"kernel plain_kernel: invalid launch: more dynamic shared memory than 48 KiB",
    "bounded": r"__launch_bounds__\(64\), but launched with 128 threads",
    "much_shared": r"kernel much_shared_kernel<49>.* static shared memory over 48 KiB",
    "assumption": r"__builtin_assume\(threadIdx.x < 16\) does not hold at line LINE",
    "trap": r"thread \(3,0,0\): __trap at line LINE",
}


@pytest.mark.parametrize("order", ["warps", "forward"])
@pytest.mark.parametrize("kernel", MESSAGES)
def test_message(wrong: HostLibrary, kernel: str, order: str) -> None:
    wrong.set_order(order, seed=2)
    expected = MESSAGES[kernel]
    if "LINE" in expected:
        expected = expected.replace("LINE", str(line_of(kernel)))
    with pytest.raises(RuntimeError) as raised:
        call(wrong, kernel)
    assert re.search(expected, str(raised.value)), str(raised.value)
    assert str(raised.value).startswith("kernel ")
    call(wrong, "plain")  # and the next launch is not affected


def test_an_error_is_delivered_once(wrong: HostLibrary) -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError, match="__trap"):
            call(wrong, "trap")
        call(wrong, "plain")


# ---- found because the result is wrong: NaN where shared memory was not written yet, or stale values

EXPECTED = {
    "no_barrier": torch.arange(128.0).flip(0),
    "left_neighbour": torch.cat([torch.zeros(1), torch.arange(127.0)]),
    "reused_buffer": torch.arange(128.0).roll(64) * 4 + 6,
    "no_wait": torch.arange(128.0),
}


@pytest.mark.parametrize("kernel", EXPECTED)
@pytest.mark.parametrize("seed", range(3))
def test_a_race_shows_in_the_default_order(wrong: HostLibrary, kernel: str, seed: int) -> None:
    wrong.set_order("warps", seed)
    assert not torch.equal(call(wrong, kernel), EXPECTED[kernel])


def test_ascending_order_hides_some_races(wrong: HostLibrary) -> None:
    """Why it is not the default."""
    wrong.set_order("forward")
    assert torch.equal(call(wrong, "left_neighbour"), EXPECTED["left_neighbour"])


# ---- found by a sanitizer


def run(sanitize: str, source: str, calls: Sequence[tuple[str, Sequence[object]]]) -> tuple[int, str, str | None]:
    library = compile_host(source, include_text=PRELUDE, sanitize=sanitize)
    process = run_sanitized([str(CALLS), str(library), json.dumps(calls)], sanitize, env={"PYTHONMALLOC": "malloc"})
    return process.returncode, process.stdout + process.stderr, sanitizer_report(process.stderr)


FINDINGS = [
    ("address", "past_the_end", "kernels.cu:{past_the_end}: read of 4 bytes outside the tensor"),
    ("address", "shared_overflow", "kernels.cu:{shared_overflow}: write of 4 bytes outside a shared array"),
    ("address", "dynamic_overflow", "kernels.cu:{dynamic_overflow}: write of 4 bytes outside a shared array"),
    ("address", "local_overflow", "kernels.cu:{local_overflow}: read of 4 bytes outside a local array"),
    ("address", "copy_past_the_end", "kernels.cu:{copy_past_the_end}: read of 4 bytes outside the tensor"),
    ("undefined", "misaligned", "kernels.cu:{misaligned}: undefined behaviour: .*misaligned address"),
    ("thread", "no_barrier", "data race: (read|write) at kernels.cu:({no_barrier_read}|{no_barrier_write}), previous"),
    ("thread", "between_blocks", "data race: write at kernels.cu:{between_blocks}, previous write at"),
    ("thread", "warp_write_read", "data race: read at kernels.cu:"),
]


@pytest.mark.parametrize(("sanitize", "kernel", "expected"), FINDINGS, ids=[f"{s}-{k}" for s, k, _ in FINDINGS])
def test_sanitizer(sanitize: str, kernel: str, expected: str) -> None:
    status, output, report = run(sanitize, WRONG, [("plain", ["128", "128"]), (kernel, ["128", "128"])])
    assert report is not None, output
    expected = re.sub(r"{(\w+)}", lambda mark: str(line_of(mark[1])), expected)
    assert re.search(expected, report), report
    assert status == FOUND_SOMETHING


def test_messages_under_a_sanitizer() -> None:
    status, output, report = run("address", WRONG, [("divergent", ["128", "128"])])
    assert status == 1 and report is None
    assert "kernel divergent_kernel" in output


RIGHT_CALLS = [
    ("gelu", ["1003", "1003", 1003]),
    ("row_sum", ["1500", "1500", "3", 3, 500, 128]),
    ("reverse", ["20000", "20000", 20000]),
    ("total", ["5000", "40", "1", "1", 5000, 40]),
    ("shuffles", ["160", "160", "160", "320", "320"]),
    ("votes", ["288"]),
    ("async_sum", ["1000", "64", 1000]),
    ("handed_on", ["160", "64", 5]),
    ("gemm_tf32", ["512", "256", "128", 32, 1]),
    ("gemm_bf16", ["512", "256", "128", 64]),
]


@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
def test_no_false_alarm(sanitize: str) -> None:
    status, output, report = run(sanitize, RIGHT, RIGHT_CALLS)
    assert report is None and status == 0, output
    assert "nothing found" in output
