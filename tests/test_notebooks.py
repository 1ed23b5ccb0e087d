"""The notebooks of the documentation run from top to bottom and give what they say; a kernel that is interrupted goes on."""

import ast
import importlib.util
import json
import re
import time

import pytest

for needed in ("nbclient", "ipykernel"):
    pytest.importorskip(needed, reason=f"the package {needed} is not installed")

import nbformat  # noqa: E402
from jupyter_client.manager import start_new_kernel  # noqa: E402

from tests import notebooks  # noqa: E402

NAMES = sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb"))
PATHS = re.compile(r"/(tmp|home|root|work|Users)/|[A-Z]:\\\\")


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def kinds(notebook):
    """What each code cell put out: streams by name, other outputs by their types of data. Warnings differ from machine to machine."""
    return [
        {output.get("name") or (output.output_type, *sorted(output.data)) for output in cell.outputs} - {"stderr"}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


class Run:
    """A notebook that has run, whose kernel is still there."""

    def __init__(self, client):
        self.client, self.printed = client, "".join(output.text for output in outputs_of(client.nb) if output.get("name") == "stdout")

    def value(self, expression):
        """What `expression` is in the notebook's namespace, through JSON."""
        cell = nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({expression}))")
        self.client.nb.cells.append(cell)
        return json.loads(self.client.execute_cell(cell, len(self.client.nb.cells) - 1).outputs[0].text)


@pytest.fixture
def run(request, tmp_path):
    """Runs the notebook that the test is named after; an error in a cell is an error of the test."""
    name = request.function.__name__.removeprefix("test_")
    client = notebooks.client(notebooks.read(name), tmp_path)
    with client.setup_kernel(env=notebooks.environment()):
        for number, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, number)
        assert kinds(client.nb) == kinds(notebooks.read(name))
        assert not PATHS.search(json.dumps([output for output in outputs_of(client.nb) if output.get("name") != "stderr"]))
        assert not list(tmp_path.iterdir())
        yield Run(client)


@needs("matplotlib", "sklearn")
def test_train(run):
    assert run.value("keras.config.backend()") == "ocl"
    accuracy = run.value("float(accuracy)")
    assert accuracy > 0.9 and f"{accuracy:.1%} of the test images" in run.printed
    assert run.value("float((logits.argmax(1) == y_test).mean())") == pytest.approx(accuracy)
    assert run.value("float(difference)") < 1e-5
    assert run.value("len(more.history['loss'])") == 12


@needs("matplotlib", "sklearn")
def test_kernel(run):
    assert run.value("float(accuracy)") > 0.85
    signs = "(weights[..., None] * np.sign(x[:, None] - centres))"  # of which NumPy makes the gradients here, and Keras in the notebook
    for op in ("distances", "faster"):
        for result, expected in (
            (f"{op}(x, centres)", "abs(x[:, None] - centres).sum(-1)"),
            (f"gradients({op})[0]", f"{signs}.sum(1)"),
            (f"gradients({op})[1]", f"-{signs}.sum(0)"),
        ):
            assert run.value(f"float(abs(np.asarray({result}) - {expected}).max())") < 1e-4, (op, result)
    before, after, fused = (run.value(f"' '.join(label for label, _, _ in {name}.totals())") for name in ("before", "after", "fused"))
    assert "SignsForCentres" in before and "SignsForX" not in before
    assert "FasterSignsForCentres" in after and "FasterDistances" in after
    assert "Distances" not in fused and "prototypes" in fused


@needs("keras_hub")
def test_text(run):
    text = run.value("text")
    assert run.value("history.history['accuracy'][-1]") > 0.85
    by_hand = run.value("by_hand")
    assert by_hand.startswith("Beautiful is better than ") and f"{by_hand}\n" in run.printed and "\nTrue\n" in run.printed
    others = [ast.literal_eval(made) for made in re.findall(r"^\d+\.\d+ s: (.*)$", run.printed, re.MULTILINE)]
    assert [len(made) for made in others] == [40, 36, 44, 48]
    assert sum(made in text for made in others) >= 2
    drawn = [ast.literal_eval(made) for made in re.findall(r"^temperature .*?: (.*)$", run.printed, re.MULTILINE)]
    assert len(set(drawn)) == 2 and all(len(made) == 48 and made.startswith("In the face of ") for made in drawn)
    assert run.value("full / megabytes(model)") > 3
    assert run.value("generate('Errors should', 30)") == "Errors should never pass silen"  # by weights of 8 bits


def test_every_notebook_is_run():
    assert {f"test_{name}" for name in NAMES} <= set(globals())


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebooks_show_results_and_no_paths(name):
    notebook = notebooks.read(name)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))  # stored after one run from top to bottom
    assert set(notebook.metadata) == {"kernelspec"} and not any(cell.metadata for cell in notebook.cells)
    assert not PATHS.search(json.dumps(notebook.cells))
    for output in outputs_of(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr" or re.fullmatch(r"keras_ocl runs on .*\n", output.text)


@pytest.fixture
def kernel(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3", env=notebooks.environment(), cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(client, code, seen=lambda text: None):
    """Runs a cell. Calls `seen` with what was printed so far. Returns it, and the name of the exception or None."""
    request = client.execute(code)
    text, error = "", None
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            text += content["text"]
            seen(text)
        elif message["msg_type"] == "error":
            error = content["ename"]
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return text, error


PREPARE = """
%env KERAS_BACKEND=ocl
import keras, numpy as np
keras.utils.set_random_seed(0)
x, y = np.random.normal(size=(4096, 16)).astype("float32"), np.random.randint(0, 3, 4096)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
"""


def test_interrupted_fit_goes_on(kernel):
    manager, client = kernel
    assert execute(client, PREPARE)[1] is None
    interrupted = []

    def interrupt(text):
        if "Epoch 3/" in text and not interrupted:
            interrupted.append(time.monotonic())
            manager.interrupt_kernel()

    assert execute(client, "model.fit(x, y, batch_size=16, epochs=100_000)", interrupt)[1] == "KeyboardInterrupt"
    assert time.monotonic() - interrupted[0] < 10
    assert execute(client, "undefined")[1] == "NameError"
    again = "model.fit(x, y, batch_size=16, verbose=0)\n"
    before, after = (int(execute(client, f"{code}print(int(model.optimizer.iterations))")[0]) for code in ("", again))
    assert before >= 2 * 256 and after == before + 256  # steps done stay done, and none is half done
    assert execute(client, "print(np.isfinite(model.predict(x, verbose=0)).all())")[0] == "True\n"
