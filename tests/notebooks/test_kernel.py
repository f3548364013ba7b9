"""What readers do to a notebook: run it twice in one kernel, stop the kernel in the middle of a training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

FOLDER = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("name", ["00_start_here.ipynb", "02_geometry.ipynb"])
def test_twice_in_one_kernel(name: str) -> None:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    once = list(notebook.cells)
    notebook.cells = once + [nbformat.from_dict(cell) for cell in once]
    client = nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    texts = [printed(cell) for cell in notebook.cells]
    first, second = texts[: len(once)], texts[len(once) :]
    compared = [i for i, cell in enumerate(once) if "nbval-ignore-output" not in cell.metadata.get("tags", [])]
    assert [first[i] for i in compared] == [second[i] for i in compared]


def printed(cell: nbformat.NotebookNode) -> str:
    """The texts of a cell's outputs, in one: a stream may come in one piece or in several."""
    outputs = cell.get("outputs", [])
    return "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs)


@contextmanager
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A new kernel in the notebooks' folder."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(FOLDER))
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_run_again_and_again_does_not_pile_up_explorers() -> None:
    count = "from ipywidgets.widgets import widget; assert len(widget._instances) < 100"
    with kernel() as (_, client):
        client.execute_interactive("from mha_course import explorers", timeout=60)
        for _ in range(5):  # 47 widgets each
            message = client.session.msg("execute_request", {"code": "explorers.geometry()", "silent": False})
            message["metadata"]["cellId"] = "one"  # as JupyterLab names the cell
            client.shell_channel.send(message)
            client.get_shell_msg(timeout=30)
        assert client.execute_interactive(count, timeout=60)["content"]["status"] == "ok"


def test_an_interrupted_training_can_be_run_again() -> None:
    cells = nbformat.read(FOLDER / "01_why_attention.ipynb", as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    training = next(source for source in sources if "recall_accuracy" in source)
    with kernel() as (manager, client):
        assert client.execute_interactive(sources[0], timeout=60)["content"]["status"] == "ok"
        # Otherwise ipykernel aborts what arrives while the interrupted cell unwinds.
        request = client.execute(training, stop_on_error=False)
        moved = False
        while not moved:  # one training has ended: an interrupt in its first imports would leave them half done
            content = client.get_iopub_msg(timeout=60)["content"]
            moved = content.get("data", {}).get("state", {}).get("value") == 1
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        while reply["parent_header"].get("msg_id") != request:
            reply = client.get_shell_msg(timeout=30)
        assert reply["content"]["status"] == "error"
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        again = """
import gc, ipywidgets
bars = [item for item in gc.get_objects() if isinstance(item, ipywidgets.IntProgress)]
assert [bar.bar_style for bar in bars] == ["danger"]
assert torch.is_grad_enabled() and torch.get_num_threads() == 1
assert why_attention.recall_accuracy([10], seeds=[0], steps=2)["attention"].shape == (1, 1)
"""
        assert client.execute_interactive(again, timeout=60)["content"]["status"] == "ok"
