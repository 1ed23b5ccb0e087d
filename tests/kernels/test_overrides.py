"""A device's own numbers take their places in its schedule's table, and its own tiles those of the estimates."""

import dataclasses
import logging
import re

import pytest

from keras_ocl import runtime
from keras_ocl.kernels.overrides import chosen, tuning_of
from keras_ocl.kernels.schedule import schedule_names, schedule_of
from keras_ocl.kernels.schedules import rows
from keras_ocl.runtime.overrides import Overrides


def with_own(record, schedules=None, **own):
    """The traits of a record with such Overrides."""
    traits = runtime.read_record(record)
    return dataclasses.replace(traits, overrides=Overrides("own.toml", schedules or (traits.schedule,), **own))


@pytest.mark.parametrize("name", [*schedule_names(), rows.NAME])
def test_without_a_file_the_table_is_the_schedules(name):
    traits = dataclasses.replace(runtime.read_record("intel-cpu"), schedule=name)
    assert tuning_of(traits) is schedule_of(traits).tuning


def test_numbers_take_their_places():
    own = ("product.block", 256), ("product.streamed_vectors", (64,)), ("convolution.item_flops", 10**6)
    traits = with_own("intel-cpu", tuning=own)
    table, usual = tuning_of(traits), schedule_of(traits).tuning
    assert (table.product.block, table.product.streamed_vectors, table.convolution.item_flops) == (256, (64,), 10**6)
    assert dataclasses.replace(table.product, block=512, streamed_vectors=usual.product.streamed_vectors) == usual.product
    assert (table.pointwise, table.winograd, table.attention) == (usual.pointwise, usual.winograd, usual.attention)
    assert tuning_of(with_own("intel-cpu", tuning=own)) is table, "the table is made once"
    assert tuning_of(runtime.read_record("intel-cpu")) is usual


def test_the_steps_of_a_persistent_kernel_have_the_gpus():
    traits = with_own("sm_90", tuning=(("product_few", 2),))
    assert tuning_of(traits).product_few == tuning_of(dataclasses.replace(traits, schedule=rows.NAME)).product_few == 2
    assert tuning_of(dataclasses.replace(traits, schedule="reference")) is None


@pytest.mark.parametrize(
    "own, says",
    [
        (("product.blok", 256), "own.toml: the schedule cpu has no number 'product.blok'; the nearest names are product.block, "),
        (("product", 256), "own.toml: the schedule cpu has no number 'product'; the nearest names are product."),
        (("product.block", "256"), "own.toml: product.block = '256' is of another type than the schedule's, 512"),
        (("product.block", 256.0), "own.toml: product.block = 256.0 is of another type than the schedule's, 512"),
        (("product.block", True), "own.toml: product.block = True is of another type than the schedule's, 512"),
        (("product.tile", "x"), "own.toml: product.tile = 'x' is of another type than the schedule's, 20.0"),
        (("product.streamed_vectors", ()), "own.toml: product.streamed_vectors = () is of another type"),
        (("product.streamed_vectors", (1.5,)), "own.toml: product.streamed_vectors = (1.5,) is of another type"),
    ],
)
def test_a_wrong_name_or_type_is_one_sentence(own, says):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        tuning_of(with_own("intel-cpu", tuning=(own,)))


def test_a_wrong_name_of_a_schedule_is_one_sentence():
    with pytest.raises(ValueError, match="^own.toml: there is no schedule 'cppu'; the nearest names are cpu, "):
        tuning_of(with_own("intel-cpu", schedules=("cppu",)))


def tile(side):
    return side


def test_a_tile_that_does_not_fit_is_refused_once(caplog):
    own = ("product", "a", (("side", 8),)), ("product", "b", (("side", 4),)), ("product", "c", (("edge", 4),)), ("other", "d", ())
    traits = with_own("intel-cpu", choices=own)

    def ask(key):
        return chosen(traits, "product", lambda: key, tile, lambda side: "it is too large" if side > 4 else "")

    caplog.set_level(logging.WARNING, "keras_ocl")
    assert [ask(key) for key in "aabcd"] == [None, None, 4, None, None]
    assert len(caplog.messages) == 2
    assert caplog.messages[0] == "own.toml: the tile of product a is not used: it is too large."
    assert caplog.messages[1].startswith("own.toml: the tile of product c is not used: ") and "'edge'" in caplog.messages[1]


def test_without_choices_no_key_is_made():
    assert chosen(runtime.read_record("intel-cpu"), "product", None, None, None) is None
