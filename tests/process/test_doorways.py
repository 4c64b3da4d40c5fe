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
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="y")])

x = np.arange(60, dtype="float32").reshape(10, 6)
answer = penstock.predict(build, x, runtime="jax", threads=1)
penstock.predict(build, x, output={output!r}, runtime="jax", threads=1, progress=False)
print("SHAPE", answer.shape)
"""


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


def test_unguarded_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE.format(output="out"), encoding="utf-8")
    assert "SHAPE (10, 3)" in run_python([str(script)], "", tmp_path)
    assert_written(tmp_path / "out")


def test_repl(tmp_path: Path) -> None:
    # A blank line ends a block at the prompt.
    typed = CODE.format(output="out").replace('name="y")])\n', 'name="y")])\n\n')
    assert "SHAPE (10, 3)" in run_python(["-i"], typed, tmp_path)
    assert_written(tmp_path / "out")


def test_standard_input(tmp_path: Path) -> None:
    assert "SHAPE (10, 3)" in run_python(["-"], CODE.format(output="out"), tmp_path)
    assert_written(tmp_path / "out")


@pytest.mark.filterwarnings("ignore")  # the notebook's own machinery warns about event loops
def test_notebook(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE.format(output="out"))])
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=ENVIRONMENT)
    assert any("SHAPE (10, 3)" in str(output) for output in notebook.cells[0].outputs)
    assert_written(tmp_path / "out")


def test_thread_other_than_the_main_one(tmp_path: Path) -> None:
    indented = "\n".join("    " + line for line in CODE.format(output="out").splitlines())
    threaded = f"import threading\ndef work():\n{indented}\nt = threading.Thread(target=work); t.start(); t.join()\n"
    assert "SHAPE (10, 3)" in run_python(["-c", threaded], "", tmp_path)
    assert_written(tmp_path / "out")
