"""What `penstock devices` says of a runtime whose libraries are not all there: real libraries, of which one is gone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.core.kinds import runtimes
from penstock.pool.devices import runtime_probe

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler here")


def library(path: Path, *needed: Path) -> None:
    # Without the first option, a library of which nothing is called would not be noted as needed.
    options = ["-Wl,--no-as-needed", "-shared", "-nostdlib"]
    subprocess.run(["gcc", *options, "-x", "c", "/dev/null", "-x", "none", *needed, "-o", path], check=True)


@pytest.fixture
def onnxruntime_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build that names TensorRT, and whose library for it needs libnvinfer."""
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (capi.parent / "__init__.py").write_text(
        "def get_available_providers():\n    return ['TensorrtExecutionProvider', 'CUDAExecutionProvider']\n"
    )
    nvinfer = tmp_path / "libnvinfer.so.10"
    library(nvinfer)
    library(capi / "libonnxruntime_providers_shared.so")
    library(capi / "libonnxruntime_providers_cuda.so")
    library(capi / "libonnxruntime_providers_tensorrt.so", nvinfer)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path), prepend=":")
    return nvinfer


def seen_by(runtime: str) -> int | str:
    probe = runtimes()[runtime].gpu_probe
    assert probe is not None
    return runtime_probe._answer(runtime_probe._ask(probe))


def test_a_library_that_is_not_there_is_named(onnxruntime_for_gpus: Path) -> None:
    assert (seen_by("onnx"), seen_by("onnx-tensorrt")) == (1, 1)
    onnxruntime_for_gpus.unlink()
    assert seen_by("onnx") == 1
    said = seen_by("onnx-tensorrt")
    assert isinstance(said, str)
    assert said.startswith("it does not start: OSError: ")
    assert "libnvinfer.so.10" in said


def test_a_build_without_gpus_sees_none() -> None:
    assert (seen_by("onnx"), seen_by("onnx-tensorrt")) == (0, 0)
