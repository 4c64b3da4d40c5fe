"""Sizes of spans and parts. They are fixed when a job starts, and do not depend on the number of devices."""

from collections.abc import Sequence

from penstock.core.records import Span

SPAN_BATCHES = 8
SPAN_INPUT_BYTES = 16 << 20
SPAN_OUTPUT_BYTES = 16 << 20
SPAN_LOAD_S = 5.0
PART_BYTES = 64 << 20
PART_SECONDS = 30.0


def rows_per_span(
    batch_size: int,
    input_row_bytes: int,
    output_row_bytes: int,
    part_rows: int | None = None,
    rows_loaded_per_s: float | None = None,
) -> int:
    """At most 8 batches, about 16 MB of input, 16 MB of output, one part, and what a loader reads in 5 seconds.

    Always whole batches, at least one.

    Spans bound three things: the memory of a result that waits for its turn, the work that a crash repeats, and the
    work that an interrupt waits for.
    """
    rows = min(
        SPAN_BATCHES * batch_size,
        SPAN_INPUT_BYTES // max(1, input_row_bytes),
        SPAN_OUTPUT_BYTES // max(1, output_row_bytes),
        part_rows or SPAN_BATCHES * batch_size,
        SPAN_BATCHES * batch_size if rows_loaded_per_s is None else int(SPAN_LOAD_S * rows_loaded_per_s),
    )
    return max(1, rows // batch_size) * batch_size


def rows_per_part(output_row_bytes: int, rows_per_second: float) -> int:
    """At most 64 MB of output, and at most what is expected in 30 s: a kill loses no more than that."""
    by_size = PART_BYTES // max(1, output_row_bytes)
    by_time = 1 << max(0, int(PART_SECONDS * rows_per_second).bit_length() - 1)
    return max(1, min(by_size, by_time))


def divide_into_parts(spans: Sequence[Span], part_rows: int) -> list[int]:
    """The index of the first span of every part. A part holds whole spans, and at least one.

    >>> divide_into_parts([Span(i, i * 10, 10, ()) for i in range(5)], 20)
    [0, 2, 4]
    """
    starts: list[int] = []
    rows = 0
    for span in spans:
        if not starts or rows + span.rows > part_rows:
            starts.append(span.index)
            rows = 0
        rows += span.rows
    return starts
