"""Opens a session of onnxruntime with explicit threads, providers and precision; and says what its errors mean."""

import contextlib
import ctypes
import importlib
import os
import re
from typing import Any

from penstock.core.records import Device, ModelFile
from penstock.errors import DeviceError, ModelError, one_line
from penstock.runtimes.environment import without_gpu

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
_SOURCE = re.compile(
    r"/\S*onnxruntime/\S+\.(?:cc|h|cpp|hpp):\d+ [^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?(?: const)? ?"
)
"""The source location in onnxruntime's errors: a path, a line, and the signature of a function."""
_IN_TENSORRT = {"float16": "trt_fp16_enable", "bfloat16": "trt_bf16_enable"}
"""TensorRT's option for each precision."""


def open_session(path: str, model: ModelFile, device: Device, threads: int, *, has_tensorrt: bool = False) -> Any:
    """A session that computes in the precision of the file, unless TensorRT is used with a lower one.

    Args:
        path: The ONNX file.
        model: What the file belongs to.
        device: Where it runs.
        threads: For one operation.
        has_tensorrt: Whether TensorRT runs what it can, and CUDA the rest.

    Raises:
        ModelError: The file does not load.
        DeviceError: This onnxruntime cannot use the device, or does not compute in that precision.
    """
    import onnxruntime

    _check_precision(model, has_tensorrt)
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    # A pool that spins while it waits takes processor time that loaders could use. Measured on two busy cores only:
    # without it, a small CNN took about a tenth less processor time, an MLP the same; rows/s differed within the noise.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = _providers(onnxruntime, model, device, has_tensorrt)
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:
        raise ModelError(
            "the model does not load",
            received=f"{path}: {reason(error)}",
            hint=_hint(error, onnxruntime.__version__),
        ) from None
    missing = [name for name, *_ in providers[:-1] if name not in session.get_providers()]
    if missing:
        raise _without_gpu(onnxruntime, device, has_tensorrt=missing == [TENSORRT])
    return session


def _check_precision(model: ModelFile, has_tensorrt: bool) -> None:
    known = ["model", *(_IN_TENSORRT if has_tensorrt else ())]
    if model.precision not in known:
        raise DeviceError(
            f"onnxruntime does not compute in {model.precision}{' by TensorRT' if has_tensorrt else ''}",
            received=f"--precision {model.precision}",
            allowed=", ".join(known) + ": the precision in which the file was written",
        )


def _providers(onnxruntime: Any, model: ModelFile, device: Device, has_tensorrt: bool) -> list[Any]:
    if device.kind != "gpu":
        if has_tensorrt:
            raise DeviceError("TensorRT runs on GPUs only", received=f"{device} {device.name}")
        return ["CPUExecutionProvider"]
    available = onnxruntime.get_available_providers()
    if CUDA not in available or (has_tensorrt and TENSORRT not in available):
        raise _without_gpu(onnxruntime, device, has_tensorrt=CUDA in available)
    _preload(onnxruntime, has_tensorrt)
    cuda: dict[str, Any] = {
        "device_id": 0,
        "arena_extend_strategy": "kSameAsRequested",
        # Choosing algorithms by timing differs between processes: replicas would give different bits.
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": 1,  # as TensorFlow and JAX multiply float32 on a GPU
    }
    if device.memory_limit:
        cuda["gpu_mem_limit"] = device.memory_limit
    tensorrt = [(TENSORRT, _tensorrt(model))] if has_tensorrt else []
    return [*tensorrt, (CUDA, cuda), "CPUExecutionProvider"]


def _preload(onnxruntime: Any, has_tensorrt: bool) -> None:
    """Load the libraries that pip installed: the system does not search the folders in which they lie."""
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN
    if has_tensorrt:
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("tensorrt")


def load_provider(name: str) -> bool:
    """Load a provider, with which onnxruntime computes on a GPU; False where this build does not have it.

    Every build for GPUs lists all providers. Only loading one shows whether the libraries that it needs are there.

    Raises:
        OSError: A library that it needs is not there.
    """
    import onnxruntime

    if name not in onnxruntime.get_available_providers():
        return False
    _preload(onnxruntime, has_tensorrt=name == TENSORRT)
    # Both libraries need what `import onnxruntime` has set up in another library, which they share.
    beginning = os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime_providers_")
    for each in ("shared", name.removesuffix("ExecutionProvider").lower()):
        ctypes.CDLL(f"{beginning}{each}.so", mode=ctypes.RTLD_GLOBAL)
    return True


def _tensorrt(model: ModelFile) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "device_id": 0,
        "trt_fp16_enable": model.precision == "float16",
        "trt_int8_enable": False,
    }
    if model.precision in _IN_TENSORRT:
        settings[_IN_TENSORRT[model.precision]] = True
    if model.kind == "converted":
        # TensorRT chooses kernels by timing: an engine built again by another replica would give other bits.
        settings |= {
            "trt_engine_cache_enable": True,
            "trt_engine_cache_path": os.path.join(model.location, f"tensorrt-{model.precision}"),
        }
    return settings


def _without_gpu(onnxruntime: Any, device: Device, *, has_tensorrt: bool = False) -> DeviceError:
    if not has_tensorrt:
        install = "pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'"
        return without_gpu("onnxruntime", onnxruntime.__version__, device, install, "--devices cpu")
    return DeviceError(
        "this onnxruntime does not find TensorRT",
        received=f"{device} {device.name}, onnxruntime {onnxruntime.__version__}",
        hint="pip install tensorrt, of the version that this onnxruntime was built for; or --runtime onnx",
    )


def reason(error: Exception) -> str:
    """onnxruntime's reason without its code, its source file and its function."""
    text = one_line(error, limit=2000)
    for mark in (" : FAIL : ", " : INVALID_PROTOBUF : ", " : INVALID_GRAPH : ", " : NOT_IMPLEMENTED : ", " failed:"):
        text = text.partition(mark)[2] or text
    text = _SOURCE.sub("", text)
    return text[text.find("ONNX Runtime only") :][:300] if "ONNX Runtime only" in text else text[:300]


def _hint(error: Exception, version: str) -> str | None:
    text = str(error)
    if "opset" in text.lower() and ("guarantees" in text or "Unsupported" in text):
        return f"it was written for a newer ONNX than onnxruntime {version} knows: pip install --upgrade onnxruntime"
    if "is not a registered function/op" in text or "No opset import for domain" in text:
        return "it has operators of its own, which onnxruntime does not have; export it without them"
    if "protobuf" in text.lower():
        return "the file is damaged, or is not an ONNX file"
    return None
