"""What every source promises: one suite over all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from . import audio_cases, dataset_cases, image_cases, selected_cases, table_cases, text_cases, tfrecord_cases
from .case import Case
from .file_promises import FILE_PROMISES
from .promises import PROMISES, Promise

pytestmark = pytest.mark.timeout(60)

FAMILIES = [
    module.CASES
    for module in (
        table_cases, text_cases, tfrecord_cases, image_cases, audio_cases, dataset_cases, selected_cases,
    )
]  # fmt: skip
CASES = [case for family in FAMILIES for case in family]
Written = Callable[[Case], tuple[Path, list[str]]]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The files of a case, written once, by all cases that have the same; whoever changes them copies them first."""
    known: dict[object, tuple[Path, list[str]]] = {}

    def write(case: Case) -> tuple[Path, list[str]]:
        if case.write not in known:
            folder = tmp_path_factory.mktemp(case.name.replace(" ", "-"))
            known[case.write] = folder, case.write(folder)
        return known[case.write]

    return write


def made(promises: Iterable[tuple[Promise, Callable[[Case], bool]]]) -> pytest.MarkDecorator:
    """Every promise with every case that can make it."""
    return pytest.mark.parametrize(
        ("promise", "case"),
        [
            pytest.param(promise, case, id=f"{promise.__name__}-{case.name}", marks=flaw(case, promise))
            for promise, is_made_by in promises
            for case in CASES
            if is_made_by(case)
        ],
    )


def flaw(case: Case, promise: Promise) -> list[pytest.MarkDecorator]:
    why = case.flaws.get(promise.__name__)
    return [pytest.mark.xfail(reason=why, raises=AssertionError, strict=True)] if why is not None else []


def test_cases_have_names_of_their_own_and_say_what_can_be_damaged() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all((case.spoil is None) == bool(case.unspoilable) for case in CASES)


@made((promise, lambda case: True) for promise in PROMISES)
def test_source_promises(case: Case, promise: Promise, written: Written) -> None:
    _, paths = written(case)
    promise(case, paths)


@made(FILE_PROMISES.items())
def test_source_with_files_of_its_own_promises(case: Case, promise: Promise, written: Written, tmp_path: Path) -> None:
    folder, paths = written(case)
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    promise(case, [str(own / Path(path).relative_to(folder)) for path in paths])
