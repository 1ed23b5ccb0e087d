"""keras.ops.image, complete: what `keras.src.backend.image` is for this backend. The functions live in files by subject."""

# ruff: noqa: F401
from keras_ocl.ops import naming
from keras_ocl.ops.image.color import hsv_to_rgb, rgb_to_grayscale, rgb_to_hsv
from keras_ocl.ops.image.filters import gaussian_blur, sobel_edges
from keras_ocl.ops.image.geometry import (
    affine_transform,
    compute_homography_matrix,
    elastic_transform,
    map_coordinates,
    perspective_transform,
)
from keras_ocl.ops.image.resizing import resize, scale_and_translate

globals().update(naming.named_operations(globals()))
