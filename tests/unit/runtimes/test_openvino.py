"""What OpenVINO's errors say, in one line."""

from __future__ import annotations

from penstock.runtimes.openvino import reason

_ERROR = """Exception from src/inference/src/cpp/core.cpp:84:
Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- Foo-18 with a message:
No conversion rule found for operations: ai.onnx.Foo
"""


def test_the_reason_names_the_operation_and_no_source_file() -> None:
    found = reason(RuntimeError(_ERROR))
    assert found.startswith("RuntimeError: FrontEnd API failed with OpConversionFailure:")
    assert "ai.onnx.Foo" in found
    assert ".cpp" not in found
    assert "\n" not in found


def test_an_error_without_a_word_keeps_its_class() -> None:
    assert reason(MemoryError()) == "MemoryError"
