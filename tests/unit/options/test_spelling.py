"""What the shell calls `--input x=COLUMN` is `inputs={'x': 'COLUMN'}` in Python."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from penstock.errors import InputError, UsageError
from penstock.options.spelling import for_python, in_python, spelled


@pytest.mark.parametrize(
    ("shell", "python"),
    [
        ("name it: --input x=COLUMN", "name it: inputs={'x': 'COLUMN'}"),
        ("--input a=COLUMN --input b=COLUMN", "inputs={'a': 'COLUMN', 'b': 'COLUMN'}"),
        ("or --input x=prefix* to stack columns", "or inputs={'x': 'prefix*'} to stack columns"),
        ("--image COLUMN for images", "images='COLUMN' for images"),
        ("check --input: are these the columns", "check inputs: are these the columns"),
        ("--devices names others", "devices names others"),
        ("or --devices cpu", "or devices='cpu'"),
        ("--batch-size 1,024 is more than fits", "batch_size=1024 is more than fits"),
        ("--overwrite removes it", "overwrite=True removes it"),
        ("give another --output", "give another output"),
        ("--outputs leaves one out: --outputs a,b", "outputs leaves one out: outputs=['a', 'b']"),
        ("--top-k 5 --labels FILE, or --argmax", "top_k=5 labels='FILE', or argmax=True"),
        ("--rename row=NEW", "rename={'row': 'NEW'}"),
        ("--constant k=VALUE", "constants={'k': VALUE}"),
        ("--weights FILE loads others", "weights='FILE' loads others"),
        ("`penstock inspect` shows it", "`penstock.inspect` shows it"),
        ("run `penstock predict M D --output O`", "run `penstock predict M D --output O`"),
        (
            "--devices cpu; go on with: penstock resume out --engine ray",
            "devices='cpu'; go on with: penstock resume out --engine ray",
        ),
        ("pip install --upgrade onnxruntime", "pip install --upgrade onnxruntime"),
        ("no options here", "no options here"),
    ],
)
def test_options_are_keywords(shell: str, python: str) -> None:
    assert in_python(shell) == python


def test_every_part_of_an_error_is_spelled_and_its_kind_stays() -> None:
    error = InputError("--input is odd", received="--input q=…", allowed="--devices cpu", hint="--keep NAME")
    told = spelled(error)
    assert isinstance(told, InputError)
    assert (told.problem, told.received) == ("inputs is odd", "inputs={'q': …}")
    assert (told.allowed, told.hint) == ("devices='cpu'", "keep='NAME'")
    assert str(told) == "inputs is odd\nreceived: inputs={'q': …}\nallowed: devices='cpu'\nhint: keep='NAME'"


def test_reason_of_a_failed_row_is_prose() -> None:
    told = spelled(InputError("1 row failed", received="row 0: too long; --buckets can make room for it"))
    assert told.received == "row 0: too long; buckets can make room for it"


def refuse(depth: int) -> None:
    if depth:
        refuse(depth - 1)
    raise UsageError("no", received="--top-k 0")


def test_traceback_has_the_callers_lines_and_none_of_ours() -> None:
    with pytest.raises(UsageError) as caught:
        for_python(refuse)(30)
    assert caught.value.received == "top_k=0"
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_what_code_of_the_caller_raised_stays_the_cause() -> None:
    def reading() -> None:
        try:
            raise ValueError("row 7 is odd")
        except ValueError as error:
            raise InputError("the input raised an exception") from error

    with pytest.raises(InputError) as caught:
        for_python(reading)()
    assert isinstance(caught.value.__cause__, ValueError)


def test_generators_tell_it_while_they_are_iterated_over() -> None:
    def blocks() -> Iterator[int]:
        yield 1
        raise UsageError("no", hint="--limit 5")

    coming = for_python(blocks)()
    assert next(coming) == 1
    with pytest.raises(UsageError) as caught:
        next(coming)
    assert caught.value.hint == "limit=5"


def test_other_exceptions_pass_as_they_are() -> None:
    def broken() -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        for_python(broken)()
