"""CuPy: 24 RawModules, each with a variable of 4 MiB, kept to the end."""
import cupy as cp

SOURCE = r"""
__device__ unsigned table[1 << 20];
extern "C" __global__ void of_NUMBER(unsigned *p) { p[threadIdx.x] = table[threadIdx.x] + NUMBER; }
"""

out, kept = cp.zeros(32, dtype=cp.uint32), []
for number in range(24):
    kept.append(cp.RawModule(code=SOURCE.replace("NUMBER", str(number))))
    kept[-1].get_function(f"of_{number}")((1,), (32,), (out,))
    if int(out[0]) != number:
        raise SystemExit(f"module {number} wrote {int(out[0])}")
