"""The bad rows of a training job: how many are allowed, and the file that names them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from penstock.core.failure_limit import exceeds, too_many
from penstock.core.records import RowFailure
from penstock.storage.disk import internal, output_errors, write_whole
from penstock.training.job_rows import JobRows


@dataclass
class BadRowReport:
    """Rows of training and validation that are left out.

    Args:
        train: The rows for training.
        validation: The rows for validation.
        is_one_input: Whether both are rows of the same input, and so are numbered together.
        allowed: The share of rows that may be bad.
        folder: The folder of the job.
        staging: The folder in which the file lies until it is whole (`storage.turns`).
    """

    train: JobRows
    validation: JobRows | None
    is_one_input: bool
    allowed: float
    folder: str
    staging: str | None = None
    is_written: bool = True
    """Whether this process writes the file: in a gang, only one process does."""
    _judged: int = 0

    def all(self) -> list[RowFailure]:
        """Every bad row that was found so far, those of training first."""
        held_out = self.validation.failures if self.validation is not None else {}
        if self.is_one_input:
            return in_order({**self.train.failures, **held_out}.values())
        return [*in_order(self.train.failures.values()), *in_order(held_out.values())]

    def first(self) -> str | None:
        """The first bad row, in words."""
        failures = self.all()
        return f"{failures[0].origin}: {failures[0].reason}" if failures else None

    def check(self, *, is_whole: bool) -> None:
        """End training if too many rows are bad. A small input is judged only when all rows were read (`is_whole`).

        Raises:
            TooManyFailures: More rows are bad than are allowed. They are in the file.
        """
        count = len(self.train.failures) + (len(self.validation.failures) if self.validation is not None else 0)
        if count == self._judged and not is_whole:
            return
        self._judged = count
        failures = self.all()
        good = (self.train.rows or 0) + ((self.validation.rows or 0) if self.validation is not None else 0)
        rows = good + len(failures)
        if exceeds(len(failures), rows, self.allowed, is_whole=is_whole):
            self.write()
            raise too_many(
                f"{len(failures):,} of {rows:,} rows; the first: {self.first()}",
                self.allowed,
                "see _penstock/failures.jsonl; raise --max-failures, or mend the input",
            )

    def write(self) -> None:
        """Write the bad rows to the folder of the job."""
        failures = self.all()
        if failures and self.is_written:
            lines = "".join(json.dumps(asdict(failure)) + "\n" for failure in failures)
            with output_errors():
                write_whole(internal(self.folder, "failures.jsonl"), lines.encode(), self.staging)


def in_order(failures: Iterable[RowFailure]) -> list[RowFailure]:
    """Bad rows in the order of the input."""
    return sorted(failures, key=lambda failure: failure.row)
