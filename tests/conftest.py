"""All tests run on this backend; those that need another start a process of their own."""

import os

os.environ["KERAS_BACKEND"] = "ocl"
os.environ.setdefault("KERAS_OCL_COMPILERS", "0")  # all cores run tests already
