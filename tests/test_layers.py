"""The house keeps its borders: imports point down, no cycles, small rooms, two halves that load without each other."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from lib import paths

FLOOR = [
    "errors", "paths", "whole", "depths", "loads", "launches", "explain", "config", "records", "metrics", "stats",
    "progress", "glance",
]  # fmt: skip
# What each wing may import, besides the floor and itself.
WINGS = {
    "engines": {"environments"},
    "measure": {"engines", "environments"},
    "analyse": set(),
    "show": {"analyse"},
    "publish": {"show", "analyse", "environments"},
}
MEASURING_MUST_NOT_LOAD = {"pandas", "seaborn", "matplotlib"}
READING_MUST_NOT_LOAD = {
    "torch",
    "vllm",
    "xllamacpp",
    "httptools",
    "uvloop",
    "httpx",
    "aiohttp",
    "requests",
    "lib.engines",
    "lib.measure",
}
LINES = 320

MODULES = sorted(p for p in (paths.ROOT / "lib").rglob("*.py"))


def name(path: Path) -> str:
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts).removesuffix(".__init__")


KNOWN = {name(p) for p in MODULES}


@cache
def imports(path: Path) -> set[str]:
    """Modules of lib that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {m if m in KNOWN else m.rpartition(".")[0] for m in found if m.split(".")[0] == "lib"} & KNOWN


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_point_down(path):
    module = name(path).split(".")
    for imported in imports(path):
        part = imported.split(".")
        if len(part) < 2:
            continue
        if len(module) == 2 and module[1] in FLOOR:
            assert part[1] in FLOOR and FLOOR.index(part[1]) < FLOOR.index(module[1]), (
                f"{name(path)} imports {imported}"
            )
        elif len(module) > 2:
            assert part[1] in FLOOR or part[1] == module[1] or part[1] in WINGS[module[1]], (
                f"{name(path)} imports {imported}"
            )


def test_no_cycles():
    graph = {name(p): imports(p) - {name(p)} for p in MODULES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_rooms_stay_small_and_explain_themselves(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LINES
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module opens with what it is for"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_deferred_imports(path):
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not inside, f"{name(path)} imports inside a function at line {inside[0].lineno}"


def loaded_by(wings: list[str]) -> set[str]:
    """Everything in sys.modules after importing all modules of the floor and the wings in a fresh interpreter."""
    recipes = paths.ROOT / "lib" / "engines" / "recipes"  # run by other environments' interpreters
    modules = [
        name(p)
        for p in MODULES
        if recipes not in p.parents
        and name(p).split(".")[1:2]
        and (name(p).split(".")[1] in wings or name(p).split(".")[1] in FLOOR)
    ]
    code = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_measuring_half_loads_without_the_reading_halfs_libraries():
    assert not loaded_by(["measure", "engines"]) & MEASURING_MUST_NOT_LOAD


def test_reading_half_loads_without_the_measuring_halfs_libraries():
    assert not loaded_by(["analyse", "show"]) & READING_MUST_NOT_LOAD


def test_the_load_client_starts_without_the_libraries_of_records():
    code = "import sys, lib.measure.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "pyarrow", "pydantic"} & set(done.stdout.split())


def test_reading_half_reads_no_clock():
    for path in MODULES:
        if name(path).split(".")[1:2] and name(path).split(".")[1] in ("analyse", "show"):
            tree = ast.parse(path.read_text())
            used = {n.names[0].name for n in ast.walk(tree) if isinstance(n, ast.Import)}
            assert not used & {"time", "datetime"}, f"{name(path)} imports a clock"


def test_git_sees_lib():
    ignored = subprocess.run(["git", "check-ignore", "-q", "lib/errors.py"], cwd=paths.ROOT, check=False)
    assert ignored.returncode == 1
