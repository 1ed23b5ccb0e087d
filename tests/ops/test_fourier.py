"""Fourier transforms of any length against NumPy and SciPy, and their gradients."""

import numpy as np
import pytest
from keras import ops
from scipy import signal

from keras_ocl.compiler import from_numpy
from keras_ocl.ops import math
from tests.primitives.checking import check_gradient, need_float64

RNG = np.random.default_rng(4)


def pair(z):
    return np.real(z), np.imag(z)


def close(ours, reference, tolerance):
    ours, reference = np.asarray(ops.convert_to_numpy(ours)), np.asarray(reference)
    assert ours.shape == reference.shape
    assert np.linalg.norm(ours - reference) <= tolerance * np.linalg.norm(reference)


# Short; composite; prime below and above what a matrix does; twice such a prime.
@pytest.mark.parametrize("n", [1, 7, 97, 360, 514])
def test_lengths(n):
    need_float64()
    z = RNG.normal(size=(2, n)) + 1j * RNG.normal(size=(2, n))
    ours = math.fft(tuple(from_numpy(x) for x in pair(z)))
    for part, expected in zip(ours, pair(np.fft.fft(z)), strict=True):
        close(part, expected, 1e-13)
    real = math.rfft(from_numpy(z.real))
    close(real[0], np.fft.rfft(z.real).real, 1e-13)
    if n > 1:
        close(math.irfft(real, n), z.real, 1e-13)


def test_products_of_indices_do_not_overflow():
    """In float32, for a prime length whose square exceeds 31 bits."""
    n = 46_349
    re, im = RNG.normal(size=(2, 1, n)).astype("float32")
    expected = np.fft.fft(re.astype("float64") + 1j * im)
    for part, whole in zip(ops.fft((re, im)), pair(expected), strict=True):
        close(part, whole, 1e-6)


@pytest.mark.parametrize("length", [None, 8, 13])
def test_real_lengths(length):
    x = RNG.normal(size=(3, 9)).astype("float32")
    spectrum = np.fft.rfft(x, length)
    for part, expected in zip(ops.rfft(x, length), pair(spectrum), strict=True):
        close(part, expected, 1e-6)
    close(ops.irfft(pair(spectrum.astype("complex64")), length), np.fft.irfft(spectrum, length), 1e-6)


def test_two_axes():
    z = (RNG.normal(size=(2, 6, 5)) + 1j * RNG.normal(size=(2, 6, 5))).astype("complex64")
    for part, expected in zip(ops.fft2(pair(z)), pair(np.fft.fft2(z)), strict=True):
        close(part, expected, 1e-6)
    for part, expected in zip(ops.ifft2(pair(z)), pair(np.fft.ifft2(z)), strict=True):
        close(part, expected, 1e-6)


@pytest.mark.parametrize("length,stride,fft_length", [(16, 8, 16), (15, 5, 17)])
def test_short_time(length, stride, fft_length):
    x = RNG.normal(size=(2, 105)).astype("float32")
    ours = ops.stft(x, length, stride, fft_length, center=False)
    taps = np.zeros(fft_length)
    start = (fft_length - length) // 2
    taps[start : start + length] = signal.get_window("hann", length)
    count = (105 - fft_length) // stride + 1
    frames = np.stack([x[:, i * stride : i * stride + fft_length] * taps for i in range(count)], 1)
    for part, expected in zip(ours, pair(np.fft.rfft(frames)), strict=True):
        close(part, expected, 1e-6)
    whole = ops.istft(ops.stft(x, length, stride, fft_length), length, stride, fft_length, length=90)
    close(whole[:, 17:73], x[:, 17:73], 1e-5)  # at the ends fewer windows overlap than the weights are made for


def test_short_time_of_single_samples():
    x = RNG.normal(size=(2, 9)).astype("float32")
    close(ops.istft(ops.stft(x, 1, 1, 1), 1, 1, 1), x, 1e-6)


def test_gradient_of_a_large_prime_length():
    re, im = RNG.normal(size=(2, 2, 263))
    check_gradient(lambda a, b: math.fft((a, b)), re, im, second=False)
