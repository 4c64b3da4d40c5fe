"""What a graph reaches: only what runs counts, and nothing that runs is missed."""

from __future__ import annotations

import pytest

from penstock.models.scan.graph import Graph
from penstock.models.scan.op_reachability import ASSET, CHECKPOINT, Reach
from tests.unit.models import written
from tests.unit.models.written import function, function_value, node, text_value


def graph(*nodes: bytes, functions: tuple[bytes, ...] = ()) -> Reach:
    read = Graph()
    read.add(memoryview(written.graph(*nodes, functions=functions)))
    return Reach(read)


WRITE = node("write", "WriteFile", "name", "content")


def test_what_is_not_fetched_does_not_count() -> None:
    reach = graph(node("x", "Placeholder"), node("y", "Identity", "x"), WRITE)
    reach.enter_nodes(["y:0"])
    assert reach.sentences() == ()
    reach.enter_all()
    assert reach.sentences() == ("it writes files: WriteFile",)


def test_control_inputs_count() -> None:
    reach = graph(node("y", "Identity", "x", "^write"), WRITE)
    reach.enter_nodes(["y:0"])
    assert reach.sentences() == ("it writes files: WriteFile",)


def test_a_loop_in_the_graph_is_walked_once() -> None:
    reach = graph(node("a", "Merge", "b"), node("b", "NextIteration", "a", "^write"), WRITE)
    reach.enter_nodes(["a"])
    assert reach.sentences()


def test_functions_are_entered_through_any_attribute() -> None:
    body = function("inner", [], node("read", "ReadFile", "name"))
    listed = written.field(1, written.field(9, written.field(1, "inner")))
    nested = written.field(10, written.field(1, "none") + written.field(2, written.entry("g", function_value("inner"))))
    for value in (function_value("inner"), listed, nested):
        reach = graph(node("y", "While", "x", body=value), functions=(body,))
        reach.enter_nodes(["y"])
        assert reach.sentences() == ("it reads files: ReadFile",), value


def test_an_operation_named_like_a_function_calls_it() -> None:
    reach = graph(node("y", "mine", "x"), functions=(function("mine", ["x"], node("p", "PyFunc", "x")),))
    reach.enter_nodes(["y"])
    assert reach.sentences() == ("it calls Python: PyFunc",)


def test_functions_that_nobody_calls_do_not_count() -> None:
    reach = graph(node("y", "Identity", "x"), functions=(function("saver", [], node("s", "SaveV2", "a", "b", "c")),))
    reach.enter_nodes(["y"])
    assert reach.sentences() == ()


def test_a_function_that_may_be_put_in_anothers_place_counts() -> None:
    good = function("good", ["x"], node("r", "Relu", "x"), implements="lstm")
    bad = function("bad", ["x"], node("w", "WriteFile", "x", "x"), implements="lstm")
    reach = graph(functions=(good, bad))
    reach.enter_function("good")
    assert reach.sentences() == ("it writes files: WriteFile",)


def test_functions_that_call_themselves_end() -> None:
    reach = graph(functions=(function("f", ["x"], node("again", "f", "x"), node("a", "Abort")),))
    reach.enter_function("f")
    assert reach.sentences() == ("it ends or reconfigures the process: Abort",)


def test_a_table_may_be_filled_from_an_asset_only() -> None:
    fill = function("fill", ["table", "path"], node("init", "InitializeTableFromTextFileV2", "table", "path"))
    for labels, is_fine in (([ASSET], True), ([None], False), ([], False), ([ASSET, None], False)):
        reach = graph(functions=(fill,))
        reach.enter_function("fill", labels)
        assert (reach.sentences() == ()) == is_fine, labels


def test_the_path_of_an_asset_is_followed_through_calls_but_not_through_changes() -> None:
    fill = function("fill", ["table", "path"], node("init", "InitializeTableFromTextFileV2", "table", "path"))
    call = node("call", "StatefulPartitionedCall", "table", "same", f=function_value("fill"))
    for between, is_fine in (("Identity", True), ("StringJoin", False)):
        reach = graph(node("same", between, "asset"), call, functions=(fill,))
        reach.enter_nodes(["call"], {"asset:0": ASSET})
        assert (reach.sentences() == ()) == is_fine, between


