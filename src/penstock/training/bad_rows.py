"""The bad rows of a training job: how many may be, and the file that names them."""

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
        train: The rows that are learned from.
        validation: The rows that are measured with.
        is_one_input: Whether these are rows of the same input, so that their numbers are.
        allowed: The share of rows that may be bad.
        folder: Of the job.
        staging: Where the file is until it is whole (`storage.turns`).
    """

    train: JobRows
    validation: JobRows | None
    is_one_input: bool
    allowed: float
    folder: str
    staging: str | None = None
    is_written: bool = True
    """Whether this process writes the file: one of a gang does."""
    _judged: int = 0

    def all(self) -> list[RowFailure]:
        """Every bad row that was found so far, those of training first."""
        held_out = self.validation.failures if self.validation is not None else {}
        if self.is_one_input:
            return in_order({**self.train.failures, **held_out}.values())
        return [*in_order(self.train.failures.values()), *in_order(held_out.values())]

    def first(self) -> str | None:
        """The first of them, in words."""
        failures = self.all()
        return f"{failures[0].origin}: {failures[0].reason}" if failures else None

    def check(self, *, is_whole: bool) -> None:
        """End training where too many rows are bad. Few rows are judged only when all were read (`is_whole`).

        Raises:
            TooManyFailures: More than are allowed. They are written down.
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
        """Write them to the folder."""
        failures = self.all()
        if failures and self.is_written:
            lines = "".join(json.dumps(asdict(failure)) + "\n" for failure in failures)
            with output_errors():
                write_whole(internal(self.folder, "failures.jsonl"), lines.encode(), self.staging)


def in_order(failures: Iterable[RowFailure]) -> list[RowFailure]:
    """Bad rows in the order of the input."""
    return sorted(failures, key=lambda failure: failure.row)
