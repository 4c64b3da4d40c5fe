"""The same call from every place that Python code is run from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest

from tests.conftest import ENVIRONMENT, read_rows

CODE = """
import numpy as np
import penstock

def build():
    import keras
    keras.utils.set_random_seed(11)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="y")])

def raised(block):
    return {{"x": block["x"] + 1}}

x = np.arange(40, dtype="float32").reshape(10, 4)
answer = penstock.predict({model!r}, {{"x": x}}, preprocess=raised, threads=1)
penstock.predict(build, x, output="out", runtime="tensorflow", threads=1, progress=False)
print("SHAPE", answer.shape, (answer == 2 * (x + 1)).all())
"""
"""Both functions travel to processes that know nothing of where they were written: loaders and replicas."""
ANSWERED = "SHAPE (10, 4) True"


@pytest.fixture
def code(light_models: Path) -> str:
    return CODE.format(model=str(light_models / "double.onnx"))


def run_python(arguments: list[str], stdin: str, cwd: Path) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], input=stdin, cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def assert_written(output: Path) -> None:
    table = read_rows(output)
    assert table.column("row").to_pylist() == list(range(10))
    assert np.isfinite(np.stack(table.column("y").to_numpy())).all()


def test_unguarded_script(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")
    assert ANSWERED in run_python([str(script)], "", tmp_path)
    assert_written(tmp_path / "out")


def test_repl(code: str, tmp_path: Path) -> None:
    # A blank line ends a block at the prompt.
    typed = code.replace('name="y")])\n', 'name="y")])\n\n').replace("+ 1}\n", "+ 1}\n\n")
    assert ANSWERED in run_python(["-i"], typed, tmp_path)
    assert_written(tmp_path / "out")


def test_standard_input(code: str, tmp_path: Path) -> None:
    assert ANSWERED in run_python(["-"], code, tmp_path)
    assert_written(tmp_path / "out")


@pytest.mark.filterwarnings("ignore")  # the notebook's own machinery warns about event loops
def test_notebook(code: str, tmp_path: Path) -> None:
    watched = code.replace("penstock.predict(build", "summary = penstock.predict(build").replace(", progress=False", "")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(watched + "summary")])
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=ENVIRONMENT)
    outputs = notebook.cells[0].outputs
    assert any(ANSWERED in str(output) for output in outputs)
    shown = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    assert any("<progress" in html and "rows" in html for html in shown)
    assert any(html.startswith("<table>") and "time of all threads" in html for html in shown)
    assert_written(tmp_path / "out")


def test_thread_other_than_the_main_one(code: str, tmp_path: Path) -> None:
    indented = "\n".join("    " + line for line in code.splitlines())
    threaded = f"import threading\ndef work():\n{indented}\nt = threading.Thread(target=work); t.start(); t.join()\n"
    assert ANSWERED in run_python(["-c", threaded], "", tmp_path)
    assert_written(tmp_path / "out")
