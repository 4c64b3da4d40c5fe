"""Disks that are full, broken or read-only, limits of the process, streams that are closed, a clock that jumps.

Each ends in success, or in its own exit code with one clear message, and the same command goes on afterwards. The calls
that fail are made to by a library that is put in front of libc; full and read-only disks are real ones, in a mount
namespace of their own.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.conftest import ENVIRONMENT, journal_length, penstock_command
from tests.support.chaos_jobs import SINKS, files_of, write_inputs
from tests.support.forked_runs import RunServer

SHIM = Path(__file__).parents[1] / "support" / "disk_faults.c"
PINNED = ["--runtime", "onnx", "--batch-size", "8", "--threads", "1", "--part-rows", "128"]
ANSWER = "the output cannot be written"


@dataclass
class Runs:
    """Runs of one job, from a server that has the faulty library loaded, and the files of an undisturbed run."""

    server: RunServer
    inputs: Path
    work: Path

    def arguments(self, output: Path, sink: str = "parquet", model: str = "digits.onnx") -> list[str]:
        where = [str(self.inputs / model), str(self.inputs / "rows.parquet"), "--output", str(output)]
        return ["predict", *where, "--format", sink, "--devices", "cpu:1", *PINNED, "--quiet"]

    def start(self, arguments: list[str], **fault: object) -> int:
        asked = {f"FAULT_{name.upper()}": str(value) for name, value in fault.items()}
        self._errors.unlink(missing_ok=True)
        return self.server.start(arguments, asked, self._errors)

    def end(self) -> tuple[int, str]:
        code, errors = self.server.wait(), self._errors.read_text()
        assert "Traceback" not in errors, errors
        return code, errors

    def run(self, arguments: list[str], **fault: object) -> tuple[int, str]:
        self.start(arguments, **fault)
        return self.end()

    def reference(self, sink: str, model: str = "digits.onnx") -> dict[str, bytes]:
        output = self.work / f"reference-{model}-{sink}"
        if not output.exists():
            code, errors = self.run(self.arguments(output, sink, model))
            assert code == 3, errors
        return files_of(output)

    @property
    def _errors(self) -> Path:
        return self.work / "errors"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder, tensorflow=False)
    return folder


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Iterator[Runs]:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C compiler here to build the faulty library with")
    work = tmp_path_factory.mktemp("faulty")
    library = work / "faulty.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    server = RunServer(ENVIRONMENT | {"LD_PRELOAD": str(library)})
    yield Runs(server, inputs, work)
    server.close()


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Iterator[Runs]:
    """Runs in a mount namespace of their own."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("file systems cannot be mounted here (unshare -m)")
    server = RunServer(ENVIRONMENT, prefix=["unshare", "-m"])
    yield Runs(server, inputs, tmp_path_factory.mktemp("mounts"))
    server.close()


