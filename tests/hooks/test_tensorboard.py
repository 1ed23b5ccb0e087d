"""keras.callbacks.TensorBoard, and the traces that it asks for."""

import gzip
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_ocl import runtime
from keras_ocl.hooks import tensorboard
from tests.hooks.regression import make_data, make_model
from tests.plugin.process import run_python


def read_trace(folder):
    """The processes' names by number, and the complete events, of the only trace in `folder`."""
    (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return names, [e for e in events if e["ph"] == "X"]


def test_a_trace_has_every_launch_and_what_the_host_did(tmp_path):
    device = runtime.current_device()
    queue = device.queue
    model = make_model()
    x, y = make_data(10)
    matrix = ops.eye(3) * 4
    model.train_on_batch(x, y)
    tensorboard.start_trace("")  # Keras's warm-up
    tensorboard.stop_trace(save=False)
    tensorboard.start_trace(str(tmp_path))
    before = device.statistics.launches
    for batch in range(2):
        span = tensorboard.start_batch_trace(batch)
        model.train_on_batch(x, y)
        np.testing.assert_allclose(ops.linalg.cholesky(matrix), np.eye(3) * 2)
        tensorboard.stop_batch_trace(span)
    launches = device.statistics.launches - before
    tensorboard.stop_trace(save=True)
    assert device.queue is queue and device.profiler is None
    model.train_on_batch(x, y)  # not in the trace

    names, events = read_trace(tmp_path)
    (host,) = (pid for pid, name in names.items() if name == "host")
    (ours,) = (pid for pid, name in names.items() if name == str(device))
    kernels = [e for e in events if e["pid"] == ours]
    spans = [e for e in events if e["pid"] == host]
    assert len(kernels) == launches > 0
    assert all(e["dur"] >= 0 for e in events) and any(e["dur"] > 0 for e in kernels)
    begins = [e["ts"] for e in kernels]
    assert begins == sorted(begins)
    assert [e["name"] for e in spans if e["name"].startswith("batch")] == ["batch 0", "batch 1"]
    assert {"cholesky", "read back"} <= {e["name"] for e in spans}
    first = next(e for e in spans if e["name"] == "batch 0")
    assert all(e["ts"] >= first["ts"] for e in kernels), "both clocks are one"
    assert max(begins) < max(e["ts"] + e["dur"] for e in spans) + 5e6


def test_a_trace_that_is_not_saved_and_a_second_one(tmp_path):
    tensorboard.start_trace(str(tmp_path / "first"))
    with pytest.raises(RuntimeError, match="first is being recorded already"):
        tensorboard.start_trace(str(tmp_path / "second"))
    tensorboard.stop_trace(save=False)
    tensorboard.stop_trace(save=True)  # nothing runs any more
    assert runtime.current_device().profiler is None
    assert list(tmp_path.iterdir()) == []


def test_a_trace_ends_with_the_fit_that_fails(tmp_path):
    pytest.importorskip("tensorboard")  # what a fit that succeeds writes needs it

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("on purpose")

    model, (x, y) = make_model(), make_data(20)
    traced = keras.callbacks.TensorBoard(tmp_path, profile_batch=(1, 4))
    with pytest.raises(KeyError, match="on purpose"):
        model.fit(x, y, batch_size=5, verbose=0, callbacks=[Fails(), traced])
    assert runtime.current_device().profiler is None
    tensorboard.start_trace(str(tmp_path))  # of one's own: it goes on
    with pytest.raises(KeyError, match="on purpose"):
        model.fit(x, y, batch_size=5, verbose=0, callbacks=[Fails()])
    assert runtime.current_device().profiler is not None
    tensorboard.stop_trace(save=False)
    again = keras.callbacks.TensorBoard(tmp_path / "again", profile_batch=(1, 2))
    model.fit(x, y, batch_size=5, verbose=0, callbacks=[again])
    assert list((tmp_path / "again").glob("train/plugins/profile/*/*.trace.json.gz"))


def test_the_callback(tmp_path):
    """Scalars, histograms, images, the model's graph, embeddings and a trace; summaries are TensorFlow's."""
    pytest.importorskip("tensorboard")
    output = run_python(
        """
        import json, sys
        import keras
        import numpy as np

        folder = sys.argv[1]
        table, out = keras.layers.Embedding(8, 3, name="table"), keras.layers.Dense(1, name="out")
        model = keras.Sequential([keras.layers.Input((4,)), table, keras.layers.Flatten(), out], name="net")
        model.compile("sgd", "mse")
        x = np.arange(80).reshape(20, 4) % 8
        callback = keras.callbacks.TensorBoard(
            folder, histogram_freq=1, write_images=True, write_steps_per_second=True, update_freq=1, profile_batch=(2, 3),
            embeddings_freq=1, embeddings_metadata={"table": "names.tsv"},
        )
        model.fit(x, np.ones((20, 1)), batch_size=5, epochs=2, validation_split=0.25, callbacks=[callback], verbose=0)

        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        found = {}
        for part in ("train", "validation"):
            events = EventAccumulator(f"{folder}/{part}").Reload()
            found[part] = {tag.removeprefix("net/"): len(events.Tensors(tag)) for tag in events.Tags()["tensors"]}
        print(json.dumps(found))
        """.replace("sys.argv[1]", repr(str(tmp_path))),
        KERAS_BACKEND="ocl",
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    found = json.loads(output.splitlines()[-1])
    train = found["train"]
    assert train["epoch_loss"] == train["epoch_learning_rate"] == train["epoch_steps_per_second"] == 2
    assert train["table/embeddings/histogram"] == train["out/kernel/image"] == train["out/bias/histogram"] == 2
    assert train["keras"] == 1 and train["batch_loss"] == 6
    assert found["validation"]["epoch_loss"] == 2 and "evaluation_loss_vs_iterations" in found["validation"]
    projector = (tmp_path / "projector_config.pbtxt").read_text()
    assert "names.tsv" in projector
    assert len(list((tmp_path / "train").glob("keras_embedding.ckpt-*.weights.h5"))) == 2
    names, events = read_trace(tmp_path / "train")
    assert len([e for e in events if e["name"].startswith("batch ")]) == 2
    assert {names[e["pid"]] == "host" for e in events} == {True, False}
