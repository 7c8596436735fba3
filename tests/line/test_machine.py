"""Plans for other machines than the one that costs were fitted to, and what a device has less of than its file was planned for."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fusewright.codegen.loops import templates
from fusewright.codegen.mma.attention import Attention, attention_ms, fits
from fusewright.codegen.mma.conv import Conv, Epilogue, OverChannels, Window
from fusewright.codegen.mma.conv_layout import layout
from fusewright.codegen.mma.conv_tiles import best_tile, candidate_tiles, predicted_ms
from fusewright.codegen.mma.depthwise import predicted_ms as depthwise_ms
from fusewright.codegen.mma.product import Product, block_shape, product_ms, product_tile
from fusewright.codegen.template import KernelTemplate
from fusewright.driver import pipeline
from fusewright.driver.cli import app
from fusewright.driver.suite import SWITCH, Settings
from fusewright.driver.tuning.choices import PREDICTED, Choices
from fusewright.emit import Emitted
from fusewright.errors import Refused
from fusewright.frontend.problem import load_problem
from fusewright.host import loaded
from fusewright.ir.plan import Plan
from fusewright.options import Options
from fusewright.schedule import conv_fusion
from fusewright.target import detect
from fusewright.target.machine import A100, B200, H100, H200, L4, LEAST_SHARED, MACHINES, RTX_4090, Machine, by_name

ROOT = Path(__file__).parents[2]
FOUNDING = sorted((ROOT / "examples").glob("*.py"))
NETWORKS = [ROOT / "zoo/network" / f"{name}.py" for name in ("lenet", "mobilenet_block", "residual_block", "densenet_block", "mlp")]
SCALES = (
    "by_memory", "by_tensor_cores", "by_half", "by_warp_mma", "by_wgmma", "by_fp32",
    "by_clock", "by_issue", "by_special", "by_launch",
)  # fmt: skip


def name_of(machine: Machine) -> str:
    return machine.name


# ---- the records


def test_what_was_measured_on_an_h200_stands_there_as_it_is() -> None:
    """To the last bit: choices between tiles are comparisons."""
    for scale in SCALES:
        assert all(getattr(H200, scale)(value) == value for value in (4.1, 295.0, 1.76e6, 0.0003))
    assert H200.by_size(512) == 512 and A100.by_size(132) == 108
    assert H200.by_cache(1 << 16) == 1 << 16 > A100.by_cache(1 << 16) > 1 << 15


@pytest.mark.parametrize("machine", MACHINES.values(), ids=name_of)
def test_a_record_is_whole(machine: Machine) -> None:
    assert machine.shared_per_multiprocessor - machine.shared_per_block == 1024  # that each block takes for itself
    assert machine.shared_per_block >= LEAST_SHARED and machine.has_tf32
    assert machine.has_wgmma == (machine.capability == (9, 0))
    assert machine.rates and (machine.rates == "measured") == (machine is H200)
    assert by_name(machine.name.lower().replace(" ", "-")) is machine


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused, match=r"'V100' is not one of H200, H100, A100, L4, RTX 4090, B200"):
        Options(arch="V100")


# ---- the GPU that is here


def properties(name: str, capability: tuple[int, int], multiprocessors: int, **more: Any) -> SimpleNamespace:
    major, minor = capability
    given = {"max_threads_per_multi_processor": 1536, **more}
    return SimpleNamespace(name=name, major=major, minor=minor, multi_processor_count=multiprocessors, **given)


def test_a_gpu_is_known_by_its_name_and_size() -> None:
    assert detect.of_properties(properties("NVIDIA H200", (9, 0), 132)) is H200
    assert detect.of_properties(properties("NVIDIA H100 80GB HBM3", (9, 0), 132)) is H100
    assert detect.of_properties(properties("NVIDIA A100-SXM4-80GB", (8, 0), 108)) is A100
    assert detect.of_properties(properties("NVIDIA GeForce RTX 4090", (8, 9), 128)) is RTX_4090
    assert detect.of_properties(properties("NVIDIA L4", (8, 9), 58)) is L4
    assert detect.of_properties(properties("NVIDIA L40", (8, 9), 142)).name == "L40"
    assert detect.of_properties(properties("NVIDIA GH200 480GB", (9, 0), 132)).name == "GH200 480GB"


def test_another_gpu_is_recorded_as_pytorch_shows_it() -> None:
    part = detect.of_properties(properties("NVIDIA H200 MIG 1g.18gb", (9, 0), 16, max_threads_per_multi_processor=2048))
    assert part.has_wgmma and part.fp32_tflops == pytest.approx(H200.fp32_tflops * 16 / 132)
    shown = {"shared_memory_per_block_optin": 101376, "L2_cache_size": 6 << 20, "clock_rate": 1_695_000, "regs_per_multiprocessor": 65536}
    a10 = detect.of_properties(properties("NVIDIA A10", (8, 6), 72, **shown, memory_clock_rate=6_251_000, memory_bus_width=384))
    assert (a10.name, a10.shared_per_block, a10.l2_bytes, a10.threads) == ("A10", 101376, 6 << 20, 1536)
    assert a10.memory_tb_per_s == pytest.approx(0.86 * 0.600, rel=0.01) and a10.clock_ghz == pytest.approx(1.695)
    assert "not measured" in a10.rates


def test_a_gpu_without_tf32_keeps_the_library() -> None:
    t4 = detect.of_properties(properties("Tesla T4", (7, 5), 40, max_threads_per_multi_processor=1024, shared_memory_per_block_optin=65536))
    assert not candidate_tiles(PLAIN, Epilogue(), t4) and block_shape(Product(512, 512), t4) is None and not fits(Attention(64, 64), t4)


def test_without_a_gpu_it_is_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert detect.machine_for("") is H200 and detect.machine_for("b200") is B200


def test_with_one_it_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties("NVIDIA L4", (8, 9), 58))
    assert detect.machine_for("") is L4 and detect.machine_for("A100") is A100


def test_nothing_is_timed_for_another_machine_than_the_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "small")
    monkeypatch.setattr(pipeline, "machine_here", lambda: H200)
    options = Options(target="host", arch="A100")
    found = pipeline.tuned_for(pipeline.read_problem(load_problem(ROOT / "zoo/single/variance.py"), options), options, pipeline.silent)
    assert found.choices == PREDICTED and found.notes == ("not tuned: planned for A100, and the GPU here is another",)


# ---- tiles

PLAIN = Conv(2, 64, 128, (3, 3), (1, 1), (1, 1), (1, 1))
CONVOLUTIONS = {
    "plain": (PLAIN, Epilogue()),
    "few channels": (Conv(2, 3, 64, (7, 7), (2, 2), (3, 3), (1, 1)), Epilogue()),
    "pooled": (
        Conv(3, 32, 64, (3,) * 3, (1,) * 3, (1,) * 3, (1,) * 3),
        Epilogue(window=Window("max", (2, 2, 2)), reduce=OverChannels("LogSumExp")),
    ),
    "halves": (replace(PLAIN, dtype="float16"), Epilogue()),
    "strict": (replace(PLAIN, tf32=False), Epilogue()),
    "transposed": (Conv(2, 64, 64, (3, 3), (2, 2), (1, 1), (1, 1), transposed=True, output_padding=(1, 1)), Epilogue()),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES.values(), ids=name_of)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_tiles_fit_the_machine(name: str, machine: Machine) -> None:
    conv, epilogue = CONVOLUTIONS[name]
    tiles = candidate_tiles(conv, epilogue, machine)
    assert tiles
    for tile in tiles:
        assert 4 * layout(conv, epilogue, tile).shared_words * tile.blocks_per_sm <= machine.shared_per_multiprocessor
        assert tile.threads * tile.blocks_per_sm <= machine.threads
        assert not tile.warpgroups or machine.has_wgmma


def test_hopper_has_tiles_that_others_lack() -> None:
    assert any(tile.warpgroups for tile in candidate_tiles(PLAIN, Epilogue(), H100))
    assert any(4 * layout(PLAIN, Epilogue(), tile).shared_words > L4.shared_per_block for tile in candidate_tiles(PLAIN, Epilogue(), H200))


def test_products_fit_the_machine() -> None:
    assert block_shape(Product(512, 512), H200) == (2, 16) and block_shape(Product(512, 64), H200) == (2, 8)
    assert block_shape(Product(512, 512), A100) == (1, 8)  # no `setmaxnreg`: more would spill
    assert product_tile(Product(512, 512), 4096, 1, A100).shared_bytes <= A100.shared_per_block
    assert block_shape(Product(512, 512), L4) is None


@pytest.mark.parametrize("machine", [A100, L4, RTX_4090], ids=name_of)
def test_a_smaller_machine_takes_longer(machine: Machine) -> None:
    sizes = (64, 56, 56)
    on_h200 = predicted_ms(PLAIN, Epilogue(), sizes, best_tile(PLAIN, Epilogue(), sizes))
    assert predicted_ms(PLAIN, Epilogue(), sizes, best_tile(PLAIN, Epilogue(), sizes, machine), machine) > 1.5 * on_h200
    depthwise = Conv(2, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), groups=64)
    assert depthwise_ms(depthwise, Epilogue(), sizes, machine) > 1.5 * depthwise_ms(depthwise, Epilogue(), sizes)
    assert attention_ms(Attention(64, 64), 128, 512, 512, machine) > 1.5 * attention_ms(Attention(64, 64), 128, 512, 512)
    product = Product(1024, 1024)
    if block_shape(product, machine) is not None:
        theirs = product_ms(product, product_tile(product, 8192, 1, machine), 8192, 1, machine)
        assert inf > theirs > 1.5 * product_ms(product, product_tile(product, 8192), 8192)


# ---- whole plans


def planned(path: Path, machine: Machine, everything: bool = False) -> tuple[Plan, Emitted]:
    """As predicted; or with all convolutions and products that kernels of ours can compute."""
    options = Options(target="host", arch=machine.name, gradients=False, precision="flags")
    front = pipeline.read_problem(load_problem(path), options)
    return front.finish(Choices(own=frozenset(front.graph.index)) if everything else PREDICTED)


def ours(made: Plan) -> list[str]:
    return [kernel.fused.anchor.node for kernel in made.kernels if kernel.fused is not None]


def shared_bytes(emitted: Emitted) -> list[int]:
    """What the file asks of a device, as a whole and region by region."""
    return [int(count) for count in re.findall(r"(?:_has_tensor_cores\(\w+\.device, |shared_bytes=)(\d+)", emitted.text)]


@pytest.mark.parametrize("path", FOUNDING, ids=lambda path: path.stem)
def test_the_founding_models_have_no_library_call_on_an_a100(path: Path) -> None:
    made, emitted = planned(path, A100)
    assert not made.calls and all(count <= A100.shared_per_block for count in shared_bytes(emitted))
    assert "_for_hopper" not in emitted.text  # no wgmma


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_networks_use_our_kernels_on_an_a100_as_on_an_h200(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "small")
    (made, emitted), (on_h200, there) = planned(path, A100, everything=True), planned(path, H200, everything=True)
    assert ours(made) and ours(made) == ours(on_h200)
    assert shared_bytes(emitted) and all(count <= A100.shared_per_block for count in shared_bytes(emitted))
    assert emitted.text != there.text and "planned for an A100" in emitted.text and "planned for an H200" in there.text


@pytest.mark.slow
def test_a_network_planned_for_an_a100_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a product in a tile that no H200 takes, and convolutions."""
    monkeypatch.setenv(SWITCH, "small")
    monkeypatch.setattr(conv_fusion, "pays", lambda *_: True)
    monkeypatch.setattr("fusewright.schedule.product_fusion.pays", lambda *_: True)
    options = Options(target="host", arch="A100", precision="flags", seeds=1)
    run = pipeline.optimize(load_problem(ROOT / "zoo/network/lenet.py"), options)
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    assert "product::Tile<1, 8, " in run.text
    assert run.report["machine"]["name"] == "A100" and "not measured" in run.report["machine"]["rates"]


