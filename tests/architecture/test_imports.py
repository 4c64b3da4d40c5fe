"""Who may import whom, and what is loaded when."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"tensorflow", "keras", "jax", "jaxlib", "torch", "cupy", "onnxruntime", "openvino", "ray"}
HEAVY = FRAMEWORKS | {"pandas", "sklearn", "polars", "duckdb"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh process has loaded once it ran `code`."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    ran = run("-c", f"{code}\n{report}")
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_imports_go_down_and_the_coordinator_imports_no_framework() -> None:
    ran = run("-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 broken" in ran.stdout


def test_importing_penstock_loads_no_framework_and_is_light() -> None:
    loaded = loaded_after("import penstock")
    assert "penstock" in loaded
    assert not loaded & (HEAVY | {"pyarrow", "numpy", "click", "rich"})


def test_using_the_api_loads_no_framework() -> None:
    loaded = loaded_after("import penstock\nfor name in penstock.__all__: getattr(penstock, name)")
    assert not loaded & HEAVY


def test_help_loads_no_framework_and_no_arrow() -> None:
    code = (
        "import sys\nfrom penstock.cli.commands import main\nsys.argv = ['penstock', '--help']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code"
    )
    loaded = loaded_after(code)
    assert "penstock" in loaded
    assert not loaded & (HEAVY | {"pyarrow", "numpy"})


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_command_answers_without_a_framework_installed(argument: str) -> None:
    blocked = f"import sys\nfor name in {sorted(FRAMEWORKS)!r}: sys.modules[name] = None\n"
    ran = run("-c", f"{blocked}sys.argv = ['penstock', {argument!r}]\nfrom penstock.cli.commands import main\nmain()")
    assert ran.returncode == 0, ran.stderr
    assert "penstock" in ran.stdout.lower() or ran.stdout[:1].isdigit()


def test_every_module_of_the_coordinator_loads_without_a_framework() -> None:
    package = ROOT / "src" / "penstock"
    paths = [path for path in package.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    modules = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in paths]
    assert len(modules) > 30
    assert not loaded_after("\n".join(f"import {module}" for module in modules)) & HEAVY


def test_unit_tests_load_no_framework() -> None:
    """What the fence in tests/unit/conftest.py cannot see: imports at the top of the test modules."""
    code = (
        "import sys, pytest\n"
        "status = pytest.main(['--collect-only', '-qq', '--assert=plain', '-p', 'no:cacheprovider', 'tests/unit'])\n"
        "assert status == 0, status"
    )
    assert not loaded_after(code) & FRAMEWORKS


@pytest.mark.parametrize("statement", ["import time; time.sleep(0)", "import subprocess; subprocess.run(['true'])"])
def test_fence_of_the_unit_tests_fails_a_test_that_breaks_it(tmp_path: Path, statement: str) -> None:
    fence = (ROOT / "tests" / "unit" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(fence, encoding="utf-8")
    (tmp_path / "empty.ini").touch()
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {statement}\n", encoding="utf-8")
    ran = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(tmp_path / "empty.ini"), str(tmp_path))
    assert ran.returncode == 1, ran.stdout
    assert "FenceBroken" in ran.stdout


def circles_of_imports() -> list[set[str]]:
    """Modules that import each other, also by way of others, also within functions and for type checks alone."""
    graph = grimp.build_graph("penstock", cache_dir=None)
    reached = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles: list[set[str]] = []
    for module in sorted(graph.modules):
        circle = {other for other in reached[module] if module in reached[other]} | {module}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles


def test_no_modules_import_each_other() -> None:
    assert circles_of_imports() == []
