"""The device functions that expressions call. Those of CUDA's library have a spelling for each precision; ours are in the prelude and
take any type. To add one, add a line here and its section to the prelude."""

from __future__ import annotations

from .expr import Expr, Function, Operand


def of_the_library(name: str, fast: str = "") -> Function:
    """`::` is the function, whatever a value may be called."""
    return Function(f"{name}f", f"::{name}", fast)


exp, tanh = of_the_library("exp", "exp_fast"), of_the_library("tanh", "tanh_fast")
exp2, expm1 = of_the_library("exp2"), of_the_library("expm1")
log, log2, log10, log1p = (of_the_library(name) for name in ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, pow_ = (of_the_library(name) for name in ("sqrt", "rsqrt", "pow"))
cbrt = of_the_library("cbrt")
sin, cos, tan, sinh, cosh = (of_the_library(name) for name in ("sin", "cos", "tan", "sinh", "cosh"))
asin, acos, atan, atan2 = (of_the_library(name) for name in ("asin", "acos", "atan", "atan2"))
lgamma = of_the_library("lgamma")
asinh, acosh, atanh = (of_the_library(name) for name in ("asinh", "acosh", "atanh"))
erf, erfc, hypot = (of_the_library(name) for name in ("erf", "erfc", "hypot"))
fabs, fmax, fmin, copysign = (of_the_library(name) for name in ("fabs", "fmax", "fmin", "copysign"))
floor, ceil, rint, trunc = (of_the_library(name) for name in ("floor", "ceil", "rint", "trunc"))

sigmoid = Function("sigmoid_of", fast="sigmoid_fast")
WITH_FAST = exp, tanh, sigmoid
larger, smaller = Function("larger"), Function("smaller")  # a NaN is larger, and smaller, as in PyTorch
absolute, sign_of = Function("absolute"), Function("sign_of")
choose = Function("choose")  # of two that are both computed
log1p_unit, expm1_below = Function("log1p_unit"), Function("expm1_below")
mish, inverse_of, exactly = Function("mish_of"), Function("inverse_of"), Function("exactly")
floor_divided, remainder_of, fmod_of = Function("floor_divided"), Function("remainder_of"), Function("fmod_of")
whole_floor_divided, whole_truncated = Function("whole_floor_divided"), Function("whole_truncated")
whole_power = Function("whole_power")
common_divisor, common_multiple = Function("common_divisor"), Function("common_multiple")
shifted_left, shifted_right = Function("shifted_left"), Function("shifted_right")
ratio_of, floor_of = Function("ratio_of"), Function("floor_of")
cubic_near, cubic_far = Function("cubic_near"), Function("cubic_far")
clamped = Function("clamped")  # of a type, in which it is given


# What kernels call beside operators: from memory to registers and back.
load, store, load_run = Function("load"), Function("store"), Function("load_run")
to_arithmetic, to_memory = Function("to_arithmetic"), Function("to_memory")
first_tap, aligned, ceil_div = Function("first_tap"), Function("aligned"), Function("ceil_div")
static_cast, reinterpret_cast, dim3 = Function("static_cast"), Function("reinterpret_cast"), Function("dim3")
merge_row, merge_column, merge_warp = Function("merge_row"), Function("merge_column"), Function("merge_warp")
count_of = Function("Count")  # of so many
sync_threads = Function("__syncthreads")


def rounded_to(kind: str, x: Operand) -> Expr:
    """A float as memory of a half type would have it."""
    return to_arithmetic.of("float", kind)(to_memory.of(kind, "float")(x))
