"""With --json, an error is the one document on stdout, as an answer would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from penstock import api
from penstock.cli.commands import main
from penstock.errors import PenstockError


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def document_of(ran: Result) -> dict[str, Any]:
    """What is on stdout, which must be one document and nothing else."""
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["code"] == ran.exit_code
    return found


def test_error_of_ours_has_its_parts(light_models: Path, tmp_path: Path) -> None:
    model, absent = light_models / "digits.onnx", tmp_path / "nowhere"
    ran = invoke("predict", model, absent, "--output", tmp_path / "out", "--json")
    assert document_of(ran) == {
        "error": "InputError",
        "problem": "no such file or folder",
        "received": str(absent),
        "allowed": None,
        "hint": None,
        "code": 5,
    }
    assert ran.stderr.startswith("error: no such file or folder\n"), "people read it as ever"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["predict", "m.keras", "x.npy", "--colour", "--json"], "No such option"),
        (["predict", "m.keras", "x.npy", "--limit", "many", "--json"], "not a valid integer"),
        (["predict", "--json"], "Missing argument"),
        (["predict", "m.keras", "--json"], "INPUT is missing"),
        (["status", "--json", "nowhere"], "no job of penstock"),
    ],
)
def test_command_that_is_wrong_answers_with_a_document(arguments: list[str], problem: str) -> None:
    found = document_of(invoke(*arguments))
    assert problem in found["problem"]
    assert set(found) == {"error", "problem", "received", "allowed", "hint", "code"}


def test_without_json_stdout_stays_empty() -> None:
    for arguments in (["predict", "m.keras"], ["status", "nowhere"], ["resume", "--", "--json"]):
        ran = invoke(*arguments)
        assert ran.exit_code in (2, 7)
        assert ran.stdout == ""


def test_missing_output_is_told_in_the_document_of_what_would_be_done(light_models: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((10, 64), np.uint8))
    found = document_of(invoke("predict", light_models / "digits.onnx", tmp_path / "x.npy", "--json"))
    assert found["rows"] == 10
    assert (found["problem"], found["code"]) == ("nothing was written: --output is missing", 2)


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (KeyboardInterrupt(), "Interrupted", 130),
        (PenstockError("broken"), "PenstockError", 1),
        (ZeroDivisionError("x / 0"), "PenstockError", 1),
    ],
)
def test_interrupts_and_bugs_are_documents_too(
    raised: BaseException, kind: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(api, "devices", fail)
    found = document_of(invoke("devices", "--json"))
    assert (found["error"], found["code"]) == (kind, code)
