"""Functions in fewer instructions stay within a few units in the last place: over a sweep of all kinds of floats, against float64.

The C++ is the one that is emitted, compiled alone. What the device's `expf` and reciprocal may be off by is put in, either way.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernels.words import called

from fusewright.ir import functions as fn
from fusewright.ir.cpp import to_cpp
from fusewright.ir.expr import Arg, with_fast_functions
from fusewright.target.helpers import closure

FUNCTIONS = ("log1p_unit({x})", "expm1_below({x})", "sigmoid_of({x})", "mish_of({x}, expf({x}))", "sigmoid_fast({x})", "inverse_of({x})")
FUNCTIONS += ("exp_below({x})", "turn_of({x})")
DIVISORS = (0.7, -0.4, 1.0, 1.0000001, 1.9999999, 3.0, 1e-20, 1e20, 1e-35, 3e38)
FUNCTIONS += tuple(f"fmod_of({{x}}, (float){divisor!r})" for divisor in DIVISORS)
SOURCE = """
#include <math.h>
#define __device__
#define __forceinline__ inline
static int exp_ulps, rcp_ulps;
static float off(float y, int ulps) {{ return ulps ? nextafterf(y, ulps * INFINITY) : y; }}
static float off_expf(float x) {{ return off(expf(x), exp_ulps); }}
static float exp_fast(float x) {{ return off_expf(x); }}
static float exp2_fast(float x) {{ return off(exp2f(x), exp_ulps); }}
static float rcp_fast(float x) {{ return off(1.0f / x, rcp_ulps); }}
#define expf off_expf
{sections}
extern "C" void run(int which, const float* x, float* y, long n, int exp_by, int rcp_by) {{
  exp_ulps = exp_by, rcp_ulps = rcp_by;
  for (long i = 0; i < n; ++i) switch (which) {{
{cases}
  }}
}}
"""
Function = Callable[[str, torch.Tensor, int, int], torch.Tensor]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Function:
    folder = tmp_path_factory.mktemp("short")
    known = ("base", "unpacked", "rcp_fast", "exp_fast", "exp2_fast")
    parts = [helper.text for helper in closure(called(" ".join(FUNCTIONS))) if helper.name not in known]
    cases = "\n".join(f"    case {i}: y[i] = {f.format(x='x[i]')}; break;" for i, f in enumerate(FUNCTIONS))
    (folder / "short.cpp").write_text(SOURCE.format(sections="\n".join(parts), cases=cases))
    command = ["g++", "-O2", "-march=native", "-shared", "-fPIC", "-o", str(folder / "short.so"), str(folder / "short.cpp")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(folder / "short.so"))

    def run(name: str, x: torch.Tensor, exp_ulps: int = 0, rcp_ulps: int = 0) -> torch.Tensor:
        y, which = torch.empty_like(x), next(i for i, f in enumerate(FUNCTIONS) if f == name or f.startswith(f"{name}("))
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, y)]
        library.run(which, *pointers, ctypes.c_long(x.numel()), exp_ulps, rcp_ulps)
        return y

    return run


def floats(low: float, high: float, count: int = 1 << 19) -> torch.Tensor:
    """Floats of every size from the smallest subnormal on, and evenly spread ones, that lie between two."""
    bits = torch.linspace(0, 0x7F800000, count, dtype=torch.float64).long().to(torch.int32)
    sizes = bits.view(torch.float32)
    even = torch.linspace(max(low, -110.0), min(high, 110.0), count)
    x = torch.cat([sizes, -sizes, even])
    return x[(x >= low) & (x <= high)]


def ulps(got: torch.Tensor, exact: torch.Tensor) -> float:
    spacing = torch.from_numpy(np.spacing(exact.float().abs().clamp(min=2.0**-126).numpy())).double()
    return float(((got.double() - exact).abs() / spacing).max())


def mish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(torch.nn.functional.softplus(x, threshold=40.0))


@pytest.mark.parametrize(
    ("name", "low", "high", "exact", "most"),
    [
        ("inverse_of", 2.0**-125, 2.0**125, torch.reciprocal, 0.51),
        ("log1p_unit", 0.0, 1.0, torch.log1p, 1.4),
        ("expm1_below", -math.inf, 0.0, torch.expm1, 1.5),
        ("exp_below", -87.0, 0.0, torch.exp, 2.1),
        ("sigmoid_of", -87.0, math.inf, torch.sigmoid, 5.5),
        ("mish_of", -80.0, 3e38, mish, 6.6),
    ],
)
def test_within_ulps(short: Function, name: str, low: float, high: float, exact: Function, most: float) -> None:
    x = floats(low, high)
    expected = exact(x.double())
    for exp_ulps, rcp_ulps in itertools.product((-1, 0, 1), repeat=2):
        worst = ulps(short(name, x, exp_ulps, rcp_ulps), expected)
        assert worst <= most, f"{worst:.2f} units in the last place"


@pytest.mark.parametrize("divisor", DIVISORS)
def test_what_is_left_is_exact(short: Function, divisor: float) -> None:
    """Of floats of every size, of multiples of the divisor and of those next to them."""
    n = torch.arange(1, 1 << 16).float() * torch.tensor(divisor).abs()
    near = torch.cat([n, torch.nextafter(n, torch.tensor(math.inf)), torch.nextafter(n, torch.tensor(0.0))])
    x = torch.cat([floats(-math.inf, math.inf, 1 << 16), near, -near, torch.tensor([math.nan, math.inf, -math.inf, -0.0])])
    expected = torch.fmod(x.double(), torch.tensor(divisor).double()).float()
    for rcp_ulps in (-1, 0, 1):
        got = short(f"fmod_of({{x}}, (float){divisor!r})", x, 0, rcp_ulps)
        same = (got == expected) & (torch.signbit(got) == torch.signbit(expected)) | (got.isnan() & expected.isnan())
        assert same.all(), [t[~same][0] for t in (x, got, expected)]


def test_what_is_subnormal(short: Function) -> None:
    x = floats(-110.0, -87.0)
    assert ((short("sigmoid_of", x).double() - torch.sigmoid(x.double())).abs() <= 2.0**-147).all()


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("log1p_unit", {0.0: 0.0, 1.0: math.log(2)}),
        ("expm1_below", {-math.inf: -1.0, -1e30: -1.0, 0.0: 0.0, -1e-40: -1e-40, math.nan: math.nan}),
        ("exp_below", {-math.inf: 0.0, -1e30: 0.0, 0.0: 1.0, math.nan: math.nan}),
        ("sigmoid_of", {-math.inf: 0.0, math.inf: 1.0, 0.0: 0.5, 1e38: 1.0, -1e38: 0.0, math.nan: math.nan}),
        ("mish_of", {math.inf: math.inf, 3e38: 3e38, -1e30: 0.0, 0.0: 0.0, math.nan: math.nan}),
        ("sigmoid_fast", {-math.inf: 0.0, math.inf: 1.0, 0.0: 0.5, 1e38: 1.0, -1e38: 0.0, math.nan: math.nan}),
    ],
)
def test_special_values(short: Function, name: str, special: dict[float, float]) -> None:
    got = short(name, torch.tensor(list(special)))
    assert torch.allclose(got, torch.tensor(list(special.values())), rtol=1e-6, atol=0.0, equal_nan=True), got


def test_the_sign_of_zero_stays(short: Function) -> None:
    assert torch.signbit(short("expm1_below", torch.tensor([-0.0]))).all()


def test_angles_without_their_whole_turns(short: Function) -> None:
    x = torch.cat([floats(-1e5, 1e5), torch.linspace(-1e5, 1e5, 1 << 19)])
    turned = short("turn_of", x)
    assert turned.abs().max() < 3.15
    assert (turned.double().sin() - x.double().sin()).abs().max() < 1e-6
    assert (turned.double().cos() - x.double().cos()).abs().max() < 1e-6
    assert short("turn_of", torch.tensor([math.inf, -math.inf, math.nan])).isnan().all()


def test_halves_take_the_shorter_one() -> None:
    assert to_cpp(with_fast_functions(Arg(0) * fn.sigmoid(Arg(0))), ("x",)) == "x * sigmoid_fast(x)"
