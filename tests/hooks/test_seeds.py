"""TensorFlow's seed, in processes where TensorFlow is not loaded yet."""

import pytest

from tests.plugin.process import run_python


@pytest.fixture(scope="module")
def numbers():
    """What TensorFlow by itself draws first after its seed was set: a line for each seed."""
    code = """
        import tensorflow as tf

        for seed in (4, 5):
            tf.random.set_seed(seed)
            print(tf.random.uniform((2,)).numpy(), tf.random.uniform((2,)).numpy())
    """
    return dict(zip((4, 5), run_python(code).splitlines()[-2:], strict=True))


def test_training_with_a_seed_does_not_load_tensorflow():
    code = """
        import sys
        import keras
        import numpy as np

        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 2)), np.ones(8), verbose=0)
        model.predict(np.ones((8, 2)), verbose=0)
        print("tensorflow" in sys.modules)
    """
    assert run_python(code, KERAS_BACKEND="ocl").splitlines()[-1] == "False"


def test_tensorflow_is_seeded_once_it_is_loaded(numbers):
    code = """
        import sys
        import keras

        keras.utils.set_random_seed(3)
        keras.utils.set_random_seed(4)
        import tensorflow as tf

        assert not any(type(finder).__module__ == "keras_ocl.hooks.seeds" for finder in sys.meta_path)
        assert tf.__spec__.loader.exec_module.__name__ == "exec_module"
        print(tf.random.uniform((2,)).numpy(), tf.random.uniform((2,)).numpy())
    """
    assert run_python(code, KERAS_BACKEND="ocl").splitlines()[-1] == numbers[4]


def test_loaded_tensorflow_is_seeded_at_once(numbers):
    code = """
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(5)
        print(tf.random.uniform((2,)).numpy(), tf.random.uniform((2,)).numpy())
    """
    assert run_python(code, KERAS_BACKEND="ocl").splitlines()[-1] == numbers[5]


def test_a_tensorflow_that_fails_to_load_is_seeded_when_it_does(tmp_path):
    package = tmp_path / "tensorflow"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "import builtins\n"
        "builtins.attempts = getattr(builtins, 'attempts', 0) + 1\n"
        "if builtins.attempts == 1:\n    raise ImportError('no')\n"
        "class random:\n    seeds = []\n    set_seed = seeds.append\n"
    )
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import keras

        keras.utils.set_random_seed(6)
        try:
            import tensorflow
        except ImportError:
            import tensorflow
        print(tensorflow.random.seeds)
    """
    assert run_python(code, KERAS_BACKEND="ocl").splitlines()[-1] == "[6]"
