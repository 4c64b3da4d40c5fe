"""In a process whose environment names this folder in PYTHONPATH, the libraries in HIDDEN seem not to be installed."""

import os
import sys

for name in filter(None, os.environ.get("HIDDEN", "").split(",")):
    sys.modules[name] = None  # type: ignore[assignment]
