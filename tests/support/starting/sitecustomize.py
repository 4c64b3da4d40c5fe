"""What a process does before anything else whose environment names this folder in PYTHONPATH.

Libraries in HIDDEN seem not to be installed. Frameworks start in half the processor time: they do not find what they
import only to see whether it is installed, and no garbage is looked for while they are imported. A library that was
imported before the framework is found as ever, as is any of them by everyone else.
"""

import gc
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "jax")
UNNEEDED = {
    "IPython": ("keras.",),
    "cv2": ("keras.",),
    "jax": ("tensorflow.", "keras.src.callbacks."),
    "pandas": ("tensorflow.", "keras.", "tf_keras."),
    "scipy": ("tensorflow.",),
    "sklearn": ("keras.",),
}
"""Libraries, and the modules that look whether they are installed."""


class QuickFrameworks:
    """A finder of modules that comes before all others."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in UNNEEDED and _importing_module().startswith(UNNEEDED[name]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name not in FRAMEWORKS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = _without_collecting(spec.loader.exec_module)
        return spec


def _importing_module() -> str:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _without_collecting(execute: Any) -> Any:
    def execute_quickly(module: Any) -> None:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            execute(module)
        finally:
            if was_enabled:
                gc.enable()

    return execute_quickly


for hidden in filter(None, os.environ.get("HIDDEN", "").split(",")):
    sys.modules[hidden] = None  # type: ignore[assignment]
sys.meta_path.insert(0, QuickFrameworks)
