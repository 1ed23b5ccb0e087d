"""A report of a device that there is not, with one case of each kind that failed."""


def times(milliseconds, **more):
    return {"best_ms": milliseconds / 2, "median_ms": milliseconds, "n": 7, **more}


def sample():
    opencl = {
        "platform": {"name": "A platform", "vendor": "A vendor", "version": "OpenCL 3.0"},
        "model": "Device | 9000",
        "driver": "1.2",
        "vendor": "A vendor",
        "version": "OpenCL 3.0",
        "opencl_c_version": "OpenCL C 1.2",
        "max_compute_units": 8,
        "extensions": ["cl_khr_fp16", "cl_khr_fp64"],
    }
    traits = {"kind": "gpu", "schedule": "gpu", "compute_units": 8, "global_memory": 1 << 30, "local_memory": 1 << 15, "fp64": True}
    traits |= {"fp16": True, "subgroups": False, "byte": 20, "matrix_units": [], "quirks": []}
    families = [
        {"family": "sorts", "verdict": "right", "why": "", "cases": 4, "wrong": 0, "seconds": 1.0, "instead": ""},
        {"family": "scans", "verdict": "crashed", "why": "a | b", "cases": 3, "wrong": 1, "seconds": 1.0, "instead": "right"},
    ]
    bandwidth = {"best": 2e10, "median": 1e10}
    return {
        "format": 1,
        "date": "2026-11-29",
        "versions": {"python": "3.11.7", "keras-ocl": "0.1.0", "keras": "3.15.1", "numpy": "2.0", "pyopencl": "2025.1"},
        "system": {"os": "An OS", "kernel": "6.1", "machine": "x86_64", "cpu": "A CPU", "cores": 4, "load": 0.5},
        "settings": {"KERAS_OCL_KEEP": "all"},
        "device": {
            "name": "gpu:0",
            "opencl": opencl,
            "traits": traits,
            "memory": "copied",
            "refused_units": {"unit": "its probe computes wrong values"},
            "tuned": {"numbers": 1, "tiles": 2},
        },
        "verify": {"short": True, "families": families, "kept_out": {"scans": "crashed, a | b"}, "error": ""},
        "limits": [{"case": "launch", **times(0.002)}, {"case": "memory", **times(8.0, bytes_per_s=bandwidth)}],
        "operations": [
            {"case": "product 2048 x 2048 x 2048", **times(2.0, flops_per_s={"best": 2e12, "median": 1e12})},
            {"case": "convolution 3x3, 64 of 28 x 28 x 128 to 128", "error": "a signal, 6, ended its process"},
        ],
        "networks": [
            {"case": "MNIST MLP", **times(2.5, steps_per_s={"best": 800.0, "median": 400.0}, batch=128, steps=200, parameters=669706)}
        ],
        "byte": 4.5,
    }
