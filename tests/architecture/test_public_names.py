"""The public surface is what `__all__` says, and nothing else."""

from __future__ import annotations

import inspect
import pickle
import typing

import pytest

import penstock
from penstock import api, errors

EXPECTED = {
    "DeviceError",
    "Evaluation",
    "InputError",
    "Interrupted",
    "ModelError",
    "OutOfMemory",
    "OutputError",
    "PenstockError",
    "RefusedByRuntime",
    "Rows",
    "Summary",
    "TooManyFailures",
    "UsageError",
    "WorkersDied",
    "__version__",
    "devices",
    "fit",
    "evaluate",
    "inspect",
    "plan",
    "predict",
    "resume",
    "retry",
    "status",
    "stream",
    "verify",
}


def test_public_names_are_exactly_those() -> None:
    assert set(penstock.__all__) == EXPECTED
    assert len(penstock.__all__) == len(EXPECTED)
    assert dir(penstock) == sorted(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(penstock, name)
    assert value is not None
    assert not inspect.ismodule(value)


@pytest.mark.parametrize("name", sorted(EXPECTED - {"__version__"}))
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(penstock, name))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'nothing'"):
        _ = penstock.nothing


def test_every_error_class_is_public() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes <= EXPECTED


def test_public_functions_are_those_of_the_api() -> None:
    for name in ("devices", "fit", "inspect", "predict", "resume", "retry", "status", "stream", "verify"):
        assert inspect.unwrap(getattr(penstock, name)) is getattr(api, name)


@pytest.mark.parametrize("name", ["predict", "stream", "plan"])
def test_annotations_of_public_functions_can_be_evaluated(name: str) -> None:
    assert typing.get_type_hints(getattr(api, name))


def test_errors_that_are_caught_by_their_public_name_are_those_that_are_raised() -> None:
    assert penstock.InputError is errors.InputError
    assert isinstance(pickle.loads(pickle.dumps(penstock.UsageError("x"))), penstock.PenstockError)
