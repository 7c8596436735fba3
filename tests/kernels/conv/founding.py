"""The founding models' convolutions as the kernel generator sees them."""

from kernels.conv.chains import C, N

from fusewright.codegen.mma.conv import Conv, Epilogue, OverChannels, OverPositions, Param, Pointwise, Table, Window
from fusewright.codegen.mma.conv_spec import VALUE, reading
from fusewright.ir import functions as fn
from fusewright.ir.expr import Field, Function, Name, as_expr, element
from fusewright.ir.stmt import const

CONV1 = Conv(dims=2, in_channels=8, out_channels=64, kernel=(3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1))
CONV2 = Conv(
    dims=3, in_channels=32, out_channels=64, kernel=(3, 3, 3), stride=(1,) * 3, padding=(1,) * 3, dilation=(1,) * 3
)
STATISTICS = Epilogue(reduce=OverPositions("CloseMoments"))


def apply_epilogue(channels: int = 64, groups: int = 16, bounded: bool = False, clamp: bool = True) -> Epilogue:
    """Group norm as one multiply-add a channel, tanh, hardswish, and the residual."""
    tanh, group, gain = map(Name, ("tanh_", "group_moments", "gain"))
    merged = Function("merge_partials").of(channels // groups, channels)(Name("moments"), N, C, Name("moment_slices"))
    inverse = fn.rsqrt(Field(group, "m2") / Field(group, "n") + 1e-5)
    gate = fn.fmin(fn.fmax(tanh + 3.0, 0.0), 6.0) if clamp else tanh + 3.0
    scale, shift = (element(Name(table), C - Name("channel0")) for table in ("scale", "shift"))
    body = Pointwise(
        VALUE + Name("swish"),
        (
            const("float", "tanh_", Function("tanh_fast")(Function("fmaf")(VALUE, scale, shift))),
            const("float", "swish", tanh * gate * (as_expr(1.0) / 6.0)),
        ),
        params=(*reading("CloseMoments", "moments"), *reading("float", "gamma", "beta"), Param("int", "moment_slices")),
        tables=(
            Table(
                "scale",
                gain,
                (const("CloseMoments", "group_moments", merged), const("float", "gain", inverse * element(Name("gamma"), C))),
            ),
            Table("shift", element(Name("beta"), C) - Field(group, "mean") * gain),
        ),
    )
    return Epilogue(before=body, reduce=OverChannels("LogSumExp", bounded=bounded))


POOLED = Epilogue(
    window=Window("max", (2, 2, 2)),
    reduce=OverChannels("LogSumExp"),
    after=Pointwise(fn.fmax(VALUE, 0.0)),
)
