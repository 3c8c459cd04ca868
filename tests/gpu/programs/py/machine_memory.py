"""Whose memory a device's is: its attributes, and what is missing to the device and to the machine while a program has memory
of each kind. One line of JSON; it ends when its input does.

    machine_memory.py MIB LARGE

MIB: of each kind. LARGE: one more request, in MiB, whose status is told.
"""
import ctypes
import json
import mmap
import sys

ATTRIBUTES = (18, 83, 88, 89, 100)
MIB = 1 << 20

driver = ctypes.CDLL("libcuda.so.1")
for name in ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocManaged", "cuMemsetD8_v2", "cuMemGetInfo_v2", "cuDeviceTotalMem_v2"):
    getattr(driver, name).restype = ctypes.c_int


def must(status, what):
    if status:
        sys.exit(f"{what}: {status}")


def machine():
    """What the machine has, and could give to a program."""
    lines = open("/proc/meminfo").read().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("MemTotal:", "MemAvailable:"))}


def free():
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    must(driver.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)), "cuMemGetInfo")
    return left.value


def missing(make, end):
    """What a piece of memory takes of the device and of the machine, in bytes; a status instead if it cannot be had."""
    before, had = free(), machine()["MemAvailable"]
    made = make()
    if isinstance(made, int):
        return made
    taken = {"device": before - free(), "machine": had - machine()["MemAvailable"]}
    end(made)
    return taken


def alloc(bytes_):
    at = ctypes.c_uint64()
    status = driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(bytes_))
    return status or at


def managed(bytes_):
    at = ctypes.c_uint64()
    status = driver.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(bytes_), 1)
    if status:
        return status
    ctypes.memset(at.value, 1, bytes_)
    return at


def pages(bytes_):
    memory = mmap.mmap(-1, bytes_)
    for at in range(0, bytes_, mmap.PAGESIZE):
        memory[at] = 1
    return memory


def give(at):
    must(driver.cuMemFree_v2(at), "cuMemFree")


def main():
    bytes_, large = int(sys.argv[1]) * MIB, int(sys.argv[2]) * MIB
    device, context, name = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(256)
    must(driver.cuInit(0), "cuInit")
    must(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    must(driver.cuDeviceGetName(name, 256, device), "cuDeviceGetName")
    must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    must(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    said, total = {}, ctypes.c_size_t()
    for id_ in ATTRIBUTES:
        value = ctypes.c_int(-1)
        must(driver.cuDeviceGetAttribute(ctypes.byref(value), id_, device), f"attribute {id_}")
        said[str(id_)] = value.value
    must(driver.cuDeviceTotalMem_v2(ctypes.byref(total), device), "cuDeviceTotalMem")
    answer = {"device": name.value.decode(), "attributes": said, "total": total.value, "free": free(), "machine": machine()}
    answer["missing"] = {
        "cuMemAlloc": missing(lambda: alloc(bytes_), give),
        "cuMemAllocManaged": missing(lambda: managed(bytes_), give),
        "malloc": missing(lambda: pages(bytes_), lambda memory: memory.close()),
    }
    made = alloc(large)
    answer["large"] = made if isinstance(made, int) else 0
    if not isinstance(made, int):
        give(made)
    # An eighth of the device in blocks, freed: what a pool keeps of it is in its ledger.
    piece = max(total.value // 128, MIB)
    blocks = [alloc(piece) for _ in range(16)]
    held = [block for block in blocks if not isinstance(block, int)]
    for block in held:
        give(block)
    answer["freed"] = len(held) * piece
    print(json.dumps(answer), flush=True)
    # Who looks at this process meanwhile ends it so.
    sys.stdin.read()


main()
