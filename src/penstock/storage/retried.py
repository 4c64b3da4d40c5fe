"""Builds a part again with rows that had failed: the other rows are copied, and the new ones are put between them."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from penstock.core.columns import count_not_finite
from penstock.core.protocols import Merges
from penstock.core.records import Result
from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import checksum_of_file
from penstock.storage.journal import PartRecord, failures_file
from penstock.storage.ledger import Ledger
from penstock.storage.manifest import Manifest
from penstock.storage.part_builder import StagedPart, write_failures
from penstock.storage.places import Place
from penstock.storage.verifying import what_is_wrong


def failed_rows(place: Place, record: PartRecord) -> dict[int, str]:
    """The rows of a part that failed, with where they come from.

    Raises:
        OutputError: The file of failures is not as it was written.
    """
    lines = _read(place, record, record.failures_file).splitlines() if record.failed else []
    failures = [json.loads(line) for line in lines]
    return {failure["row"]: failure["origin"] for failure in failures}


def failed_as_before(place: Place, ledger: Ledger, part: int, results: Sequence[Result]) -> bool:
    """Whether a retry of a part gave nothing new: the same rows, with the same bytes, failed for the same reasons."""
    records = [record for record in ledger.records if record.part == part]
    digests = {span: digest for record in records for span, digest in record.digests.items()}
    files = [_read(place, record, record.failures_file) for record in records if record.failed]
    return (
        not any(result.rows for result in results)
        and [line.encode() for line in _failure_lines(results)] == b"".join(files).splitlines()
        and all(digests.get(str(result.span.index), "") == result.digest for result in results)
    )


def _read(place: Place, record: PartRecord, name: str) -> bytes:
    """The content of a part's file. An altered file is not copied: its new checksum would make it look whole."""
    content = place.read(name)
    problem = what_is_wrong(record, name, content)
    if content is None or problem is not None:
        raise OutputError(
            "a part is not as it was written",
            received=f"{place.address(name)}: {problem}",
            hint=f"mend it first: penstock resume {place.address()} --verify",
        )
    return content


def stage_retried(
    place: Place, manifest: Manifest, ledger: Ledger, sink: Merges, part: int, results: Sequence[Result]
) -> StagedPart:
    """A whole part, in which the rows of `results` are at their places.

    Args:
        place: Where the part is now.
        manifest: The job.
        ledger: Has the records of the part.
        sink: The format.
        part: Its number.
        results: Results of the spans that had failed rows: only these rows, or their failures, in the order of the
            spans.
    """
    piece = ledger.piece_in_place_of(part)
    records = [record for record in ledger.records if record.part == part]
    pieces = [_local_copy(place, record, ledger.staging) for record in records if record.files]
    if any(result.rows for result in results):
        pieces.append(_write_rows(sink, manifest, ledger.staging, results))
    crash_point("retry_copied")
    spans = manifest.spans[records[0].first_span : records[-1].stop_span]
    writer = sink.open_part(piece.name, ledger.staging, manifest.schema) if pieces else None
    paths = sink.merge(pieces, writer, spans) if writer is not None else {}
    for path in (path for each in pieces for path in each.values()):
        os.remove(path)
    crash_point("retry_merged")
    files = {name: os.path.getsize(path) for path, name in paths.items()}
    failures_bytes = 0
    if failures := _failure_lines(results):
        path = os.path.join(ledger.staging, f"{piece.name}.failures")
        failures_bytes = write_failures(path, failures)
        paths[path] = failures_file(piece.part, piece.cut)
    outputs = [list(result.columns.values())[: manifest.schema.num_outputs] for result in results]
    reduced = {str(result.span.index): result.reduced_to for result in results if result.reduced_to is not None}
    digests = {str(result.span.index): result.digest for result in results if result.digest}
    record = PartRecord(
        part=part,
        cut=piece.cut,
        first_span=records[0].first_span,
        stop_span=records[-1].stop_span,
        rows=sum(record.rows for record in records) + sum(result.rows for result in results),
        failed=len(failures),
        files=files,
        failures_bytes=failures_bytes,
        reduced={span: size for record in records for span, size in record.reduced.items()} | reduced,
        digests={span: digest for record in records for span, digest in record.digests.items()} | digests,
        not_finite=sum(record.not_finite for record in records) + sum(map(count_not_finite, outputs)),
        checksums={name: checksum_of_file(path) for path, name in paths.items()},
        written_at=round(time.time(), 3),
        kind=records[0].kind,
    )
    return StagedPart(record, paths)


def _failure_lines(results: Sequence[Result]) -> list[str]:
    return [json.dumps(asdict(failure)) for result in results for failure in result.failures]


def _local_copy(place: Place, record: PartRecord, folder: str) -> dict[str, str]:
    """The files of a part in a local folder, by the folder of the output that they lie in."""
    paths: dict[str, str] = {}
    for number, name in enumerate(record.files):
        paths[os.path.dirname(name)] = path = os.path.join(folder, f"old-{record.cut}-{number}")
        with open(path, "wb") as file:
            file.write(_read(place, record, name))
    return paths


def _write_rows(sink: Merges, manifest: Manifest, folder: str, results: Sequence[Result]) -> dict[str, str]:
    """The new rows as a part of their own, by the folders that its files would lie in."""
    writer = sink.open_part("retried", folder, manifest.schema)
    for result in results:
        if result.rows:
            writer.write(result)
    paths: Mapping[str, str] = writer.finish()
    return {os.path.dirname(name): path for path, name in paths.items()}
