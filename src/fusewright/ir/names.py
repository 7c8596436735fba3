"""Words that no value of a model may be called, in the Python or in the CUDA that is written.

A value is called after what the model calls it (`value_name`): in ASCII, in lower case unless it is one letter, and with no underscore at
either end. So it is none of our own names in Python, which begin with one, no constant, template parameter or macro in capitals, and not
what a kernel of a template calls a value (`Evaluator.inside`), which ends with one. What is left to be told apart is listed here.
"""

from __future__ import annotations

import keyword
import re

from ..target.helpers import device_names

CPP = frozenset(
    "alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor bool break case catch char char8_t "
    "char16_t char32_t class compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false final float for friend goto if import inline int long "
    "module mutable namespace new noexcept not not_eq nullptr operator or or_eq override private protected public reflexpr register "
    "reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch synchronized template "
    "this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor "
    "xor_eq main std define defined pragma unroll".split()
)
# Macros of compilers and of the headers that kernels include, of small letters: those of capitals no value is called.
MACROS = frozenset(
    "alloca arm assert assert_perror errno i386 isascii issubnormal linux major makedev math_errhandling minor mips offsetof pixel sparc "
    "static_assert stderr stdin stdout strdupa strndupa toascii unix vector va_arg va_copy va_end va_start".split()
) | {f"{order}{bits}toh" for order in ("be", "le") for bits in (16, 32, 64)} | {f"hto{o}{b}" for o in ("be", "le") for b in (16, 32, 64)}
CUDA = frozenset("blockdim blockidx dim3 griddim threadidx warpsize memcpy memset printf abort exit free malloc clock".split())
# Functions of float that expressions call. Those of double are called with :: in front.
C_FUNCTIONS = frozenset(
    f"{name}f" for name in
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc erfinv exp exp2 exp10 expm1 fabs floor fma fmax fmin "
    "fmod hypot lgamma log log10 log1p log2 nextafter pow rint round rsqrt sin sincos sinh sqrt tan tanh tgamma trunc".split()
)  # fmt: skip
# What kernels call their own variables.
KERNELS = frozenset(
    "acc row lane item v rows element elements piece start within inside partial wide whole_vectors stream load store larger smaller "
    "absolute aligned launch_error packed scales partials slices batch blocks r c u step extent counts group groups holds sums "
    "launch variant grid take count".split()
) | {f"{letter}{digit}" for letter in "ik" for digit in range(10)} | {f"step_{digit}" for digit in range(1, 10)}
# What functions of the file that hold values call besides: modules, builtins, and variables of their own.
PYTHON = frozenset(keyword.kwlist) | frozenset(
    "self torch aten math ctypes hashlib functools struct zlib load_inline nn model modelnew sizes arguments named plain "
    "all any bool callable dict enumerate float getattr int isinstance iter len list map max min next range repr str super tuple "
    "type vars zip threading".split()
) | {
    f"{word}_{number}" for word in ("packed", "scales", "partials", "slices", "sums") for number in range(2, 65)  # of a region's kernel
}
RESERVED = CPP | MACROS | CUDA | C_FUNCTIONS | KERNELS | PYTHON | device_names()


def value_name(name: str) -> str:
    """What a value may be called that the model calls `name`, but for words that are reserved or taken."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "value"
    plain = plain if len(plain) == 1 else plain.lower()
    ours = plain[0].isdigit() or plain == "I" or plain.startswith("grad_")  # no name, a macro, and what backward is handed
    ours = ours or plain.endswith(("_fwd_kernel", "_grad_kernel", "_fwd_merge", "_grad_merge"))  # what launchers launch
    return f"value_{plain}" if ours else plain


FORBIDDEN = re.compile(r"\b(try|except|pass|threading)\b")