def test_the_path_of_an_asset_may_be_kept_in_a_variable_that_holds_nothing_else() -> None:
    handle = node("variable", "VarHandleOp", shared_name=text_value("v"))
    assign = node("assign", "AssignVariableOp", "variable", "asset")
    read = node("read", "ReadVariableOp", "variable")
    init = node("init", "InitializeTableFromTextFileV2", "table", "read")
    alias = node("alias", "VarHandleOp", shared_name=text_value("v"))
    other = node("other", "AssignVariableOp", "alias", "evil")
    for nodes, is_fine in (((handle, assign, read, init), True), ((handle, assign, read, init, alias, other), False)):
        reach = graph(*nodes)
        reach.enter_nodes(["init"], {"asset": ASSET})
        assert (reach.sentences() == ()) == is_fine


def test_the_models_own_checkpoint_may_be_read() -> None:
    for source, is_fine in (("prefix", True), ("elsewhere", False)):
        reach = graph(node("r", "RestoreV2", source, "names", "slices"))
        reach.enter_nodes(["r"], {"prefix:0": CHECKPOINT})
        assert (reach.sentences() == ()) == is_fine


def test_printing_counts_only_into_files() -> None:
    for stream, is_fine in (("stderr", True), ("file:///etc/x", False)):
        reach = graph(node("p", "PrintV2", "x", output_stream=text_value(stream)))
        reach.enter_all()
        assert (reach.sentences() == ()) == is_fine


def test_debugging_counts_with_a_place_to_write_to() -> None:
    urls = written.field(1, text_value("file:///tmp/x") + text_value("grpc://host:1"))
    reach = graph(node("d", "DebugIdentityV3", "x", debug_urls=urls), node("e", "DebugIdentityV3", "x"))
    reach.enter_all()
    assert reach.sentences() == (
        "it writes files: DebugIdentityV3 to file:///tmp/x",
        "it talks to other processes: DebugIdentityV3 to grpc://host:1",
    )


def test_an_embedded_module_counts_if_it_calls_back() -> None:
    module = written.field(2, b"ML\xefR...\0xla_ffi_python_cpu_callback\0")
    reach = graph(node("m", "XlaCallModule", "x", module=module), node("n", "XlaCallModule", "x"))
    reach.enter_all()
    assert reach.sentences() == ("it calls Python: XlaCallModule with xla_ffi_python_cpu_callback",)


def test_of_two_names_of_an_operation_both_count() -> None:
    twice = written.field(1, "n") + written.field(2, "WriteFile") + written.field(2, "Identity")
    reach = graph(twice)
    reach.enter_all()
    assert reach.sentences() == ("it writes files: WriteFile",)


@pytest.mark.parametrize(
    ("operation", "attribute"),
    [
        ("PrintV2", "output_stream"),
        ("DebugIdentityV3", "debug_urls"),
        ("FixedUnigramCandidateSampler", "vocab_file"),
        ("DecodeProtoV2", "descriptor_source"),
        ("XlaCallModule", "module"),
    ],
)
def test_a_setting_that_the_caller_gives_counts(operation: str, attribute: str) -> None:
    open_setting = written.field(5, written.entry(attribute, written.field(9, "given")))
    body = function("inner", ["x"], node("n", operation, "x") + open_setting)
    reach = graph(node("call", "inner", "x", given=text_value("file:///etc/x")), functions=(body,))
    reach.enter_all()
    assert reach.sentences() == (f"it takes a setting from its caller: {operation} with {attribute}",)


def test_the_gradient_of_a_function_counts() -> None:
    library = written.field(1, function("f", ["x"], node("s", "Square", "x")))
    library += written.field(1, function("g", ["x", "dy"], WRITE))
    library += written.field(2, written.field(1, "f") + written.field(2, "g"))
    called = node("y", "SymbolicGradient", "x", "x", f=function_value("f"))
    read = Graph()
    read.add(memoryview(written.graph(called) + written.field(2, library)))
    reach = Reach(read)
    reach.enter_nodes(["y"])
    assert reach.sentences() == ("it writes files: WriteFile",)


def test_calls_that_permute_their_arguments_end() -> None:
    names = [f"a{place}" for place in range(24)]
    again = (
        node("rotated", "PartitionedCall", *names[1:], names[0], f=function_value("f")),
        node("forgotten", "PartitionedCall", "other", *names[1:], f=function_value("f")),
        node("init", "InitializeTableFromTextFileV2", "table", "a0"),
    )
    reach = graph(functions=(function("f", names, *again),))
    reach.enter_function("f", [ASSET] * len(names))
    assert reach.sentences() == ("it reads files: InitializeTableFromTextFileV2",)
