"""Central storage: the losses of one device, where variables lie, and what is refused."""

import pytest

from keras_ocl import runtime
from tests.distribution.job import needs_mpi, run_job
from tests.distribution.test_local import TRAINING
from tests.plugin.process import run_python


def run(halves, code, **environment):
    """What the code prints; it begins with TRAINING, and `first`, `second` and `whole` name the halves and the device."""
    device = halves[0].partition("/")[0]
    names = f"""
    first, second, whole = {[*halves, device]}
    """
    return run_python(TRAINING + names + code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=device, **environment)


def test_losses_are_those_of_one_device(halves):
    code = """
    compare("mlp", [first, second], keras_ocl.CentralStorage)
    compare("cnn", [first, second], keras_ocl.CentralStorage)
    compare("transformer", [first, second], keras_ocl.CentralStorage, storage=second)
    compare("recommender", [first], keras_ocl.CentralStorage, storage=second)
    """
    assert run(halves, code).count("equal") == 4


def test_devices_of_different_kinds_and_shares():
    names = [device.name for device in runtime.devices() if device.usable]
    if len({runtime.find_device(name).platform for name in names}) < 2:
        pytest.skip("two OpenCL platforms are needed")
    code = TRAINING + f"""
    compare("cnn", {names[:2]}, keras_ocl.CentralStorage, storage={names[1]!r})
    """  # fmt: skip
    assert run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_SHARES="1,3").count("equal") == 1


def test_variables_lie_on_the_storage_device(halves):
    """Elsewhere is a copy of the weights (4 MB) while a step runs, and their gradient in the arena, but nothing of the optimizer's."""
    code = """
    set_distribution(keras_ocl.CentralStorage(devices=[first, second], storage=second))
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000), keras.layers.Dense(1)])  # 4 MB
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(8, 1000)).astype("float32")
    variables = lambda: [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    for _ in range(3):
        model.train_on_batch(x, x[:, :1])
    assert {v.value.storage.device.name for v in variables()} == {second}
    once = {name: keras_ocl.memory_info(name) for name in (first, second, whole)}
    assert once[second]["current"] >= 12e6 and once[second]["peak"] >= 12e6
    assert once[first]["current"] < 6e6 and 4e6 <= once[first]["peak"] < 11e6
    assert once[whole]["current"] < 1e6  # where they were made
    model.layers[0].trainable = False  # weights that no step changes
    model.compile("sgd", "mse")
    for distribution in (keras_ocl.CentralStorage(devices=[first, second]), DataParallel(devices=[first, second])):
        set_distribution(distribution)
        model.train_on_batch(x, x[:, :1])
    set_distribution(keras_ocl.CentralStorage(devices=[first, second], storage=first))
    model.train_on_batch(x, x[:, :1])
    model.predict(x[:1], verbose=0)
    assert {v.value.storage.device.name for v in variables()} == {first}
    assert not any(type(v._owned).__name__ == "Mirrored" for v in variables())  # which keeps the copies elsewhere
    print("there")
    """
    assert "there" in run(halves, code)


def test_weights_travel_when_they_have_changed(halves):
    """Not in each step of `evaluate` and `predict`, nor in training where they are frozen; any way of changing them is noticed."""
    code = """
    from keras_ocl import runtime
    set_distribution(keras_ocl.CentralStorage(devices=[first, second]))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(1000, name="wide"), keras.layers.Dense(1)])  # 400 kB
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.random.default_rng(0).normal(size=(48, 100)).astype("float32")
    kernel, other = model.layers[0].kernel, runtime.find_device(second)
    halve = keras_ocl.jit(lambda: kernel.assign(kernel * 0.5))  # in place

    def sent(run):
        "How many times a copy of the large kernel went to the device without variables."
        before = other.statistics.upload_bytes
        run()
        return (other.statistics.upload_bytes - before) // 400_000

    def predict():
        found = model.predict(x, batch_size=8, verbose=0)
        w = [np.array(v, "float64") for v in model.weights]
        np.testing.assert_allclose(found, (x @ w[0] + w[1]) @ w[2] + w[3], rtol=1e-3, atol=1e-4)

    evaluate = lambda: model.evaluate(x, x[:, :1], batch_size=8, verbose=0)
    train = lambda: model.fit(x, x[:, :1], batch_size=8, verbose=0)
    counts = [sent(train), sent(evaluate), sent(predict), sent(evaluate)]
    assert counts == [6, 1, 0, 0], counts
    for change in (halve, lambda: kernel.assign(kernel + 0.1), lambda: model.set_weights([w * 0.9 for w in model.get_weights()])):
        change()
        counts = [sent(predict), sent(predict)]
        assert counts == [1, 0], counts
    train()
    predict()
    storage = kernel._owned.storage
    train()
    assert kernel._owned.storage is storage  # which is still overwritten in place
    assert sent(lambda: model.fit(x, x[:, :1], batch_size=8, verbose=0, validation_data=(x, x[:, :1]), epochs=2)) == 13
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    counts = [sent(train), sent(train)]
    assert counts[1] == 0 and counts[0] <= 1, counts
    predict()
    print("counted")
    """
    assert "counted" in run(halves, code)


