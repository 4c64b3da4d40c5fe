"""Which package brings each runtime: what is imported, what it is called when it is installed, and with which extra."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Package:
    """The library behind a runtime.

    Args:
        modules: What is imported; one of them is enough.
        distributions: What they are called in a package index, in the same order.
        extra: The extra of penstock that installs it.
        device_kinds: Where it runs.
    """

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    extra: str
    device_kinds: tuple[str, ...] = ("gpu", "cpu")
    other_install: str | None = None
    """The line that installs it, where no extra does."""

    @property
    def is_installed(self) -> bool:
        """Found out without importing it."""
        return self.version is not None

    @property
    def version(self) -> str | None:
        for module, distribution in zip(self.modules, self.distributions, strict=True):
            if importlib.util.find_spec(module) is not None:
                try:
                    return metadata.version(distribution)
                except metadata.PackageNotFoundError:
                    continue  # another distribution may bring the module: onnxruntime-gpu
        return None

    @property
    def described(self) -> str:
        """What is installed, by its own name: `onnxruntime 1.31.1`."""
        version = self.version
        is_there = (importlib.util.find_spec(module) is not None for module in self.modules)
        names = [name for name, there in zip(self.distributions, is_there, strict=True) if there]
        return f"{names[0]} {version}" if names else "nothing"

    @property
    def install(self) -> str:
        return self.other_install or f"pip install 'penstock[{self.extra}]'"


PACKAGES = {
    "tensorflow": Package(("tensorflow",), ("tensorflow",), "tensorflow"),
    "tensorflow-xla": Package(("tensorflow",), ("tensorflow",), "tensorflow", ("cpu",)),
    "jax": Package(("jax",), ("jax",), "jax"),
    "torch": Package(("torch",), ("torch",), "torch"),
    "torch-compiled": Package(("torch",), ("torch",), "torch"),
    "tf_keras": Package(("tf_keras",), ("tf_keras",), "legacy"),
    "onnx": Package(("onnxruntime", "onnxruntime"), ("onnxruntime", "onnxruntime-gpu"), "onnx"),
    "onnx-tensorrt": Package(
        ("onnxruntime",), ("onnxruntime-gpu",), "onnx", ("gpu",), "pip install onnxruntime-gpu tensorrt"
    ),
    "openvino": Package(("openvino",), ("openvino",), "openvino", ("cpu",)),
    "tflite": Package(("ai_edge_litert", "tensorflow"), ("ai-edge-litert", "tensorflow"), "tflite", ("cpu",)),
    "stablehlo": Package(("jax",), ("jax",), "jax"),
}

CONVERTER = Package(("tf2onnx",), ("tf2onnx",), "convert")
"""What writes a TensorFlow step as ONNX, for the runtimes that read that."""
