"""The notebooks run from their first cell to their last."""

import pathlib

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    book = nbformat.read(path, as_version=4)
    assert any(cell.cell_type == "code" for cell in book.cells)
    # Raises what a cell raises.
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()


def test_there_are_notebooks():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} >= {"reshard_a_checkpoint", "train_cut_regrow"}
