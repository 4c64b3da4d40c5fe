"""Runs of the command in processes that are forked from one that has imported everything: a start costs half as much.

As a script, it serves: a line of JSON on standard input begins a run (`arguments`, `environment`, `output`, `errors`,
`cwd`, `import_from`); its answers are the number of the process, and how it ended. It runs one at a time, and ends
with its standard input. The workers of a run are processes of their own as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]


class RunServer:
    """Starts runs, one at a time.

    Args:
        environment: What every run begins with, as it is when the run begins: a test may change it in between.
        prefix: What the server itself is started with.
    """

    def __init__(self, environment: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self._environment = environment
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.support.forked_runs"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        errors: Path,
        import_from: Path | None = None,
        *,
        output: Path = Path(os.devnull),
        cwd: Path = ROOT,
    ) -> int:
        """Begin a run, which may import modules of a folder; returns the number of its process."""
        assert self._process.stdin is not None
        order = {
            "arguments": arguments,
            "environment": {**self._environment, **environment},
            "errors": str(errors),
            "output": str(output),
            "cwd": str(cwd),
            "import_from": [] if import_from is None else [str(import_from)],
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """How the run ended: its exit code, or the signal that killed it as a negative number."""
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


class RunsInTurn:
    """Runs of one environment to their end, whose output is kept. The server begins with the first of them."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._server: RunServer | None = None
        atexit.register(self.close)

    def run(self, arguments: list[str], environment: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            server, self._server = self._server or RunServer(self._environment), None
            process = None
            try:
                process = server.start(arguments, environment, errors, output=output, cwd=cwd)
                code = server.wait()
            except BaseException:  # the time of the test is over, or the server was killed: its run ends with it
                if process is not None:
                    os.kill(process, signal.SIGKILL)
                server.close()
                raise
            self._server = server
            return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _serve() -> None:
    import penstock.api
    import penstock.commands.to_folder  # noqa: F401
    from penstock import models, sinks, sources

    for package in (models, sinks, sources):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(order)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(order: dict[str, Any]) -> NoReturn:
    """Become what `python -m penstock` would be, and end as it does."""
    from penstock import crash_points
    from penstock.cli.commands import main

    null = os.open(os.devnull, os.O_RDONLY)
    output, errors = (
        os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for name in ("output", "errors")
    )
    for descriptor, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where a run that hangs is
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    crash_points.arm(os.environ.get(crash_points.VARIABLE))
    search = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [*order["import_from"], order["cwd"], *(entry for entry in search if entry not in sys.path)]
    sys.argv = ["penstock", *order["arguments"]]
    main()
    sys.exit()


if __name__ == "__main__":
    _serve()
