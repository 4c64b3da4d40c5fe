"""Runs of the command in processes that are forked from one that has imported everything: a start costs half as much.

As a script, it serves: a line of JSON on standard input begins a run (`arguments`, `environment`, `errors`,
`import_from`); its answers are the number of the process, and how it ended. It runs one at a time, and ends with its
standard input. The workers of a run are processes of their own as ever.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]


class RunServer:
    """Starts runs, one at a time."""

    def __init__(self, environment: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.support.forked_runs"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self, arguments: list[str], environment: dict[str, str], errors: Path, import_from: Path | None = None
    ) -> int:
        """Begin a run, which may import modules of a folder; returns the number of its process."""
        assert self._process.stdin is not None
        order: dict[str, Any] = {"arguments": arguments, "environment": environment, "errors": str(errors)}
        order["import_from"] = str(import_from) if import_from is not None else None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """How the run ended: its exit code, or the signal that killed it as a negative number."""
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _serve() -> None:

    import penstock.api
    import penstock.commands.to_folder
    import penstock.sources.tables.parquet  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(order)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(order: dict[str, Any]) -> NoReturn:
    from penstock import crash_points
    from penstock.cli.commands import main

    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(order["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor, target in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(descriptor, target)
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # where a run that hangs is
        os.environ.update(order["environment"])
        crash_points.arm(os.environ.get(crash_points.VARIABLE))
        if order["import_from"] is not None:
            sys.path.insert(0, order["import_from"])
        sys.argv = ["penstock", *order["arguments"]]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
