"""The manifest: a job as it was started, and as a resumed run finds it."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.records import STRING, Binding, Fragment, OutputSchema, Recipe, Span, TensorSpec
from penstock.errors import OutputError
from penstock.options.records import Nulls
from penstock.storage.disk import internal
from penstock.storage.manifest import (
    Generation,
    Manifest,
    NodeKind,
    changed_files,
    describe_difference,
    is_fresh,
    load_manifest,
    pack_paths,
    unpack_paths,
)
from penstock.storage.places import place_of

MANIFEST = Manifest(
    request={"model": "m.keras", "format": "parquet", "keep": ["id"], "batch_size": None, "max_failures": 0.1},
    model_digest="d" * 64,
    fingerprint="f" * 64,
    fragments=(Fragment("/data/ä b.parquet", 10, 1_700_000_000_123_456_789), Fragment("/data/c.parquet", 0, 1)),
    recipe=Recipe("tensorflow", "cpu", 32, 1),
    bindings=(
        Binding("x", ("a", "b"), "float32", (2,), nulls=Nulls("nan", "empty")),
        Binding("t", ("text",), STRING, (None, 3)),
    ),
    schema=OutputSchema(
        (TensorSpec("y", "float32", (2, 3)), TensorSpec("s", STRING, None), TensorSpec("id", "int64", ())), 2
    ),
    spans=(
        Span(0, 0, 5, ((0, 0, 0, 5), (1, 0, 0, 2))),
        Span(1, 5, 7, (1, 100, 250), "0:3"),
        Span(2, 12, 1, ()),
    ),
    parts=(0, 2),
    versions={"python": "3.11.7", "penstock": "0.1.0"},
    weights="abc",
    max_failures=0.25,
    part_suffix=".npy",
    part_folders=("row", "y", "s", "id"),
    generations=(Generation(), Generation(1, 2, 1, pack_paths(["/data/c.parquet"]))),
    kinds={
        "cpu": NodeKind(Recipe("tensorflow", "cpu", 32, 1), (2, 1), {"python": "3.11.7"}),
        "H200": NodeKind(Recipe("tensorflow", "gpu", 64, 1)),
    },
)


@pytest.fixture
def output(tmp_path: Path) -> str:
    folder = tmp_path / "out"
    (folder / "_penstock").mkdir(parents=True)
    return str(folder)


def test_manifest_is_read_back_as_it_was(output: str) -> None:
    MANIFEST.save(place_of(output))
    assert load_manifest(place_of(output)) == MANIFEST


def test_paths_that_are_not_text_survive(output: str) -> None:
    path = os.fsdecode(b"/data/\xff.npy")
    odd = replace(MANIFEST, fragments=(Fragment(path, 1, 2),))
    odd.save(place_of(output))
    loaded = load_manifest(place_of(output))
    assert loaded is not None
    assert os.fsencode(loaded.fragments[0].path) == b"/data/\xff.npy"


def test_files_of_every_generation_are_known_in_their_order() -> None:
    assert MANIFEST.paths_of(0) == ["/data/ä b.parquet"]
    assert MANIFEST.paths_of(1) == ["/data/c.parquet"]
    odd = [os.fsdecode(b"/photos/\xff.jpg"), "/photos/new\nline.jpg", "/photos/ä.jpg"]
    assert unpack_paths(pack_paths(odd)) == odd
    many = [f"/photos/2026-11-16/{number:08d}.jpg" for number in range(10_000)]
    assert len(pack_paths(many)) < 10 * len(many), "ten bytes a file"
    with pytest.raises(ValueError, match="damaged"):
        unpack_paths(pack_paths(many)[:-8])


@pytest.mark.parametrize("firsts", [[], [(0, 0, 1)], [(0, 0, 0), (0, 1, 1)], [(0, 0, 0), (2, 3, 1)]])
def test_generations_that_do_not_follow_each_other_are_an_output_error(
    output: str, firsts: list[tuple[int, int, int]]
) -> None:
    replace(MANIFEST, generations=tuple(Generation(*each) for each in firsts)).save(place_of(output))
    with pytest.raises(OutputError, match="the manifest is damaged"):
        load_manifest(place_of(output))


def test_manifest_counts_its_rows(output: str) -> None:
    assert MANIFEST.rows == 13
    assert replace(MANIFEST, spans=()).rows == 0


def test_saving_replaces_the_old_manifest_and_leaves_nothing_beside_it(output: str) -> None:
    MANIFEST.save(place_of(output))
    changed = replace(MANIFEST, fingerprint="0" * 64)
    changed.save(place_of(output))
    assert load_manifest(place_of(output)) == changed
    assert os.listdir(internal(output)) == ["manifest.json"]


def test_crash_while_saving_leaves_the_old_manifest(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MANIFEST.save(place_of(output))

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, crash)
            with pytest.raises(KeyboardInterrupt):
                replace(MANIFEST, fingerprint="0" * 64).save(place_of(output))
        assert load_manifest(place_of(output)) == MANIFEST


def test_folder_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert load_manifest(place_of(str(tmp_path))) is None
    assert load_manifest(place_of(str(tmp_path / "absent"))) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'"text"', b"null", b"{}", b'{"penstock_manifest": 99}'],
)
def test_damaged_manifest_is_an_output_error_that_names_the_file(output: str, content: bytes) -> None:
    Path(internal(output, "manifest.json")).write_bytes(content)
    with pytest.raises(OutputError) as caught:
        load_manifest(place_of(output))
    assert internal(output, "manifest.json") in (caught.value.received or "")


@pytest.mark.parametrize("key", ["fingerprint", "spans", "recipe", "schema", "bindings", "parts"])
def test_manifest_that_lacks_a_part_is_an_output_error(output: str, key: str) -> None:
    MANIFEST.save(place_of(output))
    path = Path(internal(output, "manifest.json"))
    document = json.loads(path.read_bytes())
    del document[key]
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(OutputError):
        load_manifest(place_of(output))


def test_version_of_another_penstock_is_told(output: str) -> None:
    Path(internal(output, "manifest.json")).write_text('{"penstock_manifest": 1}', encoding="utf-8")
    with pytest.raises(OutputError) as caught:
        load_manifest(place_of(output))
    assert "version 1" in (caught.value.received or "")
    assert caught.value.allowed == "versions 6 to 7"
    assert "begin again" in (caught.value.hint or "")


def test_older_job_is_told_why_it_is_not_gone_on_with(output: str) -> None:
    Path(internal(output, "manifest.json")).write_text('{"penstock_manifest": 3}', encoding="utf-8")
    with pytest.raises(OutputError) as caught:
        load_manifest(place_of(output))
    assert "version 3, which made other pixels of images than --interpolation" in (caught.value.received or "")
    Path(internal(output, "manifest.json")).write_text('{"penstock_manifest": 8}', encoding="utf-8")
    with pytest.raises(OutputError) as caught:
        load_manifest(place_of(output))
    assert "pixels" not in (caught.value.received or "")


def test_manifest_of_the_version_before_is_read_and_not_gone_on_with(output: str) -> None:
    MANIFEST.save(place_of(output))
    path = Path(internal(output, "manifest.json"))
    document = {name: value for name, value in json.loads(path.read_bytes()).items() if name != "checksum"}
    del document["generations"]
    path.write_text(json.dumps(document | {"penstock_manifest": 5}), encoding="utf-8")
    older = load_manifest(place_of(output))
    assert older == replace(MANIFEST, version=5, generations=(Generation(),))
    assert older.is_older


def test_manifest_of_version_6_is_gone_on_with_as_a_job_of_one_kind(output: str) -> None:
    MANIFEST.save(place_of(output))
    path = Path(internal(output, "manifest.json"))
    document = {name: value for name, value in json.loads(path.read_bytes()).items() if name != "checksum"}
    del document["kinds"]
    body = json.dumps(document | {"penstock_manifest": 6}).encode()[1:]
    path.write_bytes(b'{"checksum": "%08x", %s' % (zlib.crc32(body), body))
    older = load_manifest(place_of(output))
    assert older == replace(MANIFEST, version=6, kinds={})
    assert not older.is_older
    assert older.kind("") == NodeKind(MANIFEST.recipe, MANIFEST.split, MANIFEST.versions)


def test_absent_and_empty_folders_are_fresh(tmp_path: Path) -> None:
    assert is_fresh(place_of(str(tmp_path / "absent")))
    assert is_fresh(place_of(str(tmp_path)))


def test_folder_that_a_job_left_before_it_began_is_fresh(output: str) -> None:
    Path(internal(output, "lock")).touch()
    assert is_fresh(place_of(output))


def test_folder_with_anything_else_is_not_fresh(output: str) -> None:
    Path(output, "notes.txt").touch()
    assert not is_fresh(place_of(output))


def test_folder_with_a_job_is_not_fresh(output: str) -> None:
    MANIFEST.save(place_of(output))
    assert not is_fresh(place_of(output))


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(OutputError, match="the output is not a folder"):
        is_fresh(place_of(str(path)))


def test_differences_are_told_in_words() -> None:
    then = MANIFEST.request
    assert "batch_size=64 (there: None)" in describe_difference(then, then | {"batch_size": 64})
    old = then | {"resize": "pad", "interpolation": "keras"}
    request = then | {"resize": "pad", "interpolation": "torchvision"}
    assert describe_difference(old, request) == "interpolation='torchvision' (there: 'keras')"
    old = {"preprocess": {"location": "mine:rows", "by_value": False, "digest": "a"}}
    edited = {"preprocess": {"location": "mine:rows", "by_value": False, "digest": "b"}}
    assert describe_difference(old, edited) == (
        "--preprocess: the module of mine:rows, or one that it imports, was changed since the job began; "
        "put it back to go on"
    )
    other = {"preprocess": {"location": "mine:others", "by_value": False, "digest": "a"}}
    assert describe_difference(old, other) == "preprocess='mine:others' (there: 'mine:rows')"
    assert describe_difference(then, then) == "the content of the model was changed since the job began: m.keras"


def test_of_a_long_list_only_what_differs_is_shown() -> None:
    then = {"data": [f"{number}.csv" for number in range(3000)]}
    assert describe_difference(then, {"data": then["data"][:2000] + ["new.csv"]}) == (
        "data=[… 'new.csv' …, 2,001 in all] (there: [… '2000.csv' …, 3,000 in all])"
    )
    assert describe_difference(then, {"data": ["a.csv"]}) == "data=['a.csv'] (there: [… '0.csv' …, 3,000 in all])"
    built = {"model": "my:build", "weights": "/w.h5", "custom_objects": ["layers"]}
    assert describe_difference(built, built).endswith("since the job began: my:build, /w.h5, layers")
    live = {"model": None, "weights": None}
    assert describe_difference(live, live) == "the content of the model was changed since the job began"


def test_files_that_changed_are_told_with_how_they_changed() -> None:
    first, second = MANIFEST.fragments
    assert changed_files(MANIFEST, [first, second]) == {}
    assert changed_files(MANIFEST, [first, replace(second, mtime_ns=2)]) == {second.path: None}
    larger = changed_files(MANIFEST, [replace(first, mtime_ns=2), replace(second, size=second.size + 1000)])
    assert list(larger) == [second.path, first.path], "what is certain comes first"
    assert larger[second.path] == f"{second.size + 1000:,} bytes; it had {second.size:,}"
    assert changed_files(MANIFEST, [first]) == {second.path: "it is not there any more"}
    added = replace(first, path="/data/z.parquet")
    assert changed_files(MANIFEST, [first, second, added]) == {added.path: "it was not there then"}
    assert changed_files(MANIFEST, [second, first]) == {second.path: "the files are in another order"}


def test_files_that_one_fragment_stands_for_are_told_together() -> None:
    name = "/photos/0.jpg and 999 more"
    old = replace(MANIFEST, fragments=(Fragment(f"{name}: {'a' * 32}", 1000, 1),))
    told = changed_files(old, [Fragment(f"{name}: {'b' * 32}", 1001, 1)])
    assert told == {name: "some of these files were added or removed, or have another size"}
    assert changed_files(old, [replace(old.fragments[0], mtime_ns=2)]) == {old.fragments[0].path: None}
