"""How the CPU kernels of convolutions divide channels among register tiles, and choose among these."""

import pytest

from keras_ocl.kernels.conv.parts_cpu import Block, blocks_of, cheapest, chunk_of, cycles, register_tiles
from keras_ocl.kernels.spec import Args


@pytest.mark.parametrize("channels", [1, 7, 8, 9, 24, 33, 64, 70])
@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_blocks_cover_the_channels(channels, vectors):
    blocks = blocks_of(channels, 8, vectors)
    assert sum(block.count * sum(block.lanes) for block in blocks) == channels
    assert all(len(block.lanes) == block.vectors <= vectors and 1 <= block.last <= 8 for block in blocks)


def test_a_block_loads_only_its_channels():
    assert Block(2, 4, 3).load("float32", "p") == [
        "*(__global const loose_float4*)(p + 0)",
        "(float4)(*(__global const loose_float2*)(p + 4 + 0), p[(4 + 2)], 0)",
    ]


def test_register_tiles_have_no_vector_without_channels():
    tiles = [(vectors, rows) for vectors, _, rows in register_tiles(12, 8, lambda vectors: 4 // vectors)]
    assert tiles == [(1, range(1, 5)), (2, range(1, 3))]


def test_cycles_count_what_binds():
    whole = blocks_of(16, 8, 2)
    assert cycles(12, 6, whole) == 2 * (6 + 0.7)  # 12 multiply-adds at two per cycle
    assert cycles(6, 6, whole, by_lane=True) == 7 + 0.7  # 12 vectors of the left operand and 2 of the right at two loads per cycle
    assert cycles(13, 6, whole) == 2 * (6 + 0.7) + (4 + 0.7)  # a tile of one row takes its latency
    assert cycles(6, 6, blocks_of(7, 8, 1)) == (6 + 1 + 1.5 * 3) / 2 + 0.7  # seven lanes are loaded in three parts


def test_the_first_of_equally_cheap_tiles_is_taken():
    assert cheapest([(2.0, "a"), (1.0, "b"), (1.0 - 1e-12, "c"), (3.0, "d")]) == "b"


def test_a_chunk_beyond_the_last_runs_once():
    assert chunk_of(Args(), 5, 12) == "const int begin = chunk * 5;\nconst int end = max(begin + 1, min(begin + 5, 12));\n"
