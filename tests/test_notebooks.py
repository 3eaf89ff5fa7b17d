"""Notebooks stay thin: one parameters cell of literals, short cells, no definitions, nothing executed in git."""

import ast
import json

import pytest

from lib import paths

NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
LONGEST = 15
PARAMETERS = {"profile", "depth", "launch"}
OF_PHYSICS = {"sla_ttft_ms", "sla_itl_ms", "sla_percentile", "sla_sessions"}    # notebook 03 reads data/ alone
PROSE_PER_CODE_LINE = 8                                 # words


def cells(path, kind):
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def code_lines(cell):
    return [line for line in source(cell).splitlines() if line.strip()]


def test_there_are_notebooks():
    assert [p.stem[:2] for p in NOTEBOOKS][:3] == ["00", "01", "02"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
class TestRules:
    def test_nothing_executed(self, path):
        for cell in cells(path, "code"):
            assert cell["outputs"] == [] and cell["execution_count"] is None

    def test_one_parameters_cell_of_literals(self, path):
        tagged = [c for c in cells(path, "code") if "parameters" in c["metadata"].get("tags", [])]
        assert len(tagged) == 1
        known = OF_PHYSICS if path.stem == "03_physics_and_prediction" else PARAMETERS
        for cell in tagged:
            for node in ast.parse(source(cell)).body:
                assert isinstance(node, ast.Assign)
                ast.literal_eval(node.value)
                assert node.targets[0].id in known

    def test_short_cells_without_definitions(self, path):
        lengths = sorted(len(code_lines(c)) for c in cells(path, "code"))
        assert lengths[-1] <= LONGEST and lengths[len(lengths) // 2] <= 3
        for cell in cells(path, "code"):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.For | ast.While
            assert not any(isinstance(n, kinds) for n in ast.walk(ast.parse(source(cell))))

    def test_prose_leads(self, path):
        words = sum(len(source(c).split()) for c in cells(path, "markdown"))
        assert words >= PROSE_PER_CODE_LINE * sum(len(code_lines(c)) for c in cells(path, "code"))

    def test_first_cell_names_it_and_last_points_on(self, path):
        first, last = json.loads(path.read_text())["cells"][0], json.loads(path.read_text())["cells"][-1]
        assert first["cell_type"] == "markdown" and source(first).startswith("# ")
        assert last["cell_type"] == "markdown" and "Next:" in source(last)
