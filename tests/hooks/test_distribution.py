"""The distribution hook in one process."""

from tests.plugin.process import run_python


def test_devices_are_listed():
    output = run_python(
        """
        import keras
        names = keras.distribution.list_devices()
        kind = names[0].partition(":")[0]
        print(keras.distribution.get_device_count() == len(names) >= 1)
        every = keras.distribution.list_devices(kind)
        print(set(names) <= set(every), every[0] == f"{kind}:0", keras.distribution.list_devices("tpu"))
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines() == ["True", "True True []"]


def test_a_mesh_of_one_device_changes_nothing():
    output = run_python(
        """
        import keras
        import numpy as np
        from keras.distribution import DataParallel, DeviceMesh, TensorLayout, distribute_tensor, list_devices
        device = list_devices()[:1]
        x = keras.ops.arange(4.0)
        layout = TensorLayout(["batch"], DeviceMesh((1,), ["batch"], device))
        print(np.array(distribute_tensor(x, layout)))
        keras.distribution.initialize()
        with DataParallel(devices=device).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        print(model.predict(np.ones((4, 3)), verbose=0).shape)
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines() == ["[0. 1. 2. 3.]", "(4, 1)"]


def test_devices_and_processes_that_are_not_there_are_refused():
    output = run_python(
        """
        import keras
        from keras.distribution import DeviceMesh, TensorLayout, distribute_tensor, initialize
        layout = TensorLayout(["batch"], DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:77"]))
        for attempt in [lambda: distribute_tensor(keras.ops.ones(2), layout), lambda: initialize("10.0.0.1:1,10.0.0.2:1", 2, 0)]:
            try:
                attempt()
            except (ValueError, RuntimeError) as error:
                print(error)
        """,
        KERAS_BACKEND="ocl",
    )
    first, second = output.splitlines()
    assert "2 devices for each process" in first and "cpu:77" in first and "mpiexec -n 2" in first
    assert "mpiexec" in second
