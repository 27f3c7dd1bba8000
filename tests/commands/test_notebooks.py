"""The notebooks, top to bottom, on a small random model in place of the packaged one."""

from pathlib import Path

import pytest

from tests.support.command_line import surroundings, workplace

__all__ = ["workplace"]  # a fixture

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(file.stem for file in FOLDER.glob("*.ipynb"))
LOCAL = '["model=local", "model.path=llama"]'
INSTEAD = {
    "attention_statistics": f"""
MODEL = {LOCAL}
TEXTS = ["task=text", "task.path=text.txt", "task.window=64", "task.tokens=200"]
""",
    "comparing_policies": f"""
MODEL = {LOCAL}
QUESTIONS = ["task=piqa", "data=folder", "data.dir=data", "task.limit=5", "task.num_fewshot=1"]
""",
    "writing_a_policy": 'MODEL = ModelConfig(name="llama", source="local", path="llama")',
}
"""What a test puts behind the cell that is tagged `parameters`."""
PICTURES = {"attention_statistics": 4, "comparing_policies": 1, "writing_a_policy": 2}


def test_there_are_three_to_start_from():
    assert set(NAMES) == set(INSTEAD)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(workplace, monkeypatch, name):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (workplace / "text.txt").write_text("The keeper lit the lamp, and sat by the window until dark. " * 20)
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    (place,) = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(INSTEAD[name]))
    for key, value in surroundings(workplace).items():
        monkeypatch.setenv(key, value)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": workplace}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES[name]
    shown = "".join(str(output.get("text", "")) for output in outputs)
    assert "without a result" not in shown or "0 without a result" in shown
