"""The fault harness: a real job, killed again and again, resumed, and compared with one that nothing disturbed.

    python -m tests.process.chaos --kills 1000 --tensorflow 50 --seed 7 --jobs 2       (`make chaos`)

An episode is one output folder. Faults hit its run one after the other: a crash point of the commit protocol; SIGKILL
for the coordinator, a replica, a loader, a finisher, all workers or all processes, at a random time; or a signal that
stops it. Each time the same job is started again. When it has ended, its files are those of the undisturbed run, byte
for byte; after a graceful stop, which cuts parts, its rows, values and failures are. After every fault, no process of
the run is left, and nothing in /dev/shm.

The seed decides the faults and their order; the moment that a random kill hits also depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.crash_points import POINTS, VARIABLE
from tests.support.forked_runs import RunServer

ROOT = Path(__file__).resolve().parents[2]
SINKS = ("parquet", "npy", "csv", "jsonl", "arrow")
ROWS, PART_ROWS, BATCH = 1536, 128, 8
BEGINNING = tuple(point for point in POINTS if point.startswith(("lock", "manifest")))
"""These are visited once, when a job begins."""
ONCE = (*BEGINNING, *(point for point in POINTS if point.startswith(("recovery", "summary"))))
LATER = tuple(point for point in POINTS if point not in BEGINNING)
ROLES = ("coordinator", "replica", "all", "loader", "workers", "finisher")
STOPS = ("SIGINT", "SIGTERM", "SIGINT twice", "SIGTERM twice")
TORN = "journal_torn"
_MARK = "PENSTOCK_CHAOS"
_ENDS_WITHIN_S = 30.0
_RUN_TIMEOUT_S = 240.0


class Broken(AssertionError):
    """A promise did not hold."""


@dataclass(frozen=True)
class Setup:
    """One kind of job: a model, an input, a sink, and whether functions run in front of and behind the model."""

    folder: Path
    sink: str
    has_functions: bool
    is_tensorflow: bool = False

    @property
    def name(self) -> str:
        kind = "tensorflow" if self.is_tensorflow else "functions" if self.has_functions else "plain"
        return f"{self.sink}-{kind}"

    def arguments(self, output: Path) -> list[str]:
        """The command line, with everything pinned that decides the bits."""
        model = "digits.keras" if self.is_tensorflow else "digits.onnx" if self.has_functions else "slow_digits.onnx"
        runtime = "tensorflow" if self.is_tensorflow else "onnx"
        pinned = ["--runtime", runtime, "--batch-size", str(BATCH), "--threads", "1", "--part-rows", str(PART_ROWS)]
        functions = ["--preprocess-row", "tests.support.chaos_functions:dim", "--loaders", "1"]
        functions += ["--postprocess", "tests.support.chaos_functions:doubled"]
        devices = "cpu:1" if self.has_functions or self.is_tensorflow else "cpu:2"
        where = [str(self.folder / model), str(self.folder / "rows.parquet"), "--output", str(output)]
        more = functions if self.has_functions else []
        return ["predict", *where, "--format", self.sink, "--devices", devices, *pinned, *more]


@dataclass
class Figures:
    """What was done, and what was found."""

    kills: Counter[str] = field(default_factory=Counter)
    by_sink: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    episodes: int = 0
    gave_up: int = 0
    rows_lost: int = 0
    rows_doubled: int = 0
    rows_changed: int = 0
    files_differing: int = 0
    processes_left: int = 0
    shared_memory_left: int = 0
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_kills(self) -> int:
        return self.kills.total()

    def killed(self, setup: Setup, what: str, count: int = 1) -> None:
        with self.lock:
            self.kills[what] += count
            self.by_sink[setup.name] += count

    def lines(self) -> list[str]:
        def shown(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))

        return [
            f"{self.num_kills} kills and {self.stops.total()} stops in {self.runs} runs of {self.episodes} jobs",
            f"kills by role and point: {shown(self.kills)}",
            f"kills by sink and job: {shown(self.by_sink)}",
            f"stops: {shown(self.stops)}",
            f"runs that gave up on their workers, and were resumed: {self.gave_up}",
            f"rows lost {self.rows_lost}, doubled {self.rows_doubled}, changed {self.rows_changed}; "
            f"files that differ {self.files_differing}",
            f"processes left {self.processes_left}, names left in /dev/shm {self.shared_memory_left}",
            *(f"BROKEN: {line}" for line in self.broken),
        ]


@dataclass(frozen=True)
class Content:
    """What a job wrote, read back: rows in the order of the files, and failures."""

    table: pa.Table
    failures: list[dict[str, Any]]


@dataclass(frozen=True)
class Reference:
    """The undisturbed run of a kind of job."""

    files: dict[str, bytes]
    content: Content
    seconds: float


class Harness:
    """Runs episodes and counts.

    Args:
        seed: Decides the faults.
        work: An empty folder for inputs and outputs.
    """

    def __init__(self, seed: int, work: Path) -> None:
        self.seed = seed
        self.work = work
        self.figures = Figures()
        self._references: dict[Setup, Reference] = {}
        self._shared_memory = set(os.listdir("/dev/shm"))
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHONDONT")}
        self._environment |= {"PENSTOCK_CACHE": str(work / "cache")}
        self._servers = threading.local()
        self._all_servers: list[RunServer] = []

    def close(self) -> None:
        for server in self._all_servers:
            server.close()

    def prepare(self, setups: Sequence[Setup]) -> None:
        """Run every kind of job undisturbed."""
        for setup in setups:
            output = self.work / f"reference-{setup.name}"
            began = time.monotonic()
            code, errors = self._start(setup, output, {}).wait()
            _check(code == 3, f"the undisturbed {setup.name} ended with {code}: {errors}")
            seconds = time.monotonic() - began
            self._references[setup] = Reference(files_of(output), read(output, setup.sink), seconds)
            rows = self._references[setup].content
            _check(rows.table.num_rows + len(rows.failures) == ROWS and len(rows.failures) > 3, f"rows of {setup.name}")

    def run_episode(self, setup: Setup, number: int) -> None:
        """One output folder and the faults that hit it, however many jobs they need."""
        chance = random.Random(f"{self.seed}/{setup.name}/{number}")
        faults = list(self._faults(setup, number, chance))
        history: list[str] = []
        output = self.work / f"{setup.name}-{number}"
        try:
            while faults or history:
                fault = faults.pop(0) if faults else "nothing"
                history.append(fault)
                if self._run(setup, output, fault, chance):
                    self._compare(setup, output, is_cut=any(each in STOPS for each in history))
                    shutil.rmtree(output)
                    history.clear()
                    with self.figures.lock:
                        self.figures.episodes += 1
        except Broken as error:
            with self.figures.lock:
                self.figures.broken.append(f"{setup.name}, episode {number}, after {', '.join(history)}: {error}")

    def _faults(self, setup: Setup, number: int, chance: random.Random) -> Iterator[str]:
        """The faults of an episode. Over the episodes of a kind of job, every point and role has its turn."""
        points = list(LATER)
        random.Random(f"{self.seed}/{setup.name}").shuffle(points)
        turn = itertools.cycle([*points, TORN])
        later = list(itertools.islice(turn, 3 * number, 3 * number + 3))
        roles = [ROLES[(2 * number + each) % len(ROLES)] for each in range(2)]
        begin = sorted({BEGINNING[(2 * number + each) % len(BEGINNING)] for each in range(2)}, key=BEGINNING.index)
        mixed = [*later, *roles, *([STOPS[number // 3 % len(STOPS)]] if number % 3 == 2 else [])]
        chance.shuffle(mixed)
        yield from [*begin, *mixed]

    def _run(self, setup: Setup, output: Path, fault: str, chance: random.Random) -> bool:
        """Start or resume the job and have the fault hit it; returns whether the job is finished."""
        with self.figures.lock:
            self.figures.runs += 1
        environment = {}
        point = "journal_written" if fault == TORN else fault
        if point in POINTS:
            visit = 1 if point in ONCE else chance.randint(1, 6)
            environment = {VARIABLE: f"{point}:{visit}"}
        run = self._start(setup, output, environment, can_resume=chance.random() < 0.5)
        try:
            if fault in ROLES:
                self._kill(run, setup, fault, chance)
            elif fault in STOPS:
                self._stop(run, output, fault, chance)
            code, errors = run.wait()
        finally:
            run.end()
        self._check_nothing_left(run)
        _check("Traceback" not in errors, f"a stack trace: {errors}")
        if code == -signal.SIGKILL:
            if point in POINTS:
                self.figures.killed(setup, fault)
            if fault == TORN:
                tear(output / "_penstock" / "journal", chance)
        elif code == 9:
            with self.figures.lock:
                self.figures.gave_up += 1
        else:
            allowed = {3, 130, 143} if fault in STOPS else {3}
            _check(code in allowed, f"the run ended with {code}: {errors}")
        return code == 3

    def _start(self, setup: Setup, output: Path, more: dict[str, str], *, can_resume: bool = False) -> _Running:
        is_resumed = can_resume and (output / "_penstock" / "manifest.json").exists()
        arguments = ["resume", str(output)] if is_resumed else setup.arguments(output)
        if not hasattr(self._servers, "here"):
            self._servers.here = RunServer(self._environment)
            self._all_servers.append(self._servers.here)
        return _Running(self._servers.here, arguments, more, self.work)

    def _kill(self, run: _Running, setup: Setup, role: str, chance: random.Random) -> None:
        """Kill at a random time, from the first moment to a little after the end of an undisturbed run."""
        run.sleep(self._references[setup].seconds * chance.uniform(0.15, 1.1))
        if role == "coordinator":
            killed = run.kill([run.process])
        elif role == "all":
            killed = run.kill([run.process, *run.workers("")])
        elif role == "workers":
            killed = run.kill(run.workers("", wait=True))
        else:
            there = run.workers(role, wait=True) if setup.has_functions or role == "replica" else run.workers("")
            killed = run.kill([chance.choice(there)] if there else [])
        if killed:
            self.figures.killed(setup, role, killed)

    def _stop(self, run: _Running, output: Path, how: str, chance: random.Random) -> None:
        """Signal a run that has begun to predict."""
        name, _, twice = how.partition(" ")
        while not (output / "_penstock" / "journal").exists() and run.is_alive():
            time.sleep(0.005)
        run.sleep(chance.uniform(0, 0.5))
        for _ in range(2 if twice else 1):
            if run.is_alive():
                run.process.send_signal(signal.Signals[name])
                with self.figures.lock:
                    self.figures.stops[how] += 1
            run.sleep(chance.uniform(0, 0.1))

    def _compare(self, setup: Setup, output: Path, *, is_cut: bool) -> None:
        reference, found = self._references[setup], read(output, setup.sink)
        rows, expected = (table.column("row").to_pylist() for table in (found.table, reference.content.table))
        lost, doubled = len(set(expected) - set(rows)), len(rows) - len(set(rows))
        lost += max(0, len(reference.content.failures) - len(found.failures))
        is_same = rows == expected and found.table.equals(reference.content.table)
        files = files_of(output)
        names = files.keys() | reference.files.keys()
        differing = [] if is_cut else sorted(n for n in names if files.get(n) != reference.files.get(n))
        with self.figures.lock:
            self.figures.rows_lost += lost
            self.figures.rows_doubled += doubled
            self.figures.rows_changed += not is_same
            self.figures.files_differing += len(differing)
        _check(not lost and not doubled, f"{lost} rows lost, {doubled} doubled")
        _check(is_same, "rows differ")
        _check(found.failures == reference.content.failures, "failures differ")
        _check(not differing, f"files differ: {differing}")

    def _check_nothing_left(self, run: _Running) -> None:
        left = run.left()
        names = self._left_in_shared_memory()
        with self.figures.lock:
            self.figures.processes_left += len(left)
            self.figures.shared_memory_left += len(names)
        _check(not left, f"processes are left: {left}")
        _check(not names, f"names are left in /dev/shm: {names}")

    def _left_in_shared_memory(self) -> set[str]:
        """What stays there for two seconds: other programs of this machine come and go."""
        for _ in range(20):
            names = set(os.listdir("/dev/shm")) - self._shared_memory
            if not names:
                break
            time.sleep(0.1)
        return names


class _Running:
    """A run in a process of its own. Its workers are recognised by a mark in their environment."""

    _numbers = itertools.count()

    def __init__(self, server: RunServer, arguments: Sequence[str], environment: dict[str, str], work: Path) -> None:
        self._mark = f"{os.getpid()}-{next(self._numbers)}"
        self._errors = work / f"errors-{self._mark}"
        pid = server.start([*arguments, "--quiet"], environment | {_MARK: self._mark}, self._errors)
        self.process = psutil.Process(pid)
        self._end: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._code: int | None = None
        threading.Thread(target=lambda: self._end.put(server.wait()), daemon=True).start()

    def is_alive(self) -> bool:
        self.sleep(0)
        return self._code is None

    def sleep(self, seconds: float) -> None:
        """Let the run go on for so long, or to its end."""
        if self._code is None:
            try:
                self._code = self._end.get(timeout=seconds) if seconds > 0 else self._end.get_nowait()
            except queue.Empty:
                pass

    def workers(self, role: str, *, wait: bool = False) -> list[psutil.Process]:
        """The worker processes of a role, or all; waits for the first, or the end of the run."""
        while True:
            try:
                there = [each for each in self.process.children() if _is_worker(each, role)]
            except psutil.NoSuchProcess:
                return []
            if there or not wait or not self.is_alive():
                return there
            time.sleep(0.005)

    def kill(self, processes: Sequence[psutil.Process]) -> int:
        """SIGKILL; returns how many were alive to get it."""
        killed = 0
        for process in processes:
            try:
                if process.pid == self.process.pid and not self.is_alive():
                    continue
                process.kill()
                killed += 1
            except psutil.NoSuchProcess:
                pass
        return killed

    def wait(self) -> tuple[int, str]:
        """The exit code and what was said."""
        self.sleep(_RUN_TIMEOUT_S)
        if self._code is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            raise Broken(f"the run hangs: {self._errors.read_text()}")
        return self._code, self._errors.read_text()

    def left(self) -> list[str]:
        """Processes of this run that are still there some time after its end."""
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while there := self._marked():
            if time.monotonic() > deadline:
                return there
            time.sleep(0.02)
        self._errors.unlink(missing_ok=True)
        return []

    def end(self) -> None:
        if self.is_alive():
            self.process.kill()
            self.sleep(_ENDS_WITHIN_S)

    def _marked(self) -> list[str]:
        mark = f"{_MARK}={self._mark}".encode()
        there = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if mark in environment.split(b"\0"):
                    there.append(" ".join(psutil.Process(int(pid)).cmdline()))
            except (OSError, psutil.Error):
                pass
        return there


def _is_worker(process: psutil.Process, role: str) -> bool:
    try:
        return f"penstock.pool.processes.{role}" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def tear(journal: Path, chance: random.Random) -> None:
    """Leave of the last record of a journal what a crash of the machine may leave: some of its bytes."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    if last < len(content):
        os.truncate(journal, chance.randrange(last, len(content)))