# ---- what the device at hand lacks

TWO_REGIONS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 80)

    def forward(self, x):
        return torch.softmax(torch.sort(torch.tanh(self.linear(x)))[0] * 3, -1)


def get_inputs():
    return [torch.randn(70, 48)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("has", [227 * 1024, LEAST_SHARED], ids=["as planned", "less"])
def test_shared_memory_that_a_device_lacks_costs_its_region_alone(
    has: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "two_regions.py"
    path.write_text(TWO_REGIONS)
    monkeypatch.setattr("fusewright.schedule.product_fusion.pays", lambda *_: True)
    front = pipeline.read_problem(load_problem(path), Options(target="host"))
    made, emitted = front.finish(PREDICTED)
    assert len(ours(made)) == 1
    module, launched = loaded.from_text(emitted.text, str(path), "host"), list[str]()
    launch = module._launch

    def noted(kernel: str, *arguments: Any) -> None:
        launched.append(kernel.partition(" ")[0])
        launch(kernel, *arguments)

    monkeypatch.setattr(module, "_launch", noted)
    monkeypatch.setattr(module, "_has_tensor_cores", lambda device, shared: shared <= has)
    torch.manual_seed(1)
    new, old = module.ModelNew(), module.Model()
    old.load_state_dict(new.state_dict())
    (x,) = module.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(x), old(x))
    product, *rest = [kernel.name for kernel in made.kernels]
    assert set(launched) == {*rest, *([product] if has > LEAST_SHARED else [])}
    for model in (new, old):
        (model(x) ** 2).sum().backward()
    torch.testing.assert_close(new.linear.weight.grad, old.linear.weight.grad, rtol=1e-4, atol=1e-6)


# ---- templates of loop kernels


def test_the_first_template_that_matches_writes_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is a record in the list: nothing else has to know of it."""
    made, _ = planned(ROOT / "zoo/single/softmax_channels.py", H200)
    prims, graph, asked = made.lowered.prims, made.graph, list[str]()
    (kernel,) = made.kernels
    template, schedule = templates.scheduled(kernel, prims, graph, H200)
    assert schedule.kernel is kernel and template in templates.TEMPLATES

    def declines(*given: Any) -> None:
        asked.append(given[0].name)

    mine = KernelTemplate("mine", lambda *given: schedule, template.render)
    none = KernelTemplate("none", declines, template.render)
    monkeypatch.setattr(templates, "TEMPLATES", (none, mine, *templates.TEMPLATES))
    assert templates.scheduled(kernel, prims, graph, H200) == (mine, schedule) and asked == [kernel.name]


@pytest.mark.parametrize(
    ("model", "name"),
    [("softmax_channels", "register columns"), ("cumsum_reverse", "scan"), ("variance", "reduce"), ("mish_fp16", "pointwise")],
)
def test_kinds_of_kernels_have_their_templates(model: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "small")
    made, _ = planned(ROOT / "zoo/single" / f"{model}.py", H200)
    found = [templates.scheduled(kernel, made.lowered.prims, made.graph, A100) for kernel in made.kernels]
    assert name in [template.name for template, _ in found]
    assert all(schedule.machine is A100 for _, schedule in found)


# ---- the command


def test_explain_says_which_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "small")
    model = str(ROOT / "zoo/single/variance.py")
    shown = CliRunner().invoke(app, ["explain", model, "--arch", "a100"]).output
    assert "planned for an A100: its rates are published" in shown and "ms on an A100" in shown
    refused = CliRunner().invoke(app, ["explain", model, "--arch", "V100"])
    assert refused.exit_code == 2 and "H200, H100, A100, L4, RTX 4090, B200" in refused.output


def test_a_suite_hands_the_machine_on() -> None:
    assert Settings(arch="L4").arguments()[-2:] == ["--arch", "L4"] and "--arch" not in Settings().arguments()
