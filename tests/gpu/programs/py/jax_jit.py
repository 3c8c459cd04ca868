"""JAX: jitted arithmetic, a scan and a gradient. XLA's pool takes memory as it needs it."""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Measured choices between kernels would make the last bits differ from run to run.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true")
import jax
import jax.numpy as jnp
import numpy as np

import digest


@jax.jit
def loss(w, x):
    def layer(h, m):
        return jnp.tanh(h @ m), h.sum()

    h, sums = jax.lax.scan(layer, x, w)
    return (h * h).mean() + sums.mean() * 1e-3


def work():
    rng = np.random.default_rng(3)
    w = jnp.asarray(rng.standard_normal((4, 128, 128)).astype(np.float32) / 12)
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
    for rows in (16, 32, 64):
        for _ in range(5):
            x = jnp.asarray(rng.standard_normal((rows, 128)).astype(np.float32))
            w = step(w, x)
            digest.add(loss(w, x))
    digest.add(w)


if jax.default_backend() != "gpu":
    raise SystemExit("JAX sees no GPU")
work()
jax.clear_caches()
digest.done()
