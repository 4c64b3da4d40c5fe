"""The fault harness: a real job, killed again and again, resumed, and compared with one that nothing disturbed.

    python -m tests.process.chaos --kills 1000 --tensorflow 50 --seed 7 --jobs 2       (`make chaos`)
    python -m tests.process.chaos --engine ray --seeds 20                              (`tests.support.ray_episodes`)

An episode is one output, in a folder or on object storage. Faults hit its run, a `predict`, a `retry` or an append
(`tests.support.chaos_jobs`), one after the other: a crash point of the commit protocol; SIGKILL for the coordinator, a
replica, a loader, a finisher, all workers or all processes, at a random time; or a signal that stops it. Each time the
same command is started again. When it has ended, the files are those of the undisturbed run, byte for byte; after a
graceful stop, which cuts parts, its rows, values and failures are. After every fault `penstock verify` finds no part
that is not as it was committed, no process of the run is left, and nothing in /dev/shm.

The seed decides the faults and their order; the moment that a random kill hits also depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

import penstock
from penstock.crash_points import POINTS, VARIABLE
from tests.support import chaos_jobs, ray_episodes, s3_server
from tests.support.chaos_jobs import TORN, Setup
from tests.support.chaos_runs import Broken, Running
from tests.support.forked_runs import RunServer

ROLES = ("coordinator", "replica", "all", "loader", "workers", "finisher")
STOPS = ("SIGINT", "SIGTERM", "SIGINT twice", "SIGTERM twice")
LEFT_BEHIND = ("no record knows it", "its last record is torn")
"""What `verify` may find after a kill, besides a missing `failures.jsonl`: the next run mends it."""
_DONE = 3
"""Some rows of every job fail."""
_GAVE_UP = 9


@dataclass
class Figures:
    """What was done, and what was found."""

    kills: Counter[str] = field(default_factory=Counter)
    by_setup: Counter[Setup] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    jobs: int = 0
    gave_up: int = 0
    rows_lost: int = 0
    rows_doubled: int = 0
    rows_changed: int = 0
    files_differing: int = 0
    parts_damaged: int = 0
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
            self.by_setup[setup] += count

    def add(self, **counts: int) -> None:
        with self.lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def lines(self) -> list[str]:
        def shown(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"

        by_sink, by_command, by_place = Counter[str](), Counter[str](), Counter[str]()
        for setup, count in self.by_setup.items():
            by_sink[setup.sink] += count
            by_command[setup.command + (" with TensorFlow" if setup.is_tensorflow else "")] += count
            by_place["object storage" if setup.is_remote else "disk"] += count
        return [
            f"{self.num_kills} kills and {self.stops.total()} stops in {self.runs} runs of {self.jobs} jobs",
            f"kills by role: {shown(Counter({name: self.kills[name] for name in ROLES if self.kills[name]}))}",
            f"kills by point: {shown(Counter({n: c for n, c in self.kills.items() if n not in ROLES}))}",
            f"kills by sink: {shown(by_sink)}",
            f"kills by command: {shown(by_command)}",
            f"kills by place: {shown(by_place)}",
            f"stops: {shown(self.stops)}",
            f"runs that gave up on their workers, and were resumed: {self.gave_up}",
            f"rows lost {self.rows_lost}, doubled {self.rows_doubled}, changed {self.rows_changed}; "
            f"files that differ {self.files_differing}; parts damaged after a kill {self.parts_damaged}",
            f"processes left {self.processes_left}, names left in /dev/shm {self.shared_memory_left}",
            *(f"BROKEN: {line}" for line in self.broken),
        ]


@dataclass(frozen=True)
class Reference:
    """The undisturbed run of a kind of job, and what the output holds when it begins."""

    before: dict[str, bytes]
    files: dict[str, bytes]
    content: chaos_jobs.Content
    seconds: float


class Harness:
    """Runs episodes and counts.

    Args:
        seed: Decides the faults.
        work: An empty folder for inputs and outputs.
        setups: The kinds of job.
        only: Faults that all episodes consist of; none: all faults in turn.
        most_faults: How many there are in an episode at most.
    """

    def __init__(
        self, seed: int, work: Path, setups: Sequence[Setup], only: Sequence[str] = (), most_faults: int = 8
    ) -> None:
        self.seed = seed
        self.work = work
        self.figures = Figures()
        self._only = only
        self._most_faults = most_faults
        self._stack = contextlib.ExitStack()
        self._stores: dict[bool, Any] = {False: LocalFileSystem(auto_mkdir=True)}
        self._references: dict[Setup, Reference] = {}
        self._locks = {setup: threading.Lock() for setup in setups}
        self._shared_memory = set(os.listdir("/dev/shm"))
        (work / "tmp").mkdir()
        more = {"PENSTOCK_CACHE": str(work / "cache"), "TMPDIR": str(work / "tmp")}
        if any(setup.is_remote for setup in setups):
            endpoint = self._stack.enter_context(s3_server.start_s3_server())
            more |= s3_server.environment(endpoint)
            self._stores[True] = s3_server.filesystem(endpoint)
            self._stores[True].mkdir(chaos_jobs.BUCKET)
        # In this process, too: it looks at the outputs by `penstock.verify`.
        self._stack.enter_context(mock.patch.dict(os.environ, more))
        self._servers = threading.local()

    def close(self) -> None:
        self._stack.close()

    def run_episode(self, setup: Setup, number: int) -> None:
        """One output and the faults that hit it, however many jobs they need."""
        chance = random.Random(f"{self.seed}/{setup.name}/{number}")
        faults = self._faults(setup, number, chance)
        history: list[str] = []
        try:
            reference = self._reference(setup)
            output = self._output(setup, f"{setup.name}-{number}")
            while faults or history:
                if not history:
                    self._restore(setup, output, reference)
                fault = faults.pop(0) if faults else "nothing"
                history.append(fault)
                if self._run(setup, output, fault, chance):
                    is_cut = setup.command != "retry" and any(each in STOPS for each in history)
                    self._compare(setup, output, reference, is_cut=is_cut)
                    self._stores[setup.is_remote].rm(output, recursive=True)
                    history.clear()
                    self.figures.add(jobs=1)
        except Exception as error:  # Broken, or what nobody thought of: the figures are shown all the same
            after = f"{setup.name}, episode {number}, after {', '.join(history)}"
            with self.figures.lock:
                self.figures.broken.append(f"{after}: {type(error).__name__}: {error}")

    def _output(self, setup: Setup, name: str) -> str:
        return f"s3://{chaos_jobs.BUCKET}/{name}" if setup.is_remote else str(self.work / name)

    def _restore(self, setup: Setup, output: str, reference: Reference) -> None:
        self._stores[setup.is_remote].pipe({f"{output}/{name}": raw for name, raw in reference.before.items()})

    def _reference(self, setup: Setup) -> Reference:
        """The kind of job, run once and undisturbed."""
        with self._locks[setup]:
            if setup not in self._references:
                self._references[setup] = self._prepare(setup)
            return self._references[setup]

    def _prepare(self, setup: Setup) -> Reference:
        output, store = self._output(setup, f"reference-{setup.name}"), self._stores[setup.is_remote]
        before: dict[str, bytes] = {}
        setup.write_own()
        if setup.command != "predict":
            code, errors = self._start(setup, setup.predict(output), {}).wait()
            _check(code == _DONE, f"the job that {setup.name} begins with ended with {code}: {errors}")
            before = chaos_jobs.all_files(store, output)
            setup.change()
        began = time.monotonic()
        code, errors = self._start(setup, setup.arguments(output), {}).wait()
        seconds = time.monotonic() - began
        _check(code == _DONE, f"the undisturbed {setup.name} ended with {code}: {errors}")
        files = chaos_jobs.promised(chaos_jobs.all_files(store, output))
        content = chaos_jobs.read(files, setup.sink)
        rows, failures = content.table.num_rows, len(content.failures)
        _check(rows + failures == chaos_jobs.ROWS and failures > 3, f"{setup.name}: {rows} rows, {failures} failures")
        return Reference(before, files, content, seconds)

    def _faults(self, setup: Setup, number: int, chance: random.Random) -> list[str]:
        """The faults of an episode. Over the episodes of a kind of job, every point and role has its turn."""
        if self._only:
            return [chance.choice(self._only) for _ in range(self._most_faults)]
        beginning = [point for point in setup.points if chaos_jobs.is_of_beginning(point)]
        later = [point for point in setup.points if not chaos_jobs.is_of_beginning(point)]
        of_setup = random.Random(f"{self.seed}/{setup.name}")
        of_setup.shuffle(later)
        turn = of_setup.randrange(12) + number
        begin = sorted({beginning[(2 * turn + each) % len(beginning)] for each in range(2)}, key=beginning.index)
        mixed = list(itertools.islice(itertools.cycle(later), 3 * number, 3 * number + 3))
        mixed += [ROLES[(2 * turn + each) % len(ROLES)] for each in range(2)]
        mixed += [STOPS[turn // 3 % len(STOPS)]] if turn % 3 == 2 else []
        chance.shuffle(mixed)
        return [*begin, *mixed][-self._most_faults :]

    def _run(self, setup: Setup, output: str, fault: str, chance: random.Random) -> bool:
        """Start the command, or go on with it, and have the fault hit it; returns whether the job is finished."""
        self.figures.add(runs=1)
        environment = {}
        point = "journal_written" if fault == TORN else fault
        if point in POINTS:
            visit = 1 if chaos_jobs.is_visited_once(point) else chance.randint(1, 6)
            environment = {VARIABLE: f"{point}:{visit}"}
        is_resumed = chance.random() < 0.5 and self._is_unfinished(output)
        run = self._start(setup, ["resume", output] if is_resumed else setup.arguments(output), environment)
        try:
            if fault in ROLES:
                self._kill(run, setup, fault, chance)
            elif fault in STOPS:
                self._stop(run, setup, fault, chance)
            code, errors = run.wait()
        finally:
            run.end()
        self._check_nothing_left(run)
        _check("Traceback" not in errors, f"a stack trace: {errors}")
        if code == -signal.SIGKILL:
            if point in POINTS:
                self.figures.killed(setup, fault)
            if fault == TORN:
                chaos_jobs.tear(Path(output, "_penstock", "journal"), chance)
        elif code == _GAVE_UP:
            self.figures.add(gave_up=1)
        else:
            # A signal that comes before penstock listens ends it as it ends any program.
            allowed = {_DONE, 130, 143, -signal.SIGINT, -signal.SIGTERM} if fault in STOPS else {_DONE}
            _check(code in allowed, f"the run ended with {code}: {errors}")
        if code != _DONE:
            self._check_between(setup, output, chance)
        return code == _DONE

    def _start(self, setup: Setup, arguments: list[str], environment: dict[str, str]) -> Running:
        if not hasattr(self._servers, "here"):
            server = self._servers.here = RunServer(dict(os.environ))
            self._stack.callback(server.close)
        return Running(self._servers.here, arguments, environment, self.work, setup.folder)

    def _kill(self, run: Running, setup: Setup, role: str, chance: random.Random) -> None:
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

    def _stop(self, run: Running, setup: Setup, how: str, chance: random.Random) -> None:
        """Signal a run that has most likely begun to predict."""
        name, _, twice = how.partition(" ")
        run.sleep(self._references[setup].seconds * chance.uniform(0.4, 1.0))
        for _ in range(2 if twice else 1):
            if run.signal(signal.Signals[name]):
                with self.figures.lock:
                    self.figures.stops[how] += 1
            run.sleep(chance.uniform(0, 0.1))

    def _is_unfinished(self, output: str) -> bool:
        try:
            return bool(penstock.status(output)["state"] == "unfinished")
        except penstock.OutputError:
            return False  # it has not begun

    def _check_between(self, setup: Setup, output: str, chance: random.Random) -> None:
        """What a fault leaves: every committed part as it was written, and otherwise only what the next run removes."""
        try:
            found = penstock.verify(output)
        except penstock.OutputError as error:
            _check("holds no job" in str(error) and setup.command == "predict", f"verify: {error}")
            return
        all_problems = [(each["name"], each["problem"]) for each in found["problems"]]
        left = [name for name, problem in all_problems if any(words in problem for words in LEFT_BEHIND)]
        damaged = [each for each in all_problems if each[0] not in (*left, "_penstock/failures.jsonl")]
        self.figures.add(parts_damaged=len(damaged))
        _check(not damaged, f"verify after a fault: {damaged}")
        if setup.command == "retry":
            rows = found["committed"] + found["failed"]
            _check(found["state"] == "finished" and rows == chaos_jobs.ROWS, f"{found['state']} with {rows} rows")
            if chance.random() < 0.25:
                self._tidy(setup, output)

    def _tidy(self, setup: Setup, output: str) -> None:
        """A finished job is whole again when it was looked at by `resume`, which has nothing to predict."""
        run = self._start(setup, ["resume", output], {})
        code, errors = run.wait()
        _check(code in (_DONE, 7), f"resume after a retry that was killed ended with {code}: {errors}")
        self._check_nothing_left(run)
        if code == _DONE:
            _check(penstock.verify(output)["is_whole"], f"after resume: {penstock.verify(output)['problems']}")

    def _compare(self, setup: Setup, output: str, reference: Reference, *, is_cut: bool) -> None:
        files = chaos_jobs.promised(chaos_jobs.all_files(self._stores[setup.is_remote], output))
        found, wanted = chaos_jobs.read(files, setup.sink), reference.content
        rows, expected = (table.column("row").to_pylist() for table in (found.table, wanted.table))
        lost, doubled = len(set(expected) - set(rows)), len(rows) - len(set(rows))
        lost += max(0, len(wanted.failures) - len(found.failures))
        is_same = rows == expected and found.table.equals(wanted.table)
        names = files.keys() | reference.files.keys()
        differing = [] if is_cut else sorted(n for n in names if files.get(n) != reference.files.get(n))
        self.figures.add(
            rows_lost=lost, rows_doubled=doubled, rows_changed=int(not is_same), files_differing=len(differing)
        )
        _check(not lost and not doubled, f"{lost} rows lost, {doubled} doubled")
        _check(is_same, "rows differ")
        _check(found.failures == wanted.failures, "failures differ")
        _check(not differing, f"files differ: {differing}")
        _check(penstock.verify(output)["is_whole"], f"verify: {penstock.verify(output)['problems']}")

    def _check_nothing_left(self, run: Running) -> None:
        left = run.left()
        names = self._left_in_shared_memory()
        self.figures.add(processes_left=len(left), shared_memory_left=len(names))
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


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def run_until(harness: Harness, setups: Sequence[Setup], kills: int, jobs: int, deadline: float = math.inf) -> None:
    """Run episodes of all kinds in turn until so many kills have hit, a promise is broken, or it is too late."""
    figures, enough = harness.figures, harness.figures.num_kills + kills
    turns = ((setup, number) for number in itertools.count() for setup in setups)
    lock = threading.Lock()

    def work() -> None:
        while figures.num_kills < enough and not figures.broken and time.monotonic() < deadline:
            with lock:
                setup, number = next(turns)
            harness.run_episode(setup, number)
            print(f"{setup.name} {number}: {figures.num_kills} kills", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as threads:
        for future in [threads.submit(work) for _ in range(jobs)]:
            future.result()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="ray: see tests.support.ray_episodes"
    )
    parser.add_argument(
        "--seeds", type=int, default=20, help="with --engine ray: so many, from --seed on, or from 1 on"
    )
    parser.add_argument("--kills", type=int, default=1000, help="with ONNX Runtime")
    parser.add_argument("--tensorflow", type=int, default=50, help="kills with TensorFlow")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then no other job begins")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="jobs at the same time")
    parser.add_argument("--only", default="", help="kinds of job with this in their name, such as retry or s3")
    parser.add_argument("--faults", nargs="*", default=(), choices=[*ROLES, *POINTS, TORN, *STOPS], metavar="FAULT")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    if given.engine == "ray":
        with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder:
            first = 1 if given.seed is None else given.seed
            return ray_episodes.run_seeds(range(first, first + given.seeds), Path(folder))
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    print(f"chaos: seed {seed}, {given.kills} kills, {given.tensorflow} with TensorFlow", flush=True)
    began = time.monotonic()
    deadline = began + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder:
        work = Path(folder)
        inputs = work / "inputs"
        chaos_jobs.write_inputs(inputs, tensorflow=given.tensorflow > 0)
        quick = [setup for setup in chaos_jobs.all_setups(inputs) if given.only in setup.name]
        random.Random(seed).shuffle(quick)
        slow = [Setup(inputs, "parquet", is_tensorflow=True)] if given.tensorflow else []
        with contextlib.closing(Harness(seed, work, [*quick, *slow], given.faults)) as harness:
            run_until(harness, quick, given.kills, given.jobs, deadline)
            if slow and not harness.figures.broken:
                run_until(harness, slow, given.tensorflow, given.jobs, deadline)
    print("\n".join([*harness.figures.lines(), f"seed {seed}, {time.monotonic() - began:.0f} s"]), flush=True)
    return 1 if harness.figures.broken else 0


if __name__ == "__main__":
    sys.exit(main())
