"""KerasHub's generated text and images: the tokens and pixels that TensorFlow makes, from compiled functions."""

import importlib.util
import json
from functools import cache

import numpy as np
import pytest

from tests.plugin.process import run_python

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("keras_hub", "tensorflow")), reason="keras-hub or TensorFlow is not installed"
)

GENERATE = """
    import json
    import keras, keras_hub
    import numpy as np

    VOCABULARY = 97
    rng = np.random.default_rng(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY, num_layers=2, num_heads=2, hidden_dim=32, intermediate_dim=64, max_sequence_length=40
    )
    for v in backbone.weights:
        v.assign(rng.normal(size=v.shape) * (0.5 if "embedding" in v.path else 0.2))
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    batch = rng.integers(1, VOCABULARY, (3, 24))
    lengths = np.array([[3], [7], [5]])

    def tokens(sampler, rows=3, length=24, stop=None):
        model.compile(sampler=sampler)
        mask = np.arange(length) < lengths[:rows]
        prompt = {"token_ids": np.where(mask, batch[:rows, :length], 0), "padding_mask": mask}
        return np.asarray(model.generate(prompt, stop_token_ids=stop)["token_ids"]).tolist()

    greedy = tokens("greedy")
    made = {
        "greedy": greedy,
        "one prompt": tokens("greedy", rows=1),
        "another length": tokens("greedy", length=17),
        "stopped": tokens("greedy", stop=[greedy[0][9], greedy[1][12], greedy[2][15]]),
        "beam": tokens(keras_hub.samplers.BeamSampler(num_beams=3)),
        "contrastive": tokens(keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.3)),
        "top_k of one": tokens(keras_hub.samplers.TopKSampler(k=1)),
    }
    if keras.config.backend() == "ocl":
        seeded = [tokens(keras_hub.samplers.TopPSampler(p=0.9, k=20, seed=4)) for _ in range(2)]
        again = tokens(keras_hub.samplers.TopKSampler(k=20, seed=5))
        made["seeded"] = seeded + [again]
        from keras_ocl import runtime
        statistics = runtime.current_device().statistics
        model.compile(sampler="greedy")
        prompt = {"token_ids": batch[:1], "padding_mask": np.arange(24)[None] < 3}
        model.generate(prompt, stop_token_ids=None)
        before = statistics.builds, statistics.downloads
        model.generate(prompt, stop_token_ids=None)
        made["second call"] = [statistics.builds - before[0], statistics.downloads - before[1]]
        import keras_ocl
        made["streamed"] = []
        class Streamed(keras_hub.samplers.GreedySampler):
            def get_next_token(self, probabilities):
                return keras_ocl.callback(lambda tokens: made["streamed"].append(int(tokens[0])), super().get_next_token(probabilities))
        model.compile(sampler=Streamed())
        model.generate(prompt, stop_token_ids=None)
        model.compile(sampler="greedy", run_eagerly=True)
        made["eager"] = np.asarray(model.generate(prompt, stop_token_ids=None)["token_ids"]).tolist()
    print(json.dumps(made))
"""

FAMILIES = """
    import json
    import keras_hub.models as hub
    import numpy as np

    def tokens(task, kind, more=None, **sizes):
        backbone, rng = kind(vocabulary_size=90, num_layers=2, hidden_dim=32, intermediate_dim=64, **sizes), np.random.default_rng(0)
        for v in backbone.weights:
            v.assign(rng.normal(size=v.shape) * 0.2 + (len(v.shape) == 1 and ("scale" in v.path or "gamma" in v.path)))
        model = task(backbone, preprocessor=None)
        model.compile(sampler="greedy")
        made = model.generate(prompt if more is None else more, stop_token_ids=None)
        return np.asarray(made["token_ids" if more is None else "decoder_token_ids"]).tolist()

    mask = np.arange(20) < np.array([[5], [8]])
    ids = np.where(mask, np.random.default_rng(1).integers(1, 90, (2, 20)), 0)
    prompt = {"token_ids": ids, "padding_mask": mask}
    pair = {"encoder_token_ids": ids[:, :5], "encoder_padding_mask": mask[:, :5], "decoder_token_ids": ids, "decoder_padding_mask": mask}
    grouped = {"num_query_heads": 4, "num_key_value_heads": 2}
    made = {
        "llama": tokens(hub.LlamaCausalLM, hub.LlamaBackbone, **grouped),
        "gemma": tokens(hub.GemmaCausalLM, hub.GemmaBackbone, head_dim=8, **grouped),
        "mistral": tokens(hub.MistralCausalLM, hub.MistralBackbone, sliding_window=6, **grouped),
        "bart": tokens(hub.BartSeq2SeqLM, hub.BartBackbone, pair, num_heads=2, max_sequence_length=40),
    }
    print(json.dumps(made))
"""

