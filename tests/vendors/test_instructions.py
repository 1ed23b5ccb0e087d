"""What inner loops consist of, of texts of which it is known."""

import shutil

import pytest

from keras_ocl import vendors
from keras_ocl.vendors.instructions import Mix, inner_loop

NVIDIA = """
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDG.E R2, desc[UR4][R2.64] ;
.L_x_1:
        /*0020*/                   LDS.128 R4, [R0] ;
        /*0030*/                   FFMA R5, R4, R6, R5 ;
        /*0040*/                   FADD R5, R5, R6 ;
        /*0050*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/               @P1 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
.L_x_2:
        /*0090*/                   BRA `(.L_x_2);
        /*00a0*/                   NOP;
"""
AMD = """
.LBB0_1:
\tds_load_b128 v[0:3], v4
\ts_waitcnt lgkmcnt(0)
\tv_dual_fmac_f32 v5, v0, v1 :: v_dual_fmac_f32 v6, v2, v3
\tv_add_f32_e32 v5, v5, v6
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
"""


def test_known_loops():
    assert inner_loop(NVIDIA) == Mix(fma=1, float=1, memory=1, rest=2)
    assert inner_loop(AMD) == Mix(fma=2, float=1, memory=1, rest=1)
    assert inner_loop("\n".join(AMD.splitlines()[2:-2])) == Mix(fma=2, float=1, memory=1)
    assert str(inner_loop(AMD)) == " 40% fma  20% float  20% memory  20% rest"


@pytest.mark.parametrize("target", ["nvidia:sm_86", "amd:gfx1030"])
def test_of_a_compiled_kernel(target):
    if not (shutil.which("clang-19") or shutil.which("clang")):
        pytest.skip("no clang: apt install clang-19")
    source = "__kernel void f(__global float* x, int n) { float s = 0; for (int i = 0; i < n; ++i) s = fma(x[i], x[i], s); x[n] = s; }"
    try:
        found = vendors.compile_program(target, source, loops=True)["f"].loop
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert found.fma and found.memory
    assert vendors.compile_program(target, source)["f"].loop is None