def files_of(output: Path) -> dict[str, bytes]:
    """Everything that a job promises to be the same: parts and failures. (The journal has the order of the commits.)"""
    names = [str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()]
    internal = ("log.txt", "lock", "journal", "manifest.json")
    return {name: (output / name).read_bytes() for name in names if name not in {f"_penstock/{n}" for n in internal}}


def read(output: Path, sink: str) -> Content:
    failures = [json.loads(line) for line in (output / "_penstock" / "failures.jsonl").read_text().splitlines()]
    if sink == "npy":
        columns = {folder.name: sorted(folder.glob("*.npy")) for folder in sorted(output.iterdir())}
        arrays = {name: np.concatenate([np.load(path) for path in paths]) for name, paths in columns.items() if paths}
        table = pa.table({name: list(array) for name, array in arrays.items()})
    else:
        table = pa.concat_tables(_READERS[sink](path) for path in sorted(output.glob(f"part-*.{sink}")))
    return Content(table.combine_chunks(), failures)


def _read_jsonl(path: Path) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])


_READERS = {
    "parquet": pq.read_table,
    "csv": pacsv.read_csv,
    "jsonl": _read_jsonl,
    "arrow": lambda path: pa.ipc.open_file(path).read_all(),
}


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def write_inputs(folder: Path, *, tensorflow: bool) -> None:
    """The models and the rows. Some rows are null, and fail."""
    from tests.support import light_models

    folder.mkdir(parents=True, exist_ok=True)
    light_models.write(folder)
    if tensorflow:
        script = ROOT / "tests" / "support" / "make_models.py"
        subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    pixels = np.random.default_rng(5).integers(0, 17, (ROWS, 64), dtype=np.uint8)
    rows = [None if number % 211 == 7 else row for number, row in enumerate(pixels)]
    column = pa.array(rows, pa.list_(pa.uint8(), 64))
    pq.write_table(pa.table({"pixels": column}), folder / "rows.parquet", row_group_size=ROWS // 4)


def run_until(harness: Harness, setups: Sequence[Setup], kills: int, jobs: int) -> None:
    """Run episodes of all kinds in turn until so many kills have hit, or a promise is broken."""
    harness.prepare(setups)
    figures, enough = harness.figures, harness.figures.num_kills + kills
    turns = ((setup, number) for number in itertools.count() for setup in setups)
    lock = threading.Lock()

    def work() -> None:
        while figures.num_kills < enough and not figures.broken:
            with lock:
                setup, number = next(turns)
            harness.run_episode(setup, number)
            print(f"{setup.name} {number}: {figures.num_kills} kills", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as threads:
        for future in [threads.submit(work) for _ in range(jobs)]:
            future.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="with ONNX Runtime")
    parser.add_argument("--tensorflow", type=int, default=50, help="kills with TensorFlow")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="jobs at the same time")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    print(f"chaos: seed {seed}, {given.kills} kills, {given.tensorflow} with TensorFlow", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder:
        work = Path(folder)
        inputs = work / "inputs"
        write_inputs(inputs, tensorflow=given.tensorflow > 0)
        harness = Harness(seed, work)
        quick = [Setup(inputs, sink, has_functions) for has_functions in (False, True) for sink in SINKS]
        with contextlib.closing(harness):
            run_until(harness, quick, given.kills, given.jobs)
            if given.tensorflow and not harness.figures.broken:
                run_until(harness, [Setup(inputs, "parquet", False, True)], given.tensorflow, given.jobs)
    print("\n".join([*harness.figures.lines(), f"seed {seed}, {time.monotonic() - began:.0f} s"]), flush=True)
    return 1 if harness.figures.broken else 0


if __name__ == "__main__":
    sys.exit(main())
