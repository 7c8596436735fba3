"""The founding models' convolutions as the kernel generator sees them."""

from fusewright.kernels.conv import Conv, Ending, OverChannels, OverPositions, Pointwise, Table, Window

CONV1 = Conv(dims=2, in_channels=8, out_channels=64, kernel=(3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1))
CONV2 = Conv(
    dims=3, in_channels=32, out_channels=64, kernel=(3, 3, 3), stride=(1,) * 3, padding=(1,) * 3, dilation=(1,) * 3
)
STATISTICS = Ending(reduce=OverPositions("CloseMoments"))


def normalised(clamp: bool):
    """Group norm as one multiply-add a channel, tanh, hardswish, and the residual."""
    gate = "fminf(fmaxf(tanh_ + 3.0f, 0.0f), 6.0f)" if clamp else "(tanh_ + 3.0f)"

    def element(value, n, c, position):
        return [
            f"const float tanh_ = tanh_fast(fmaf({value}, scale[{c} - channel0], shift[{c} - channel0]));",
            f"const float swish = tanh_ * {gate} * (1.0f / 6.0f);",
        ], f"{value} + swish"

    return element


def apply_ending(channels: int = 64, groups: int = 16, bounded: bool = False, clamp: bool = True) -> Ending:
    statistics = (
        f"const CloseMoments group_moments = merge_partials<{channels // groups}, {channels}>(moments, n, c, moment_slices);"
    )
    gain = "const float gain = rsqrtf(group_moments.m2 / group_moments.n + 1e-5f) * gamma[c];"
    body = Pointwise(
        normalised(clamp),
        params=(
            ("const CloseMoments* __restrict__", "moments"), ("const float* __restrict__", "gamma"),
            ("const float* __restrict__", "beta"), ("int", "moment_slices"),
        ),
        tables=(
            Table("scale", "gain", (statistics, gain)),
            Table("shift", "beta[c] - group_moments.mean * gain"),
        ),
    )  # fmt: skip
    return Ending(before=body, reduce=OverChannels("LogSumExp", bounded=bounded))


POOLED = Ending(
    window=Window("max", (2, 2, 2)),
    reduce=OverChannels("LogSumExp"),
    after=Pointwise(lambda value, n, c, position: ([], f"fmaxf({value}, 0.0f)")),
)
