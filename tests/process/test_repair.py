"""Damaged outputs: what is wrong is told, and predicting only that again gives the bytes that were there."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import OutputError
from penstock.storage.manifest import load_manifest
from penstock.storage.places import place_of
from tests.conftest import Penstock

PINNED = ("--threads", 1, "--batch-size", 100, "--part-rows", 1000, "--plan", "off")


@pytest.fixture(scope="module")
def finished(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A job of 5 parts."""
    output = tmp_path_factory.mktemp("finished") / "out"
    arguments = ("--output", output, "--limit", 5000, *PINNED)
    ran = penstock_run("predict", light_models / "digits.onnx", digits, *arguments)
    assert ran.returncode == 0, ran.stderr
    return output


@pytest.fixture
def output(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def parts_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.glob("part-*"))}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_broken_parts_are_told_and_recomputed_alone(output: Path, penstock_run: Penstock) -> None:
    before = parts_of(output)
    assert len(before) == 5
    whole = penstock_run("verify", output)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "every part is whole: 5,000 rows in 5 parts, 0 failed (finished)" in whole.stdout
    names = list(before)
    (output / names[1]).unlink()
    os.truncate(output / names[2], 100)
    flip(output / names[3])
    times = {name: (output / name).stat().st_mtime_ns for name in (names[0], names[4])}

    found = penstock_run("verify", output)
    assert found.returncode == 7
    assert f"{names[1]}: it is missing" in found.stdout
    assert f"{names[2]}: it has 100 bytes" in found.stdout
    assert f"{names[3]}: CRC32C" in found.stdout
    assert "resume" in found.stderr
    as_json = penstock_run("verify", output, "--json")
    assert as_json.returncode == 7
    assert [each["name"] for each in json.loads(as_json.stdout)["problems"]] == names[1:4]
    assert penstock.verify(output) == json.loads(as_json.stdout)

    mended = penstock_run("resume", output, "--verify", "--json")
    assert mended.returncode == 0, mended.stderr
    assert "part 3 is missing or altered" in mended.stderr
    assert json.loads(mended.stdout)["rows_before"] == 2000, "only three parts are predicted again"
    assert parts_of(output) == before
    assert {name: (output / name).stat().st_mtime_ns for name in times} == times
    assert penstock_run("verify", output).returncode == 0


def test_unknown_files_are_told_and_removed(output: Path, penstock_run: Penstock) -> None:
    before = parts_of(output)
    (output / "part-00000009.parquet").write_bytes(b"x")
    (output / "notes.txt").write_bytes(b"mine")
    with open(output / "_penstock" / "journal", "ab") as journal:
        journal.write(b"12345678 {")
    found = {each["name"]: each["problem"] for each in penstock.verify(output)["problems"]}
    assert "no record knows it" in found["part-00000009.parquet"]
    assert found["_penstock/journal"] == "its last record is torn"
    assert penstock.resume(output, verify=True, progress=False).rows == 5000
    assert penstock.verify(output)["is_whole"]
    assert parts_of(output) == before
    (output / "part-00000000_0001.parquet").write_bytes(b"of a retry that was killed")
    assert penstock.resume(output, progress=False).rows == 5000, "also without looking at every part"
    assert penstock.verify(output)["is_whole"]
    assert parts_of(output) == before
    assert (output / "notes.txt").exists()


def test_damaged_journal_is_told_and_only_what_it_lost_is_recomputed(output: Path, penstock_run: Penstock) -> None:
    before = parts_of(output)
    journal = output / "_penstock" / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"rows": 1000', b'"rows": 1001')
    journal.write_bytes(b"".join(lines)[:-7])
    found = penstock_run("verify", output)
    assert found.returncode == 7
    assert "_penstock/journal: record 1 is altered" in found.stdout
    assert "_penstock/journal: its last record is torn" in found.stdout
    mended = penstock_run("resume", output, "--json")
    assert mended.returncode == 0, mended.stderr
    assert json.loads(mended.stdout)["rows_before"] == 3000
    assert parts_of(output) == before
    assert penstock_run("verify", output).returncode == 0


def test_resume_says_what_has_another_version_since(output: Path, penstock_run: Penstock) -> None:
    before = parts_of(output)
    (output / next(iter(before))).unlink()
    assert "since the job began" not in penstock_run("resume", output).stderr
    manifest = load_manifest(place_of(str(output)))
    assert manifest is not None
    versions = manifest.versions | {"numpy": "1.26.4"}
    kinds = {name: replace(kind, versions=versions) for name, kind in manifest.kinds.items()}
    replace(manifest, versions=versions, kinds=kinds).save(place_of(str(output)))
    assert "since the job began" not in penstock_run("resume", output).stderr, "there is nothing to do"
    (output / next(iter(before))).unlink()
    said = penstock_run("resume", output).stderr
    changed = f"numpy 1.26.4 is {np.__version__} now"
    assert f"since the job began, {changed}: the last digits of rows to come may differ" in said
    assert parts_of(output) == before


EDITS: dict[str, dict[str, object] | None] = {
    "no spans": {"spans": []},
    "no parts": {"parts": []},
    "no recipe": {"recipe": {}},
    "wrong type": {"spans": 5},
    "newer": {"penstock_manifest": 99},
    "deep": None,
}


def edited(output: Path, edit: dict[str, object] | None) -> None:
    path = output / "_penstock" / "manifest.json"
    text = json.dumps(json.loads(path.read_bytes()) | edit) if edit is not None else "[" * 100_000
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_manifest_that_was_edited_is_refused_by_every_command(output: Path, edit: dict[str, object] | None) -> None:
    edited(output, edit)
    before = parts_of(output)
    for command in (penstock.resume, penstock.verify, penstock.status):
        with pytest.raises(OutputError, match="the manifest"):
            command(output)
    assert parts_of(output) == before


def test_manifest_that_was_edited_is_refused_in_one_line(output: Path, penstock_run: Penstock) -> None:
    edited(output, {"parts": []})
    ran = penstock_run("resume", output)
    assert ran.returncode == 7
    assert ran.stderr.startswith("error: the manifest is damaged\n")
    assert "it was changed since penstock wrote it" in ran.stderr