def test_from_one_distribution_to_another(halves):
    code = """
    def losses(*distributions):
        model, x, y, _ = make("cnn")
        model.compile("adam", "sparse_categorical_crossentropy")
        found = []
        for distribution in distributions:
            set_distribution(distribution)
            found += [model.train_on_batch(x[:rows], y[:rows]) for rows in (37, 1, 20)]
        set_distribution(None)
        return found

    central, mirrored = keras_ocl.CentralStorage(devices=[first, second]), DataParallel(devices=[first, second])
    np.testing.assert_allclose(losses(central, mirrored, central, None, central), losses(*[None] * 5), rtol=1e-4)
    with keras_ocl.checks():
        np.testing.assert_allclose(losses(central, central), losses(None, None), rtol=1e-4)
    print("equal")
    """
    assert "equal" in run(halves, code)


def test_a_failed_step_changes_nothing(halves):
    """Whether the device that has the variables fails or another, before they have met."""
    code = """
    from keras_ocl.distribution import local
    set_distribution(keras_ocl.CentralStorage(devices=[first, second]))
    model, x, y, _ = make("cnn")
    model.compile("adam", "sparse_categorical_crossentropy")
    model.train_on_batch(x, y)
    meet = local.Team.meet
    for failing in (0, 1):
        before = [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
        def fails(team, place, value, combine):
            if place == failing:
                raise MemoryError(f"device {failing} fails")
            return meet(team, place, value, combine)
        local.Team.meet = fails
        try:
            model.train_on_batch(x, y)
        except MemoryError as error:
            print(error)
        local.Team.meet = meet
        after = [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert np.isfinite(model.train_on_batch(x, y))
    """
    assert run(halves, code).splitlines() == ["device 0 fails", "device 1 fails"]


def test_one_device_is_as_no_distribution(halves):
    code = """
    compare("mlp", [first], keras_ocl.CentralStorage)
    compare("mlp", None, keras_ocl.CentralStorage)
    """
    assert run(halves, code).count("equal") == 2


def test_what_does_not_fit(halves):
    code = """
    for arguments in ([first, first], ["gpu:77"], [], first), ([first], "gpu:78"):
        for devices in arguments if arguments[-1] != "gpu:78" else [arguments]:
            try:
                keras_ocl.CentralStorage(*devices) if type(devices) is tuple else keras_ocl.CentralStorage(devices)
            except ValueError as error:
                print(error)
    """
    twice, missing, nothing, text, storage = run(halves, code).splitlines()
    assert "CentralStorage names a device twice" in twice and halves[0] in twice
    assert "CentralStorage cannot use the device 'gpu:77'" in missing
    assert "devices=[]: give a list of names" in nothing and f"devices={halves[0]!r}: give a list" in text
    assert "CentralStorage cannot use the device 'gpu:78'" in storage


@needs_mpi
def test_several_ranks_are_refused(halves):
    code = TRAINING + f"""
    try:
        keras_ocl.CentralStorage(devices={halves})
    except NotImplementedError as error:
        print(error)
    """  # fmt: skip
    found = run_job(code, 2, KERAS_OCL_DEVICE=halves[0].partition("/")[0])
    assert found.count("but 2 processes compute together: use keras.distribution.DataParallel") == 2, found
