"""A suite on several GPUs, and on a cluster: a worker for each, the same results, and it goes on where it stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusewright.driver import cli, on_ray, suite
from fusewright.driver.suite import Result, Settings, Work, gpus_listed, read_results, run_suite, visible_gpus
from fusewright.errors import Refused

GOOD = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n" + GOOD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models" / "below").mkdir(parents=True)
    for name in "abcdef":
        (tmp_path / "models" / f"{name}.py").write_text(GOOD.replace("* 2", f"* {ord(name)}"))
    return tmp_path


# ---- several GPUs of one machine ----


@pytest.mark.parametrize(
    ("wanted", "names"),
    [("0,1", ["0", "1"]), ("GPU-1", ["GPU-1"]), ("", []), ("-1", []), ("0,-1,2", ["0"]), (" 2 , 3 ", ["2", "3"])],
)
def test_gpus_that_are_visible(wanted: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    assert visible_gpus() == names


def test_gpus_that_the_driver_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-a1)\nGPU 1: NVIDIA H200 (UUID: GPU-b2)\n"
    monkeypatch.setattr(suite.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=listed))
    assert visible_gpus() == ["GPU-a1", "GPU-b2"]
    parts = "GPU 0: H100 (UUID: GPU-a1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-c3)\n  MIG 1g.10gb     Device  1: (UUID: MIG-d4)\n"
    assert gpus_listed(parts + listed.splitlines()[1]) == ["MIG-c3", "MIG-d4", "GPU-b2"]
    assert gpus_listed("No devices were found\n") == []

    def gone(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(suite.subprocess, "run", gone)
    assert visible_gpus() == []


def seen(monkeypatch: pytest.MonkeyPatch, together: int) -> list[tuple[str, str, str]]:
    """(model, GPU, threads) of each model that was run. The first so many wait for one another: they run at the same time."""
    ran: list[tuple[str, str, str]] = []
    meet = threading.Barrier(together, timeout=20)

    def run_model(path: Path, settings: Settings, *, name: str, key: str, environment: Any, **_: object) -> Result:
        ran.append((name, environment.get("CUDA_VISIBLE_DEVICES", "none"), environment["OMP_NUM_THREADS"]))
        if len(ran) <= together:
            meet.wait()
        return Result(name, key, "verified", "", 0.1, {"kernels": []})

    monkeypatch.setattr(suite, "run_model", run_model)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(suite.os, "cpu_count", lambda: 12)
    return ran


def test_each_gpu_has_a_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    ran = seen(monkeypatch, together=3)
    results = run_suite(folder / "models")
    assert [r.model for r in results] == [f"{name}.py" for name in "abcdef"] and all(r.verified for r in results)
    assert sorted(gpu for _, gpu, _ in ran[:3]) == ["3", "5", "7"], "three at a time, each on its own"
    assert len(ran) == 6 and {threads for *_, threads in ran} == {"4"}


def test_jobs_are_for_each_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    ran = seen(monkeypatch, together=4)
    run_suite(folder / "models", jobs=2)
    assert sorted(gpu for _, gpu, _ in ran[:4]) == ["0", "0", "1", "1"] and {threads for *_, threads in ran} == {"3"}


@pytest.mark.parametrize("settings", [Settings("host"), Settings(sanitize="address")])
def test_the_host_has_as_many_workers_as_asked(settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    ran = seen(monkeypatch, together=1)
    run_suite(folder / "models", jobs=1, settings=settings)
    assert {gpu for _, gpu, _ in ran} == {"0,1"} and {threads for *_, threads in ran} == {"12"}


def test_more_gpus_than_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(16))))
    ran = seen(monkeypatch, together=6)
    run_suite(folder / "models")
    assert len({gpu for _, gpu, _ in ran}) == 6 and {threads for *_, threads in ran} == {"2"}


# ---- a cluster ----


class Ray:
    """Stands in for the module: tasks run when they are asked for, one by one. `gone`: a machine that dies with these models."""

    def __init__(self, gpus: int = 0, gone: Sequence[str] = ()) -> None:
        self.gpus, self.gone, self.asked, self.cancelled, self.calls = gpus, gone, {}, [], []

    def init(self, **given: Any) -> None:
        self.given = given
        if given["address"] == "nowhere:1":
            raise ConnectionError("Could not find any running Ray instance\nmore")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, **({"GPU": float(self.gpus)} if self.gpus else {})}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {}}]

    def remote(self, function: Any) -> Any:
        def options(**asked: Any) -> Any:
            self.asked = asked
            return SimpleNamespace(remote=lambda *arguments: (function, arguments))

        return SimpleNamespace(options=options)

    def wait(self, tasks: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        function, arguments = task
        if arguments[0] in self.gone:
            raise RuntimeError("The node died\nat length")
        return function(*arguments)

    def cancel(self, task: Any) -> None:
        self.cancelled.append(task[1][0])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)

    def run_model(path: Path, settings: Settings, *, name: str, key: str, **_: object) -> Result:
        if settings.output is not None:
            suite.place_of(settings.output, name).parent.mkdir(parents=True, exist_ok=True)
            suite.place_of(settings.output, name).write_text(f"new {name}")
        return Result(name, key, "verified", "", 0.1, {"text": path.read_text()})

    monkeypatch.setattr(suite, "run_model", run_model)
    return ray


def test_a_suite_on_a_cluster(folder: Path, fake: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "models" / "below" / "g.py").write_text(GOOD)
    fake.gone = ["b.py"]
    monkeypatch.setenv("FUSEWRIGHT_ZOO", "small")
    settings = Settings("host", output=folder / "kept")
    with on_ray.cluster("head:6379") as runner:
        results = run_suite(folder / "models", folder / "out.json", 2, settings, runner=runner)
    assert fake.given["address"] == "head:6379" and fake.given["runtime_env"]["env_vars"] == {"FUSEWRIGHT_ZOO": "small"}
    assert fake.asked["num_cpus"] == 2 and fake.calls == ["shutdown"]
    assert {r.model: (r.outcome, r.why) for r in results if not r.verified} == {"b.py": ("crashed", "RuntimeError: The node died")}
    assert (folder / "kept" / "below" / "g_new.py").read_text() == "new below/g.py"
    fake.gone = []
    ran: list[str] = []
    with on_ray.cluster("auto") as runner:
        again = run_suite(folder / "models", folder / "out.json", 1, settings, resume=True, runner=recorded(runner, ran))
    assert ran == ["b.py"] and all(r.verified for r in again) and read_results(folder / "out.json") == again


def recorded(runner: Any, ran: list[str]) -> Any:
    @contextlib.contextmanager
    def run(work: Work, pending: Sequence[str], jobs: int) -> Iterator[Iterator[Result]]:
        ran.extend(pending)
        with runner(work, pending, jobs) as results:
            yield results

    return run


def test_a_machine_that_lacks_the_file_has_a_copy(folder: Path, fake: Ray) -> None:
    text = (folder / "models" / "a.py").read_bytes()
    result, new = on_ray._task("a.py", text, Path("/somewhere/else/a.py"), "key", Settings())
    assert result.report == {"text": text.decode()} and new is None


def test_what_a_task_asks_for() -> None:
    assert on_ray.share(Ray(gpus=4), Settings(), 1) == {"num_gpus": 1.0, "num_cpus": 1}
    assert on_ray.share(Ray(gpus=4), Settings("cuda"), 2) == {"num_gpus": 0.5, "num_cpus": 1}
    assert on_ray.share(Ray(gpus=4), Settings("host"), 1) == {"num_cpus": 4}
    assert on_ray.share(Ray(), Settings(), 8) == {"num_cpus": 1}
    with pytest.raises(Refused, match="no machine of the cluster has a GPU"):
        on_ray.share(Ray(), Settings("cuda"), 1)


def test_an_interrupted_suite_cancels_its_tasks(folder: Path, fake: Ray) -> None:
    with pytest.raises(KeyboardInterrupt), on_ray.cluster("auto") as runner:
        run_suite(folder / "models", folder / "out.json", runner=interrupted(runner))
    assert [r.model for r in read_results(folder / "out.json")] == ["a.py"]
    assert fake.cancelled == ["b.py", "c.py", "d.py", "e.py", "f.py"] and fake.calls == ["shutdown"]


def interrupted(runner: Any) -> Any:
    """Ctrl-C after the first result."""

    @contextlib.contextmanager
    def run(work: Work, pending: Sequence[str], jobs: int) -> Iterator[Iterator[Result]]:
        def first(results: Iterator[Result]) -> Iterator[Result]:
            yield next(results)
            raise KeyboardInterrupt

        with runner(work, pending, jobs) as results:
            yield first(results)

    return run


def test_no_cluster_and_no_ray_are_sentences(folder: Path, fake: Ray, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli._main(["suite", str(folder / "models"), "--ray", "nowhere:1"]) == 2
    said = "fusewright: --ray nowhere:1: no cluster can be reached: Could not find any running Ray instance.\n"
    assert capsys.readouterr().err == said
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli._main(["suite", str(folder / "models"), "--ray", "auto"]) == 2
    assert capsys.readouterr().err == "fusewright: --ray needs Ray, which is not installed: pip install ray.\n"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: make ray")
def test_a_cluster_of_this_machine(tmp_path: Path) -> None:
    """Ray itself, on CPUs: two models, one of which ends its process; then on with what was not verified."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "crash.py").write_text(CRASH)
    command = [sys.executable, "-m", "fusewright", "suite", ".", "--ray", "local", "--target", "host", "--jobs", "2", "--json", "out.json", "-o", "kept"]
    environment = os.environ | {"PYTHONPATH": str(Path(suite.__file__).parents[2])}
    start = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    found = {r.model: r for r in read_results(tmp_path / "out.json")}
    assert found["good.py"].verified and found["crash.py"].outcome == "crashed" and "SIGSEGV" in found["crash.py"].why, done.stdout
    assert (tmp_path / "kept" / "good_new.py").read_text().startswith("import torch")
    assert not (tmp_path / "kept" / "crash_new.py").exists() and time.monotonic() - start < 300
    (tmp_path / "crash.py").write_text(GOOD)
    done = subprocess.run([*command, "--resume"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "1 model verified before, 1 to run" in done.stdout, done.stdout + done.stderr
