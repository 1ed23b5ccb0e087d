"""What is known of a device beside what its driver tells."""

from types import SimpleNamespace

import pytest

from keras_ocl import runtime
from keras_ocl.runtime import traits

NVIDIA, AMD = "cl_khr_fp64 cl_nv_device_attribute_query", "cl_amd_device_attribute_query"


@pytest.mark.parametrize(
    "extensions,options,name",
    [
        (NVIDIA, dict(compute_capability_major_nv=9, compute_capability_minor_nv=0), "sm_90"),
        (AMD, dict(name="gfx90a:sramecc+:xnack-"), "gfx90a"),
    ],
)
def test_the_ratio_of_memory_to_arithmetic_is_its_architectures(extensions, options, name):
    handle = SimpleNamespace(extensions=extensions, **options)
    assert traits._byte(traits._architecture(handle)) == runtime.read_record(name).byte < 10


@pytest.mark.parametrize("extensions,name", [(AMD, "gfx9999"), ("cl_khr_fp64", "gfx90a")])
def test_the_ratio_of_memory_to_arithmetic_without_a_record(extensions, name):
    assert traits._byte(traits._architecture(SimpleNamespace(extensions=extensions, name=name))) == 20


@pytest.mark.parametrize("name", [name for name in runtime.record_names() if runtime.read_hardware(name)])
def test_records_ratios_are_those_of_their_peaks(name):
    hardware = runtime.read_hardware(name)
    assert runtime.read_record(name).byte == pytest.approx(hardware.flops / 2 / hardware.bandwidth, abs=0.06)
