"""Run the Python blocks of a page of the documentation, in order, as one program: `python -m … PAGE [SECTION]`.

TensorFlow has two virtual devices, so that training is distributed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support.snippets import blocks_of


def main() -> None:
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    page, section = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, code in blocks_of(page, "python", section):
        # Empty lines in front: a traceback has the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), names)


if __name__ == "__main__":
    main()