def mount(runs: Runs, *arguments: object) -> None:
    command = ["nsenter", "-t", str(runs.server.pid), "-m", "mount", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


def seen_there(runs: Runs, path: Path) -> Path:
    """A path inside the mount namespace, from outside of it."""
    return Path(f"/proc/{runs.server.pid}/root{path}")


@pytest.mark.parametrize(
    ("call", "path", "number", "after"),
    [
        ("write", "staging/part-00000002", errno.EIO, 0),
        ("write", ".failures", errno.ENOSPC, 1),
        ("write", "_penstock/journal", errno.ENOSPC, 3),
        ("fsync", "_penstock/journal", errno.EIO, 3),
        pytest.param("fsync", "staging/part-", errno.EIO, 3, marks=pytest.mark.slow),
        pytest.param("rename", "/part-0000", errno.EIO, 2, marks=pytest.mark.slow),
        pytest.param("write", "_penstock/manifest", errno.ENOSPC, 0, marks=pytest.mark.slow),
        pytest.param("fsync", "_penstock/manifest", errno.EIO, 0, marks=pytest.mark.slow),
        pytest.param("write", "_penstock/lock", errno.ENOSPC, 0, marks=pytest.mark.slow),
        pytest.param("write", "staging/failures", errno.ENOSPC, 0, marks=pytest.mark.slow),
    ],
)
def test_call_that_fails_ends_the_run_with_one_message_and_it_can_be_resumed(
    faulty: Runs, tmp_path: Path, call: str, path: str, number: int, after: int
) -> None:
    output = tmp_path / "out"
    code, errors = faulty.run(faulty.arguments(output), call=call, path=path, errno=number, after=after)
    assert code == 7, errors
    assert f"error: {ANSWER}" in errors
    assert os.strerror(number) in errors
    assert "hint: " in errors
    code, errors = faulty.run(faulty.arguments(output))
    assert code == 3, errors
    assert files_of(output) == faulty.reference("parquet")


@pytest.mark.parametrize("sink", ["parquet", pytest.param("jsonl", marks=pytest.mark.slow)])
def test_short_writes_are_completed(faulty: Runs, tmp_path: Path, sink: str) -> None:
    output = tmp_path / "out"
    code, errors = faulty.run(faulty.arguments(output, sink), call="short", path=str(output))
    assert code == 3, errors
    assert files_of(output) == faulty.reference(sink)


def test_every_step_of_a_commit_is_on_the_disk_before_the_next(faulty: Runs, tmp_path: Path) -> None:
    output, log = tmp_path / "out", tmp_path / "calls"
    code, errors = faulty.run(faulty.arguments(output), path=str(output), log=log)
    assert code == 3, errors
    calls = [line.replace(str(output), "OUT") for line in log.read_text().splitlines()]
    for number in range(12):
        name = f"part-{number:08d}.parquet"
        synced = calls.index(f"fsync OUT/_penstock/staging/{name}")
        renamed = calls.index(f"rename OUT/{name}")
        steps = ["fsync OUT", "write OUT/_penstock/journal", "fsync OUT/_penstock/journal"]
        places = [calls.index(step, renamed) for step in steps]
        assert [synced, renamed, *places] == sorted([synced, renamed, *places])
        assert calls[places[-2] - 1] != f"rename OUT/part-{number + 1:08d}.parquet"


def test_time_of_day_that_jumps_changes_nothing(faulty: Runs, tmp_path: Path) -> None:
    code, errors = faulty.run(faulty.arguments(tmp_path / "out"), clock=-86_400)
    assert code == 3, errors
    assert files_of(tmp_path / "out") == faulty.reference("parquet")


def test_full_log_does_not_end_a_run_whose_replica_dies(faulty: Runs, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = faulty.arguments(output, model="slow_digits.onnx")
    process = psutil.Process(faulty.start(arguments, call="write", path="_penstock/log.txt", errno=errno.ENOSPC))
    while journal_length(output) < 1:
        time.sleep(0.005)
    replicas = [child for child in process.children() if "replica" in " ".join(child.cmdline())]
    replicas[0].kill()
    code, errors = faulty.end()
    assert code == 3, errors
    assert files_of(output) == faulty.reference("parquet", "slow_digits.onnx")


@pytest.mark.parametrize(
    "sink", [pytest.param(sink, marks=[] if sink in ("parquet", "npy") else pytest.mark.slow) for sink in SINKS]
)
def test_disk_that_becomes_full_ends_the_run_and_it_goes_on_when_there_is_room(mounts: Runs, sink: str) -> None:
    output = mounts.work / f"full-{sink}"
    output.mkdir()
    expected = mounts.reference(sink)
    half = sum(-(-len(content) // 4096) * 4096 for content in expected.values()) // 2 + 32_768
    mount(mounts, "-t", "tmpfs", "-o", f"size={half}", "tmpfs", output)
    code, errors = mounts.run(mounts.arguments(output, sink))
    assert code == 7, errors
    assert f"error: {ANSWER}" in errors
    assert "No space left on device" in errors
    assert journal_length(seen_there(mounts, output)) > 0
    mount(mounts, "-o", "remount,size=50m", output)
    code, errors = mounts.run(["resume", str(output), "--quiet"])
    assert code == 3, errors
    assert files_of(seen_there(mounts, output)) == expected


def test_full_disk_at_the_manifest_and_read_only_output_are_refused_and_leave_nothing(mounts: Runs) -> None:
    output = mounts.work / "small"
    output.mkdir()
    mount(mounts, "-t", "tmpfs", "-o", "size=8k", "tmpfs", output)
    code, errors = mounts.run(mounts.arguments(output))
    assert (code, os.strerror(errno.ENOSPC) in errors) == (7, True), errors
    mount(mounts, "-o", "remount,ro,size=50m", output)
    code, errors = mounts.run(mounts.arguments(output))
    assert (code, os.strerror(errno.EROFS) in errors) == (7, True), errors
    mount(mounts, "-o", "remount,rw,size=50m", output)
    code, errors = mounts.run(mounts.arguments(output))
    assert code == 3, errors
    assert files_of(seen_there(mounts, output)) == mounts.reference("parquet")


def test_shared_memory_folder_of_one_page_is_enough(mounts: Runs) -> None:
    functions = ["--preprocess-row", "tests.support.chaos_functions:dim", "--loaders", "1"]
    mount(mounts, "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm")
    output = mounts.work / "shm"
    code, errors = mounts.run([*mounts.arguments(output), *functions])
    assert code == 3, errors
    assert list(seen_there(mounts, Path("/dev/shm")).iterdir()) == []


def shell(command: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command through a shell, which sets limits and redirects; `$@` are its arguments."""
    words = ["sh", "-c", command, "sh", *penstock_command(*arguments)]
    ran = subprocess.run(words, cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True, timeout=120, check=False)
    assert "Traceback" not in ran.stderr + ran.stdout, ran.stderr
    return ran


def small_job(inputs: Path, output: Path) -> list[str | Path]:
    return ["predict", inputs / "digits.onnx", inputs / "rows.parquet", "--output", output, "--runtime", "onnx"]


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished") / "out"
    ran = shell('"$@"', "predict", inputs / "digits.onnx", inputs / "rows.parquet", "--output", output, "--quiet")
    assert ran.returncode == 3, ran.stderr
    return output


@pytest.mark.parametrize(
    ("limit", "problem"),
    [("ulimit -n 12", "too many files are open"), ("ulimit -f 4", "larger than this process may make one")],
)
def test_limits_of_the_process_are_named(inputs: Path, tmp_path: Path, limit: str, problem: str) -> None:
    ran = shell(f'{limit}; exec "$@"', *small_job(inputs, tmp_path / "out"))
    assert ran.returncode == 8, ran.stderr
    assert problem in ran.stderr
    assert limit[:9] in ran.stderr


def test_few_file_descriptors_are_enough_for_a_small_job_or_named(inputs: Path, tmp_path: Path) -> None:
    ran = shell('ulimit -n 24; exec "$@"', *small_job(inputs, tmp_path / "out"))
    assert ran.returncode in (3, 7, 8), ran.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_standard_output_that_is_full_is_an_error_of_its_own(finished: Path, more: list[str]) -> None:
    ran = shell('exec "$@" > /dev/full', "status", finished, *more)
    assert ran.returncode == 7, ran.stderr
    assert "error: standard output or standard error cannot be written" in ran.stderr


def test_job_runs_without_standard_streams_and_nothing_lands_in_its_files(inputs: Path, tmp_path: Path) -> None:
    job = small_job(inputs, tmp_path / "out")
    ran = shell('exec "$@" <&- >&- 2>&-', *job)
    assert ran.returncode == 3
    assert shell('exec "$@"', "status", tmp_path / "out").stdout.startswith("finished")
    assert shell('exec "$@" 2>/dev/full', *job).returncode == 3


def test_removed_current_folder_is_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    ran = shell('rmdir ../gone; exec "$@"', "status", finished, cwd=folder)
    assert ran.returncode == 2
    assert "error: the current folder was removed" in ran.stderr
