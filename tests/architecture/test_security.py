"""What `SECURITY.md` promises of the code as a whole: where pickles are read, and that nothing listens."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from .test_sources_of_truth import FILES, SOURCE, imported

UNPICKLED = {
    "core/preprocessing.py": "the user's own function, from the process that was given it",
    "estimator/elements.py": "rows that the user's own input_fn made, from memory of the coordinator",
    "estimator/opening.py": "the user's own model function, from the coordinator",
    "pool/processes/channel.py": "messages between a process and the child that it started, over a socket pair",
    "pool/transfer/parcels.py": "columns from a child; what describes them came over that socket pair",
    "runtimes/keras/loading.py": "the user's own function that builds a model, from the coordinator",
    "runtimes/tensorflow/session.py": "the user's own estimator, from the coordinator",
}
"""Every file that unpickles, and why that comes from nobody else. Nothing comes from a disk or a network."""

READS_PICKLES = {
    ("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("cloudpickle", "load"), ("cloudpickle", "loads"),
    ("marshal", "load"), ("marshal", "loads"), ("shelve", "open"), ("dill", "loads"), ("joblib", "load"),
    ("torch", "load"),
}  # fmt: skip
RUNS_TEXT = {"eval", "exec", "compile", "execfile"}
SERVERS = {"http.server", "socketserver", "xmlrpc.server", "multiprocessing.managers", "asyncio", "wsgiref"}


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """The calls in a file: what they are called on, as far as that is a name, and by which name."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                yield "", called.id, node
            elif isinstance(called, ast.Attribute):
                yield called.value.id if isinstance(called.value, ast.Name) else "", called.attr, node


def where(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_pickles_are_read_only_where_they_come_from_this_run() -> None:
    found = {where(path) for path in FILES for owner, name, _ in calls(path) if (owner, name) in READS_PICKLES}
    assert found == set(UNPICKLED)


def test_pickles_are_read_by_these_names_only() -> None:
    """So that the test before this one sees them."""
    hidden = [
        where(path)
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.module in {name for name, _ in READS_PICKLES}
        if node.module != "torch"
    ]
    assert hidden == []


def test_numpy_never_unpickles() -> None:
    asked = [
        (where(path), name)
        for path in FILES
        for owner, name, call in calls(path)
        if (owner, name) in {("np", "load"), ("numpy", "load")}
        or any(word.arg == "allow_pickle" for word in call.keywords)
        if not any(isinstance(word.value, ast.Constant) and word.value.value is False for word in call.keywords)
    ]
    assert asked == []


def test_nothing_listens() -> None:
    servers = [where(path) for path in FILES for node in ast.walk(parsed(path)) if set(imported(node)) & SERVERS]
    listening = [
        (where(path), name)
        for path in FILES
        for owner, name, _ in calls(path)
        if name in ("listen", "create_server", "Listener", "start_server") or (owner, name) == ("socket", "socket")
    ]
    assert (servers, listening) == ([], [])


def test_no_text_is_run_as_a_program_or_by_a_shell() -> None:
    run = [
        (where(path), name)
        for path in FILES
        for owner, name, call in calls(path)
        if (not owner and name in RUNS_TEXT and not isinstance(call.func, ast.Attribute))
        or (owner, name) in {("os", "system"), ("os", "popen")}
        or (owner == "subprocess" and any(word.arg == "shell" for word in call.keywords))
    ]
    assert run == []


def test_temporary_files_have_names_that_nobody_can_guess() -> None:
    asked = [(where(path), name) for path in FILES for owner, name, _ in calls(path) if owner == "tempfile"]
    guessable = [path for path, name in asked if name == "mktemp"]
    shared = [path for path, name in asked if name == "gettempdir"]
    # The leases of devices lie in a folder that must be the user's alone; old scratch folders are looked for by name.
    assert (guessable, sorted(shared)) == ([], ["pool/devices/lease.py", "storage/scratch.py"])


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