DENOISE = """
    import json
    import keras, keras_hub
    import numpy as np
    from keras_hub.models import CLIPTextEncoder, StableDiffusion3Backbone, StableDiffusion3TextToImage
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    rng = np.random.default_rng(0)
    vae = VAEBackbone([32] * 4, [1] * 4, [32] * 4, [1] * 4, sampler_method="mode", name="vae")
    clip_l, clip_g = (CLIPTextEncoder(20, n, n, 2, 2, 2 * n, "quick_gelu", -2, name=f"clip_{name}") for name, n in (("l", 32), ("g", 64)))
    backbone = StableDiffusion3Backbone(
        mmdit_patch_size=2, mmdit_hidden_dim=32, mmdit_num_layers=2, mmdit_num_heads=2, mmdit_position_size=192, mmdit_qk_norm=None,
        mmdit_dual_attention_indices=None, vae=vae, clip_l=clip_l, clip_g=clip_g, image_shape=(32, 32, 3)
    )
    for v in backbone.weights:
        v.assign(rng.normal(size=v.shape) * 0.15 + ("gamma" in v.path or "scale" in v.path))
    task = StableDiffusion3TextToImage(backbone, None)
    tokens = tuple({name: rng.integers(1, 19, (2, 5)).astype("int32") for name in ("clip_l", "clip_g")} for _ in range(2))
    latents = keras.ops.convert_to_tensor(rng.normal(size=(2, 4, 4, 16)), "float32")
    made = []
    for steps in (4, 6):
        backbone.configure_scheduler(steps)
        task.compile()
        numbers = keras.ops.convert_to_tensor(steps, "int32"), keras.ops.convert_to_tensor(4.0)
        images = task.make_generate_function()(latents, tokens, *numbers)
        made.append(keras.ops.convert_to_numpy(images).tolist())
    print(json.dumps(made))
"""


@cache
def made(backend, program=GENERATE):
    return json.loads(run_python(program, timeout=600, KERAS_BACKEND=backend).splitlines()[-1])


@pytest.mark.parametrize("how", ["greedy", "one prompt", "another length", "stopped", "beam", "contrastive", "top_k of one"])
def test_tokens_are_those_of_tensorflow(how):
    assert made("ocl")[how] == made("tensorflow")[how]


def test_a_stop_token_ends_a_text():
    assert made("ocl")["stopped"] != made("ocl")["greedy"]


def test_samples_depend_on_the_seed():
    first, same, other = made("ocl")["seeded"]
    assert first == same and first != other


def test_the_second_text_builds_nothing_and_seldom_waits():
    """21 tokens in three batches of steps, the condition before them, and the two results."""
    assert made("ocl")["second call"] == [0, 6]


def test_a_callback_sees_the_tokens_as_they_are_made():
    assert made("ocl")["streamed"] == made("ocl")["one prompt"][0][3:]


def test_eager_tokens_are_the_same():
    assert made("ocl")["eager"] == made("ocl")["one prompt"]


@pytest.mark.parametrize("family", ["llama", "gemma", "mistral", "bart"])
def test_tokens_of_other_families(family):
    assert made("ocl", FAMILIES)[family] == made("tensorflow", FAMILIES)[family]


def test_images_are_those_of_tensorflow():
    """Of Stable Diffusion 3, whose number of steps is a tensor."""
    ours, theirs = (np.array(made(backend, DENOISE)) for backend in ("ocl", "tensorflow"))
    assert ours.shape == (2, 2, 32, 32, 3)
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
