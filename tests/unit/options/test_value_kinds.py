"""Options as they are written: constants, params, labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.options.class_names import ClassNames
from penstock.options.records import OPTIONS, make_options


def test_constants_are_names_and_texts() -> None:
    read = OPTIONS["constants"].read(("keep_prob=1.0", "mode=a=b", "empty="))
    assert read == {"keep_prob": "1.0", "mode": "a=b", "empty": ""}


@pytest.mark.parametrize("entries", [("keep_prob",), ("=1",), ("a=1", "a=2")])
def test_constants_that_say_nothing_are_refused(entries: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE"):
        OPTIONS["constants"].read(entries)


def test_params_are_an_object_or_a_file_of_one(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"hidden": [4, 2]}', encoding="utf-8")
    assert (
        OPTIONS["params"].read('{"hidden": [4, 2]}')
        == OPTIONS["params"].read(str(tmp_path / "params.json"))
        == {"hidden": [4, 2]}
    )


@pytest.mark.parametrize("text", ["[1]", "{", "nowhere.json"])
def test_params_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--params"):
        OPTIONS["params"].read(text)


@pytest.mark.parametrize(
    ("name", "content", "labels"),
    [
        ("a.txt", "cat\ndog\n", ("cat", "dog")),
        ("a.txt", "\ufeffcat\r\ndog", ("cat", "dog")),
        ("a.txt", "cat\n\ndog\n", ("cat", "", "dog")),
        ("a.json", '["cat", "dog"]', ("cat", "dog")),
        ("a.json", '{"1": "dog", "0": "cat"}', ("cat", "dog")),
        ("a.json", '{"0": ["n02", "cat"], "1": ["n03", "dog"]}', ("cat", "dog")),
        ("a.json", '{"kind": ["cat", "dog"], "size": {"0": "big"}}', {"kind": ("cat", "dog"), "size": ("big",)}),
    ],
)
def test_labels_are_read_from_lines_and_json(tmp_path: Path, name: str, content: str, labels: ClassNames) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert OPTIONS["labels"].read(str(tmp_path / name)) == labels


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", ""),
        ("a.txt", "\n"),
        ("a.json", "{"),
        ("a.json", '{"0": "a", "2": "b"}'),
        ("a.json", "3"),
        ("a.json", '{"cat": 0, "dog": 1}'),
        ("a.json", "[]"),
    ],
)
def test_labels_that_cannot_be_numbered_are_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="labels"):
        OPTIONS["labels"].read(str(tmp_path / name))


def test_labels_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        OPTIONS["labels"].read(str(tmp_path / "none.txt"))


def test_resources_are_amounts_and_labels() -> None:
    for given in ({"CPU": 1, "zone": "eu"}, ("CPU=1", "zone=eu")):
        assert OPTIONS["resources"].read(given) == {"CPU": "1", "zone": "eu"}


@pytest.mark.parametrize("amount", ["abc", "-1", "nan", "inf"])
def test_resources_of_ray_take_amounts(amount: str) -> None:
    with pytest.raises(UsageError, match="takes an amount of CPU"):
        make_options({"engine": "ray", "resources": {"CPU": amount}})


@pytest.mark.parametrize("amount", ["0", "0.5", "2.5"])
def test_cpus_are_taken_whole(amount: str) -> None:
    with pytest.raises(UsageError, match="takes whole CPUs") as caught:
        make_options({"engine": "ray", "resources": {"CPU": amount}})
    assert caught.value.received == f"--resources CPU={amount}"
    assert caught.value.allowed == "CPU=1, CPU=2, …"


def test_other_resources_are_taken_in_parts_as_ray_does() -> None:
    for given in ({"CPU": 2.0}, {"GPU": 0.5}, {"GPU": 0}, {"memory": 8e9}, {"slots": 0.25}):
        make_options({"engine": "ray", "resources": given})
    with pytest.raises(UsageError, match="a part of one, but not of several"):
        make_options({"engine": "ray", "resources": {"slots": 1.5}})


def test_resource_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="a name is empty"):
        make_options({"engine": "ray", "resources": {" ": "1"}})
