"""What a replica is told of its share of a GPU, before any framework starts."""

from __future__ import annotations

import pytest

from penstock.core.records import Device
from penstock.runtimes.jax.runtime import JaxRuntime
from penstock.runtimes.keras.training.environment import environment_for
from penstock.runtimes.memory_limit import memory_fraction, ran_out
from penstock.runtimes.onnx.runtime import OnnxRuntime
from penstock.runtimes.tensorflow.runtime import TensorFlowRuntime
from penstock.runtimes.torch import TorchRuntime

GPU = Device("gpu", 0, "a GPU", "GPU-1", memory_bytes=1000, free_bytes=900, memory_limit=250)


def test_the_share_is_a_fraction_of_the_whole_device() -> None:
    assert memory_fraction(GPU) == 0.25
    assert memory_fraction(Device("gpu", 0, memory_bytes=1000)) is None
    assert memory_fraction(Device("cpu", 0, memory_bytes=1000, memory_limit=10)) is None


def test_jax_is_told_once_and_under_one_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    told = JaxRuntime().environment(GPU, 2)
    assert told["XLA_CLIENT_MEM_FRACTION"] == "0.25000"
    assert told["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ""
    assert told["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "XLA_CLIENT_MEM_FRACTION" not in JaxRuntime().environment(Device("gpu", 0), 2)


def test_every_runtime_gives_its_process_the_device_by_its_uuid() -> None:
    part = Device("gpu", 1, "a part", "MIG-7-x")
    for runtime in (TensorFlowRuntime(), JaxRuntime(), TorchRuntime()):
        assert runtime.environment(part, 1)["CUDA_VISIBLE_DEVICES"] == "MIG-7-x"
        assert runtime.environment(Device("cpu", 0), 1)["CUDA_VISIBLE_DEVICES"] == "-1"


def test_streams_of_a_gpu_have_queues_of_their_own_unless_the_user_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.delenv(name, raising=False)
    assert JaxRuntime().environment(GPU, 2)[name] == "32"
    assert name not in JaxRuntime().environment(Device("cpu", 0), 2)
    monkeypatch.setenv(name, "1")
    assert TensorFlowRuntime().environment(GPU, 2)[name] == "1"


def test_no_runtime_reports_home_what_is_run() -> None:
    assert OnnxRuntime().environment(Device("cpu", 0), 1)["ORT_DISABLE_TELEMETRY"] == "1"


def test_variants_are_runtimes_with_names_of_their_own() -> None:
    assert [TensorFlowRuntime(is_xla=xla).name for xla in (False, True)] == ["tensorflow", "tensorflow-xla"]
    assert [TorchRuntime(is_compiled=compiled).name for compiled in (False, True)] == ["torch", "torch-compiled"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA_ERROR_OUT_OF_MEMORY"),
        ValueError("std::bad_alloc"),
    ],
)
def test_want_of_memory_is_recognised(error: Exception) -> None:
    assert ran_out(error)


def test_a_process_at_its_own_end_is_left_to_another_one() -> None:
    assert not ran_out(MemoryError("out of memory"))


def test_other_errors_are_not_taken_for_want_of_memory() -> None:
    assert not ran_out(ValueError("indices[0] = 100 is not in [0, 100)"))


def test_a_process_that_trains_on_several_gpus_keeps_to_the_smallest_share() -> None:
    devices = [Device("gpu", number, "", f"GPU-{number}", 100, 100, share) for number, share in ((0, 80), (1, 60))]
    told = environment_for("jax", devices, 2)
    assert told["XLA_CLIENT_MEM_FRACTION"] == "0.60000"
    assert told["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
