"""IMDB's film reviews (Maas et al. 2011): words by their frequency rank, and whether the film was liked."""

import numpy as np

from comparisons.data import Data, sources

WORDS = 5000
LENGTH = 500
PATTERN = "imdb*.npz"
EXAMPLES = 25_000


def rows(tokens, lengths, length):
    """Return reviews as int32 (reviews, length): the last `length` words of each, zeros before a shorter one.

    tokens: the words of all reviews, one after the other; lengths: how many are whose. Raises ValueError where these do not fit together.
    """
    lengths = np.asarray(lengths, "int64")
    if lengths.sum() != len(tokens):
        raise ValueError(f"imdb: the lengths of the reviews add up to {lengths.sum()}, but there are {len(tokens)} words")
    result = np.zeros((len(lengths), length), "int32")
    for row, end, count in zip(result, np.cumsum(lengths), np.minimum(lengths, length), strict=True):
        if count:
            row[-count:] = tokens[end - count : end]
    return result


def stand_in(count, generator):
    """Return `count` reviews as (tokens, lengths, y): a tenth of the words are of those that only liked, or disliked, films have."""
    lengths = np.clip(generator.lognormal(5.2, 0.6, count), 10, 1500).astype("int32")
    y = generator.integers(0, 2, count)
    tokens = np.minimum(generator.zipf(1.3, lengths.sum()), WORDS // 2)
    telling = generator.random(len(tokens)) < 0.1
    tokens[telling] = WORDS // 2 + 100 * np.repeat(y, lengths)[telling] + generator.integers(0, 100, telling.sum())
    return tokens, lengths, y


def download(limits):
    """Return [(tokens, lengths, y)] of the training and the test reviews, at most so many, and why there are none ([] then)."""
    from keras.datasets import imdb

    parts, reason = sources.download(lambda: imdb.load_data(num_words=WORDS))
    if parts is None:
        return [], reason
    return [
        (np.concatenate([np.asarray(review) for review in x[:limit]]), [len(review) for review in x[:limit]], y[:limit])
        for (x, y), limit in zip(parts, limits, strict=True)
    ], ""


def load(folder=None, length=LENGTH, examples=None, test_examples=None):
    """Return reviews as Data: int32 (reviews, length) of words below 5000, zeros in front; labels float32 (reviews,), 1 for liked.

    Args:
        folder: has imdb*.npz with tokens_*, lengths_* and y_* (a part of the reviews, or of the words, is enough); otherwise the 25,000
            and 25,000 are downloaded.
        length: words of a review that are kept, the last.
        examples, test_examples: at most so many.
    """
    path, notice, limits = sources.find(folder, PATTERN), "", (examples, test_examples)
    if path is not None:
        names = [f"{name}_{part}" for part in ("train", "test") for name in ("tokens", "lengths", "y")]
        found = sources.arrays(path, *names)
        parts = [found[:3], found[3:]]
    else:
        parts, reason = download(limits)
        if not parts:
            generator = np.random.default_rng(0)
            parts = [stand_in(min(limit or EXAMPLES, EXAMPLES), generator) for limit in limits]
            notice = sources.notice("IMDB", PATTERN, reason)
    ready = []
    for (tokens, lengths, y), limit in zip(parts, limits, strict=True):
        kept = lengths[:limit]
        ready += [rows(tokens[: int(np.sum(kept, dtype="int64"))], kept, length), np.asarray(y[:limit], "float32")]
    return Data(*ready, real=not notice, notice=notice)
