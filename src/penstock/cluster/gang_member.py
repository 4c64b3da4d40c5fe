"""One worker of a gang on its machine: it looks at the machine, and holds a process that trains, for one life of it."""

from __future__ import annotations

import contextlib
import platform
import queue
import secrets
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.cluster import preflight
from penstock.cluster.far_log import FarLog
from penstock.core.kinds import installed_version
from penstock.core.records import Device
from penstock.core.stillness import Timeouts
from penstock.core.stopping import StopFlag
from penstock.errors import OutputError, PenstockError, WorkersDied
from penstock.jobs.open import open_model
from penstock.jobs.placement import leased
from penstock.jobs.run_context import RunContext
from penstock.models.digest import of_module
from penstock.pool.devices import inventory
from penstock.pool.processes.supervisor import LoaderLaunch
from penstock.storage.disk import internal, output_errors
from penstock.storage.fit_manifest import load_fit_manifest
from penstock.storage.places import place_of
from penstock.training.fit_job import EndReport, FitJob, Report
from penstock.training.stages import Watchdog
from penstock.training.trainer_hold import TrainerHold

_PACKAGES = ("keras", "jax", "jaxlib", "numpy")
_PORTS = range(20_000, 32_000)
"""Above the ports of Ray's workers, and below those that systems assign. If one is taken, all workers start again."""
_HEAR_S = 1.0


@dataclass(frozen=True)
class MemberFacts:
    """What a worker has: its devices and threads, a port, and what must be alike on all machines, in words."""

    devices: tuple[Device, ...]
    threads: int
    port: int
    alike: dict[str, str]


@dataclass(frozen=True)
class News:
    """What happened in a worker since the last call of `hear`.

    Args:
        reports: The reports of its process.
        ended: How training ended.
        death: How its process ended before that; empty where it did not.
        error: What went wrong in its process, which is an error of the job.
        log: What its process wrote, as much of it as fits.
    """

    reports: tuple[Report, ...] = ()
    ended: EndReport | None = None
    death: str = ""
    error: PenstockError | None = None
    log: bytes = b""


class GangMember:
    """See above. Calls may come from any thread.

    Args:
        name: The name of its machine, as people use it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._stop = StopFlag()
        self._news: queue.SimpleQueue[Report | EndReport | str | PenstockError] = queue.SimpleQueue()
        self._log = FarLog()

    def look(self) -> dict[str, str]:
        """The versions that must be those of the driver: this is called before anything else is sent."""
        return preflight.base_versions()

    def check(self, job: FitJob, sys_path: Sequence[str]) -> MemberFacts:
        """What this machine has for a job, after a check that it sees the folder and the input of the job.

        `sys_path` is that of the user.

        Raises:
            PenstockError: It does not see them, or has no such device.
        """
        manifest = load_fit_manifest(place_of(job.folder))
        if manifest is None or manifest.fingerprint != job.cache_key:
            raise OutputError(
                f"{self.name} does not see the output of this job",
                received=job.folder,
                hint="--output with --engine ray is a folder that all machines share, under the same path",
            )
        with output_errors(), tempfile.TemporaryFile(dir=internal(job.folder, "")):
            pass  # this machine may write there, too
        job.check_input()
        sys.path += [entry for entry in sys_path if entry not in sys.path]
        devices = tuple(inventory.choose(job.options.devices))
        alike = {package: installed_version(package) or "not installed" for package in _PACKAGES}
        alike |= {"machine": platform.machine(), "devices": f"{len(devices)} {devices[0].kind}"} | _contents(job)
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        return MemberFacts(devices, job.options.threads or inventory.usable_cores(), port, alike)

    def begin(self, job: FitJob) -> None:
        """Start the process that trains, on the devices of the job."""
        threading.Thread(target=self._run, args=(job,), name=f"worker on {self.name}", daemon=True).start()

    def hear(self) -> News:
        """What happened since the last call; waits a moment where nothing did."""
        said: list[Report] = []
        with contextlib.suppress(queue.Empty):
            timeout_s = _HEAR_S
            while True:
                news = self._news.get(timeout=timeout_s)
                timeout_s = 0.0
                if isinstance(news, PenstockError):
                    return News(tuple(said), error=news, log=self._log.news())
                if isinstance(news, EndReport):
                    return News(tuple(said), news, log=self._log.news())
                if isinstance(news, str):
                    return News(tuple(said), death=news, log=self._log.news())
                said.append(news)
        return News(tuple(said), log=self._log.news())

    def stop(self, signal_number: int) -> None:
        """End after the step that is under way."""
        self._stop.signal_number = signal_number

    def _run(self, job: FitJob) -> None:
        options = job.options
        timeouts = Timeouts(options.row_timeout, options.hang_timeout, options.start_timeout)
        context = RunContext(self._log.file, self._stop, lambda line: None, job.is_verbose)
        launch = LoaderLaunch(self._log.file, is_verbose=job.is_verbose)
        try:
            with leased(list(job.devices), job.model, options.memory_fraction, context) as devices:
                hold = TrainerHold(replace(job, devices=tuple(devices)), self._log.file, self._stop, context.note)
                ended, death = hold.run_once(launch, Watchdog(timeouts), self._news.put)
            words = launch.last_words()
            self._news.put(ended if ended is not None else f"{death}; its last words: {words or 'none'}")
        except WorkersDied as error:  # its process lost the other workers
            self._news.put(str(error).replace("\n", "; "))
        except PenstockError as error:
            self._news.put(error)
        except Exception as error:
            self._news.put(PenstockError(f"the worker on {self.name} failed", received=repr(error)))
        finally:
            launch.close()


def _contents(job: FitJob) -> dict[str, str]:
    """Digests of the model and of the user's modules, as they are on this machine."""
    functions = (job.options.preprocess, job.options.preprocess_row, job.asked.step)
    modules = [each.partition(":")[0] for each in functions if isinstance(each, str)]
    digests = {f"module {name}": of_module(name) or "not found" for name in modules}
    if job.model.payload is None:
        _, digests["model"], _ = open_model(job.model.location, job.options)
    return {what: digest[:12] for what, digest in digests.items()}
