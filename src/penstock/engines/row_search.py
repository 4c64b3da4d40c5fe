"""Rows at which replicas crash or hang: found by running ever fewer rows of a batch at once. Pure.

A replica writes on its board which rows of which batch it runs. When it crashes or hangs, its spans are run again with
care: one batch at a time, so that the next notice is sure. A suspected batch is then tried a few rows at a time, with
rows that are known to run in all other places, so that its shape stays. Each death leaves an eighth of the rows; the
last one is a failed row, and is left out from then on.
"""

from penstock.core.messages import Care
from penstock.core.records import RowFailure, Span
from penstock.engines.memory_watch import Death, Verdict

_MOST_AT_FIRST = 16
"""If more of the first rows kill replicas that have never run the job, the model is to blame."""


class RowSearch:
    """The search for the rows at which replicas crashed or hung."""

    def __init__(self) -> None:
        self._suspects: dict[int, dict[int, tuple[int, int]]] = {}
        """For every span that is run with care: the suspected places of a batch, by its first row."""
        self._poisoned: dict[int, RowFailure] = {}

    def care(self, span_index: int) -> Care | None:
        suspects = self._suspects.get(span_index)
        return None if suspects is None else Care(dict(suspects))

    def poisoned(self, span: Span) -> tuple[RowFailure, ...]:
        """The rows of a span that are left out."""
        return tuple(failure for row, failure in self._poisoned.items() if span.start <= row < span.stop)

    def finished(self, span_index: int) -> None:
        self._suspects.pop(span_index, None)

    def judge(self, death: Death) -> Verdict:
        """What the end of a replica says about the rows that it was at."""
        notice, where = death.end.notice, death.span_index
        is_sure = where in self._suspects or not death.is_prepared
        for span in death.spans:
            self._suspects.setdefault(span.index, {})
        if notice is None or notice.batch_row < 0 or death.end.was_stopped:
            return Verdict.ORDINARY
        if notice.calls > 1 and not is_sure:
            return Verdict.SUSPICIOUS
        suspects = self._suspects.setdefault(where, {})
        known, places = suspects.get(notice.batch_row), (notice.start, notice.stop)
        count = notice.stop - notice.start
        if count == 0:
            return Verdict.HOPELESS  # it dies without any of the rows
        if known is None:
            suspects[notice.batch_row] = places
            return Verdict.FEWER_ARE_SUSPECTED if is_sure else Verdict.SUSPICIOUS
        if count > 1:
            suspects[notice.batch_row] = places
            return Verdict.FEWER_ARE_SUSPECTED if count < known[1] - known[0] else Verdict.ORDINARY
        del suspects[notice.batch_row]
        return self._poison(notice.first_row, death)

    def _poison(self, row: int, death: Death) -> Verdict:
        if row in self._poisoned or (not death.is_prepared and len(self._poisoned) >= _MOST_AT_FIRST):
            return Verdict.HOPELESS
        error, reason = "ReplicaDied", f"the process that predicted this row {death.end.how}"
        if death.end.hung_s is not None:
            error, reason = "TimeoutError", f"{reason}; --hang-timeout SECONDS gives it longer"
        self._poisoned[row] = RowFailure(row, "", "predict", error, reason)
        return Verdict.FEWER_ARE_SUSPECTED
