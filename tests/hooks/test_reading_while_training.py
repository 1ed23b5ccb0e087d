"""One thread trains while others read, train and save: whoever reads a variable sees it whole, after some step."""

import threading

import keras
import numpy as np
from keras import ops

import keras_ocl
from keras_ocl.compiler.run.executable import Executable

WIDTH = 512


def run_beside(work, others, seconds=1.5):
    """`work()` again and again in a thread, the functions `others` in one each; raises what any of them raised."""
    end, failures = threading.Event(), []

    def repeat(function):
        try:
            while not end.is_set():
                function()
        except BaseException as error:
            failures.append(error)
            end.set()

    threads = [threading.Thread(target=repeat, args=(function,)) for function in (work, *others)]
    for thread in threads:
        thread.start()
    end.wait(seconds)
    end.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def counters():
    """Two variables and a step that adds 1 to every element of both."""
    a, b = (keras.Variable(np.zeros((WIDTH, WIDTH), "float32"), name=name) for name in "ab")

    @keras_ocl.jit
    def step():
        a.assign(a + 1.0)
        b.assign(b + 1.0)

    return a, b, step


def check_whole(array):
    assert (array == array.flat[0]).all(), "torn"
    return float(array.flat[0])


def test_each_variable_is_whole_and_never_goes_back():
    a, b, step = counters()
    step()
    seen = {id(a): 0.0, id(b): 0.0}

    def read():
        for variable in (a, b):
            value = check_whole(variable.numpy())
            assert value >= seen[id(variable)]
            seen[id(variable)] = value

    def compute():
        assert float(ops.max(a.value)) >= 0
        value = ops.add(a.value, 0.0)
        check_whole(ops.convert_to_numpy(value))

    run_beside(step, [read, compute])
    assert seen[id(a)] > 0


def test_a_compiled_function_sees_all_variables_after_the_same_step():
    a, b, step = counters()

    @keras_ocl.jit
    def both():
        return ops.stack([a, b])

    def read():
        check_whole(ops.convert_to_numpy(both()))

    run_beside(step, [read, read])


def test_a_value_read_during_a_step_is_not_overwritten_by_it(monkeypatch):
    a, _, step = counters()
    step()
    run, read, threads = Executable.run, [], []

    def reading(executable, *args):
        """The step is just about to run, and knows that nobody holds the variables."""
        threads.append(threading.Thread(target=lambda: read.append(a.value)))
        threads[0].start()
        threads[0].join(0.5)
        found = [check_whole(ops.convert_to_numpy(tensor)) for tensor in read]
        result = run(executable, *args)
        assert [check_whole(ops.convert_to_numpy(tensor)) for tensor in read] == found
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Executable, "run", reading)
        step()
    threads[0].join()
    step()
    assert check_whole(ops.convert_to_numpy(read[0])) == 2


def test_two_threads_that_train_lose_no_step():
    a, b, step = counters()
    done = []

    def counted():
        step()
        done.append(1)

    run_beside(counted, [counted, counted])
    assert check_whole(a.numpy()) == check_whole(b.numpy()) == len(done)


def test_a_model_that_is_read_and_saved_while_it_trains(tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.random.normal(size=(64, 8)).astype("float32"), np.ones((64, 1), "float32")
    model.fit(x, y, verbose=0)

    def read():
        assert all(np.isfinite(w).all() for w in model.get_weights())
        model.save_weights(tmp_path / "some.weights.h5")

    def predict():
        assert np.isfinite(ops.convert_to_numpy(model(x))).all()

    run_beside(lambda: model.train_on_batch(x, y), [read, predict])
