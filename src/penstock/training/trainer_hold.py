"""The coordinator's side of the process that trains: starts it, takes its reports, and starts it again if it dies."""

from __future__ import annotations

import multiprocessing.connection
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any, ClassVar

from penstock.core.messages import Failed
from penstock.core.stillness import Timeouts
from penstock.core.stopping import StopFlag
from penstock.errors import Interrupted, WorkersDied
from penstock.pool.processes.supervisor import LoaderLaunch, WorkerProcess
from penstock.runtimes.keras.training.environment import environment_for
from penstock.storage.disk import internal, output_errors
from penstock.storage.turns import end_turns, take_turn
from penstock.training.fit_job import CheckpointReport, EndReport, FitJob, Report, Stop, Train
from penstock.training.stages import Watchdog

MOST_DEATHS = 3
"""After so many deaths in a row, without a new checkpoint in between, the process is not started again."""
_LOOK_EVERY_S = 0.2


@dataclass
class TrainerHold:
    """Trains a job to its end, even if the process dies or hangs.

    Args:
        job: The job.
        log: The file to which the process writes.
        stop: When it is raised, the process ends with a checkpoint.
        say: Takes lines for the user.
    """

    job: FitJob
    log: IO[Any]
    stop: StopFlag
    say: Callable[[str], None]
    who: ClassVar[str] = "the process that trains"
    _kept: int = -1
    """The step of the newest checkpoint. Only a checkpoint of a later step counts as progress."""

    def train(self, hear: Callable[[Report], None]) -> EndReport:
        """Train; `hear` takes the reports of the process.

        Raises:
            PenstockError: The error of the process.
            WorkersDied: The process died several times without a new checkpoint in between.
        """
        launch = LoaderLaunch(self.log, is_verbose=self.job.is_verbose)
        options = self.job.options
        watchdog = Watchdog(Timeouts(options.row_timeout, options.hang_timeout, options.start_timeout))
        deaths = 0
        try:
            while True:
                kept = self._kept
                with output_errors():
                    self.job = replace(self.job, staging=take_turn(self.job.folder))
                ended, death = self.run_once(launch, watchdog, lambda report: self._hear(report, hear))
                if ended is not None:
                    return ended
                resume_line = options.cluster.resume_line(self.job.folder, self.job.asked.workers)
                deaths = 1 if self._kept > kept else deaths + 1
                words = launch.last_words() or "none"
                launch.note(f"{self.who} {death}")
                if deaths >= MOST_DEATHS:
                    raise WorkersDied(
                        f"{self.who} died {deaths} times without getting further",
                        received=f"it {death}; its last words: {words}",
                        hint=f"see {internal(self.job.folder, 'log.txt')}; --verbose shows more. "
                        f"What was kept in checkpoints stays: {resume_line}",
                    )
                if self.stop.signal_number is not None:
                    raise Interrupted.by_signal(
                        self.stop.signal_number,
                        f"stopped; {self.who} {death}, so the last checkpoint is an older one",
                        hint=f"go on with: {resume_line}",
                    )
                self.say(f"{self.who} {death}: it is started again, from the last checkpoint")
        finally:
            launch.close()
            with suppress(OSError):
                end_turns(self.job.folder)

    def _hear(self, report: Report, hear: Callable[[Report], None]) -> None:
        if isinstance(report, CheckpointReport):
            self._kept = max(self._kept, report.step)
        else:
            hear(report)

    def run_once(
        self, launch: LoaderLaunch, watchdog: Watchdog, hear: Callable[[Report], None]
    ) -> tuple[EndReport | None, str]:
        """Run the process once. Returns how training ended, or None and how the process ended."""
        job = self.job
        environment = launch.own_environment() | {"TF_USE_LEGACY_KERAS": "0"}
        environment |= environment_for(job.backend, job.devices, job.threads)
        process = WorkerProcess("penstock.training.trainer_process", (), (), environment, self.log)
        is_told, limit = False, ""
        watchdog.begin()
        try:
            process.send(Train(job, tuple(sys.path)))
            while True:
                if self.stop.is_raised and not is_told:
                    process.send(Stop())
                    is_told = True
                is_silent = not multiprocessing.connection.wait(process.signs, _LOOK_EVERY_S)
                hung_s = watchdog.look(process, time.monotonic())
                if hung_s is not None and process.hung_s is None:
                    limit = f" (more than {watchdog.option})"
                    process.end_hung(hung_s)
                if is_silent:
                    continue
                try:
                    report = process.receive()
                except (EOFError, OSError):
                    return None, process.describe_end() + limit
                if isinstance(report, Failed):
                    raise report.as_error(self.who)
                if isinstance(report, EndReport):
                    return report, ""
                hear(report)
        finally:
            process.close()
