"""A run is private: it listens on nothing, connects to nothing, and leaves nothing that others can read or guess."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import numpy as np
import psutil

from tests.conftest import ENVIRONMENT, journal_length, penstock_command

from .test_kills import predict_arguments, wait_for


def test_run_opens_no_network_socket_and_keeps_its_temporary_files_to_itself(
    light_models: Path, digits: Path, tmp_path: Path
) -> None:
    """With replicas, and loaders as processes of their own."""
    temporary, output = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    (tmp_path / "steps.py").write_text("def same(block):\n    return {'pixels': block['pixels']}\n", encoding="utf-8")
    arguments = [*predict_arguments(light_models, digits, output), "--devices", "cpu:1", "--preprocess", "steps:same"]
    process = subprocess.Popen(
        penstock_command(*arguments), env={**ENVIRONMENT, "TMPDIR": str(temporary)}, cwd=tmp_path,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: journal_length(output) >= 1, process)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    sockets = [found for member in family for found in member.net_connections(kind="inet")]
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in temporary.iterdir()}
    process.terminate()
    process.communicate(timeout=60)
    assert len(family) >= 3, "the coordinator, a replica, a loader"
    assert sockets == []
    assert [name for name, mode in modes.items() if mode & 0o077] == []
    assert list(temporary.iterdir()) == [], "nothing stays"
    assert np.all([path.name.startswith(("part-", "_penstock")) for path in output.iterdir()])
