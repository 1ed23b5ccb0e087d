"""keras.RematScope, which changes nothing but says so."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_ocl.hooks import layer


def losses(scope):
    keras.utils.set_random_seed(0)
    with scope:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "gelu"), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model.fit(np.ones((8, 4), "float32"), np.ones((8, 1)), epochs=2, verbose=0).history["loss"]


def test_a_warning_says_once_that_it_saves_nothing(recwarn):
    layer._warn_of_remat.cache_clear()
    plain = losses(keras.RematScope(mode=None))
    assert not [w for w in recwarn if "RematScope" in str(w.message)]
    with pytest.warns(UserWarning, match="keras.RematScope saves no memory with the ocl backend.*gradient_accumulation_steps"):
        found = losses(keras.RematScope(mode="full"))
    np.testing.assert_allclose(found, plain, rtol=1e-6)
    recwarn.clear()
    layers.Dense(2)
    with keras.RematScope(mode="list_of_layers", layer_names=["dense"]):
        layers.Dense(2)
    assert not recwarn
