"""Starts the kernel `gpumem` as Jupyter does, and has it allocate under a tag on the simulated driver."""

from jupyter_client.manager import start_new_kernel

CODE = """
import ctypes, gpumem
runtime, pointer = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
with gpumem.tag("notebook"):
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
print(gpumem.is_loaded(), gpumem.stats()["live"]["device"])
"""

manager, client = start_new_kernel(kernel_name="gpumem", startup_timeout=120)
said = []
try:
    answer = client.execute_interactive(
        CODE, timeout=120, output_hook=lambda message: said.append(message["content"].get("text", ""))
    )
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
assert answer["content"]["status"] == "ok", said
assert "".join(said).strip().endswith(f"True {1 << 20}"), said
print("a notebook's kernel runs under gpumem")
