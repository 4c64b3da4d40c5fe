"""The simulated cluster: on its own clock every part is committed once, also where nodes fail; it keeps little."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from bench.simulated_cluster import NamedFolder, Scenario, manifest_of, record_of, resume, simulate

from penstock.storage.ledger import Ledger, committed_records, is_finished
from penstock.storage.manifest import load_manifest

ROWS = 20_000_000


def test_every_part_is_committed_once_although_nodes_keep_failing(tmp_path: Path) -> None:
    figures = simulate(Scenario(ROWS, nodes=20, failures=20_000), str(tmp_path / "out"))
    assert figures.failures > 5
    assert figures.commits == figures.parts < figures.attempts
    place = NamedFolder(str(tmp_path / "out"))
    manifest = load_manifest(place)
    assert manifest is not None
    assert is_finished(manifest, committed_records(place, manifest))


def test_second_attempts_shorten_the_tail_that_slow_nodes_make(tmp_path: Path) -> None:
    tails = [
        simulate(
            Scenario(ROWS, nodes=20, slow_share=0.1, failures=0, has_second_attempts=has_second), str(tmp_path / name)
        ).tail_s
        for name, has_second in (("with", True), ("without", False))
    ]
    assert tails[0] < 0.3 * tails[1]


def test_opening_a_job_keeps_at_most_200_bytes_a_span(tmp_path: Path) -> None:
    (tmp_path / "_penstock").mkdir()
    place = NamedFolder(str(tmp_path))
    manifest = manifest_of(70_000 * 4096)
    manifest.save(place)
    ledger = Ledger(place, manifest)
    pieces = ledger.pending_pieces()
    journal = place.journal()
    journal.append_all([record_of(piece, 262144) for piece in pieces[: len(pieces) // 2]])
    journal.close()
    ledger.close()
    del manifest, ledger, pieces, journal
    tracemalloc.start()
    try:
        resume(str(tmp_path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * 70_000
