"""The watch that listens to nothing."""

from __future__ import annotations

from penstock.core.row_watch import UNWATCHED, Watch

from .encoded import Diary


def test_nothing_is_poisoned_and_no_care_is_asked_for() -> None:
    assert isinstance(UNWATCHED, Watch)
    assert not UNWATCHED.is_careful
    assert dict(UNWATCHED.poisoned) == {}


def test_it_may_be_told_anything() -> None:
    UNWATCHED.begin(0, 1)
    UNWATCHED.begin(1 << 62, 0)
    UNWATCHED.end()
    UNWATCHED.end()


def test_what_one_watch_knows_others_do_not() -> None:
    diary = Diary(is_careful=True, poisoned={})
    diary.begin(1, 2)
    assert not Watch().is_careful
    assert Diary().begun == []
