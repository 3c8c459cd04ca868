"""Counts of a run, from the counter and from gpumem, brought to the same names.

Both become {"device.allocs": 3, "device.frees": 3, "device.bytes": 4096, "launches": 7, …}; what is
zero is left out. gpumem's side is read from the ledger as shim/wire/src/layout.rs documents it, so
that a mistake of the inspector cannot hide one of the shim; that the inspector says the same is
checked on its own.
"""
import struct

KINDS = {1: "device", 2: "pitch", 3: "managed", 4: "host-pinned", 5: "host-registered", 6: "async", 7: "vmm-physical",
         8: "vmm-mapping", 9: "vmm-reservation", 10: "array", 11: "mipmapped-array", 12: "ipc-import",
         13: "external-memory", 14: "external-mapping", 15: "vmm-import", 16: "multicast", 17: "reported"}
FIELDS = ("allocs", "frees", "bytes", "freed_bytes", "failures")
SCALARS = ("unknown_frees", "free_failures", "graphs_created", "graphs_destroyed", "execs_created", "execs_destroyed",
           "instantiate_failures", "instantiate_ns", "launches", "launch_failures", "updates", "update_failures",
           "node_sets", "captures_begun", "captures_ended", "captures_failed", "dropped_records", "stacks_cut",
           None, "panics", "ended_with_context", "nodes_instantiated",
           # of the graph cache
           "handles_made", "handles_ended", "pinned_made", "pinned_ended", "real_execs_made", "real_execs_ended",
           "real_bytes_added", "real_bytes_removed", "source_bytes_added", "source_bytes_removed", "retargets",
           "retarget_ns", "nodes_set", "recycled", "evictions", "over_bound", "fallback_instantiates", "one_by_one",
           "saved_ns", "folds", "unfolds", "thrashes", "oom_retries", "graph_trims",
           # of the pool
           "pool_hits", "pool_misses", "pool_passed", "pool_kept", "pool_released", "pool_released_bytes", "pool_barriers",
           "pool_barriers_free", "pool_flushes", "spills", "spilled_bytes", "limit_refusals", "press_refusals",
           "freed_in_graph", "trims", "stranded_bytes_added", "stranded_bytes_removed", "miss_ns", "made_anew")
COMPARED = tuple(s for s in SCALARS[:16] if s not in ("instantiate_ns", "node_sets"))
PER_KIND, PER_SHARD = 32, 288
TABLES_AT, TABLE_BYTES, TABLES = 392, 40, 24
PIECES_LEN_AT, PIECES_AT, PIECE_BYTES = 172, 4096, 16
VERSION = 14
STATES = {1: "recording", 2: "stopped", 3: "exited"}
MODES = {1: "active", 2: "record-only"}
INTERCEPTION = {1: "none", 2: "partial", 3: "complete"}
STRINGS, EXECS, CONTEXTS, COUNTERS, EXEC_BYTES, CONTEXT_BYTES = 4, 7, 8, 11, 256, 264
# The state of an exec, and what pins it.
EXEC_STATES = {0: "native", 1: "resident", 2: "folded", 3: "gone"}
PINNED = ("none", "off", "record-only", "interception", "device-launch", "memory-nodes", "event-nodes", "conditional",
          "external-nodes", "user-objects", "device-updatable", "contexts", "parameters", "unknown-node", "driver-update",
          "node-set", "unknown-call", "id-asked", "room", "lookup", "code-gone", "unknown-attribute", "unknown-flag",
          "unknown-edge", "verdict")


def exec_of(slot):
    """The fields of one exec's slot that are asked for here."""
    state, source_bytes = struct.unpack_from("<QQ", slot, 208)
    reason = state >> 8 & 255
    return {
        "nodes": struct.unpack_from("<I", slot, 84)[0], "class": struct.unpack_from("<Q", slot, 152)[0],
        "launches": struct.unpack_from("<Q", slot, 160)[0], "source_bytes": source_bytes,
        "state": EXEC_STATES.get(state & 255, "?"), "pinned": PINNED[reason] if reason < len(PINNED) else "?",
    }


def context_of(slot):
    """The fields of one context's slot that are asked for here; bytes."""
    names = ("live", "peak", "driver_pool", "graphs", "execs", "idle", "idle_peak", "idle_blocks", "limit", "spilled")
    return {"device": struct.unpack_from("<I", slot, 56)[0], **dict(zip(names, struct.unpack_from("<10Q", slot, 88)))}


def table_bytes(file, header, index, length):
    """The first `length` bytes of a table: where the directory says, or its pieces one behind the other."""
    pieces = struct.unpack_from("<I", header, PIECES_LEN_AT)[0]
    if not pieces:
        file.seek(struct.unpack_from("<Q", header, TABLES_AT + index * TABLE_BYTES + 8)[0])
        return file.read(length)
    file.seek(PIECES_AT)
    table = b""
    for offset, size, of in struct.iter_unpack("<QII", file.read(pieces * PIECE_BYTES)):
        if of == index and len(table) < length:
            file.seek(offset)
            table += file.read(min(size, length - len(table)))
    return table


class Ledger:
    """What one ledger says: `interception`, `reason`, `state`, `mode`, `counts`, `contexts`, `execs`, `live`."""

    def __init__(self, path):
        if not path:
            raise ValueError("no ledger was left")
        with open(path, "rb") as file:
            data = file.read(4096)
            if data[:8] != b"GPUMEM\x1aL" or struct.unpack_from("<I", data, 8)[0] != VERSION:
                raise ValueError(f"{path} is no ledger of layout version {VERSION}")
            tables = {}
            for i in range(TABLES):
                kind, _, _, _, used, _ = struct.unpack_from("<IIQQQQ", data, TABLES_AT + i * TABLE_BYTES)
                if kind:
                    tables[kind] = (i, used)
            index, used = tables[COUNTERS]
            words = struct.unpack(f"<{used}Q", table_bytes(file, data, index, 8 * used))
            index, used = tables[STRINGS]
            strings = table_bytes(file, data, index, used)
            index, used = tables[EXECS]
            execs = table_bytes(file, data, index, used * EXEC_BYTES)
            index, used = tables[CONTEXTS]
            contexts = table_bytes(file, data, index, used * CONTEXT_BYTES)
        sums = [sum(words[i::PER_SHARD]) & (2**64 - 1) for i in range(PER_SHARD)]
        self.state = STATES.get(struct.unpack_from("<I", data, 80)[0], "?")
        self.mode = MODES.get(struct.unpack_from("<I", data, 84)[0], "?")
        self.interception = INTERCEPTION.get(struct.unpack_from("<I", data, 92)[0], "?")
        at = struct.unpack_from("<I", data, 96)[0]
        length = struct.unpack_from("<I", strings, at)[0] if at and at + 4 <= len(strings) else 0
        self.reason = strings[at + 4 : at + 4 + length].decode(errors="replace")
        self.counts = {f"{name}.{field}": sums[f * PER_KIND + k] for k, name in KINDS.items() for f, field in enumerate(FIELDS)}
        self.counts.update({name: sums[len(FIELDS) * PER_KIND + i] for i, name in enumerate(SCALARS) if name})
        self.counts = {k: v for k, v in self.counts.items() if v}
        slots = (execs[at : at + EXEC_BYTES] for at in range(0, len(execs), EXEC_BYTES))
        self.execs = [exec_of(slot) for slot in slots if any(slot[:4])]
        slots = (contexts[at : at + CONTEXT_BYTES] for at in range(0, len(contexts), CONTEXT_BYTES))
        self.contexts = [context_of(slot) for slot in slots if any(slot[:4])]

    def live(self):
        """What is not balanced: {"device": 2, "execs": 1}, without reservations of addresses left out."""
        get = self.counts.get
        live = {k: get(f"{k}.allocs", 0) - get(f"{k}.frees", 0) for k in KINDS.values()}
        live["graphs"] = get("graphs_created", 0) - get("graphs_destroyed", 0)
        live["execs"] = get("execs_created", 0) - get("execs_destroyed", 0)
        return {k: v for k, v in live.items() if v}

    def cache(self):
        """What the graph cache holds: live handles by state and by what pins them, real execs, sources and their bytes."""
        get = self.counts.get
        tally = lambda name: {v: sum(e[name] == v for e in self.execs) for v in sorted({e[name] for e in self.execs})}
        sources = [e for e in self.execs if e["source_bytes"]]
        nodes, held = sum(e["nodes"] for e in sources), sum(e["source_bytes"] for e in sources)
        return {
            "states": tally("state"), "pinned": {k: v for k, v in tally("pinned").items() if k != "none"},
            "classes": len({e["class"] for e in self.execs if e["class"]}),
            "real_execs": get("real_execs_made", 0) - get("real_execs_ended", 0),
            "real_mib": (get("real_bytes_added", 0) - get("real_bytes_removed", 0)) / 2**20,
            "source_mib": (get("source_bytes_added", 0) - get("source_bytes_removed", 0)) / 2**20,
            "source_nodes": nodes, "source_bytes_per_node": round(held / nodes, 1) if nodes else None,
            **{k: get(k, 0) for k in ("handles_made", "real_execs_made", "made_anew", "retargets", "recycled", "evictions",
                                      "over_bound", "fallback_instantiates", "one_by_one", "folds", "unfolds", "thrashes", "oom_retries",
                                      "updates", "update_failures", "launches")},
        }

    def pool(self):
        """What the pool did: its counters that are not zero, and the most that was live and idle at a time, MiB."""
        return {"peak_mib": max((c["peak"] for c in self.contexts), default=0) / 2**20,
                "idle_mib": sum(c["idle"] for c in self.contexts) / 2**20,
                "idle_peak_mib": max((c["idle_peak"] for c in self.contexts), default=0) / 2**20,
                **{name: self.counts[name] for name in SCALARS[46:] if name in self.counts}}

    def trouble(self):
        """Counters that say the bookkeeping itself went wrong."""
        return [f"{k} {self.counts[k]}" for k in ("dropped_records", "panics") if self.counts.get(k)]


def of_counter(counted):
    """What count.c wrote, in the same names."""
    flat = {name: counted[name] for name in COMPARED}
    for kind, row in counted["kinds"].items():
        flat.update({f"{kind}.{field}": row[field] for field in FIELDS})
    return {k: v for k, v in flat.items() if v}


def of_inspector(answer):
    """What `gpumem stats --json` says, in the same names: the rows of kinds, and counters by name, wherever they are."""
    flat, names = {}, {"allocs": "allocs", "frees": "frees", "alloc_bytes": "bytes", "free_bytes": "freed_bytes", "failures": "failures"}

    def walk(node):
        if isinstance(node, list):
            for item in node:
                walk(item)
        elif isinstance(node, dict):
            if "name" in node and node["name"] in SCALARS:
                flat[node["name"]] = node.get("value", node.get("count", 0))
            for key, value in node.items():
                if key in SCALARS and isinstance(value, int):
                    flat[key] = value
                walk(value)

    walk(answer)
    # A kind has a row for each memory that it lies in.
    for row in answer["kinds"]:
        for theirs, ours in names.items():
            name = f"{row['kind']}.{ours}"
            flat[name] = flat.get(name, 0) + row[theirs]
    return {k: v for k, v in flat.items() if v}


def differences(counter, gpumem):
    """Names whose counts differ, as `name counter≠gpumem`. Bytes of arrays are each side's own estimate."""
    wanted = set(COMPARED) | {f"{k}.{f}" for k in KINDS.values() for f in FIELDS if k != "reported"}
    wanted -= {"mipmapped-array.bytes", "mipmapped-array.freed_bytes", "ipc-import.bytes", "ipc-import.freed_bytes"}
    ended = gpumem.get("ended_with_context", 0)
    if ended:
        # What ends with its context is freed by no call: the ledger says how many, the counter sees none.
        frees = {f"{k}.frees" for k in KINDS.values()}
        more = sum(gpumem.get(k, 0) - counter.get(k, 0) for k in frees & wanted)
        wanted -= frees | {f"{k}.freed_bytes" for k in KINDS.values()}
        if more != ended:
            return [f"frees that no call made {ended}≠{more}"]
    return [f"{k} {counter.get(k, 0)}≠{gpumem.get(k, 0)}" for k in sorted(wanted) if counter.get(k, 0) != gpumem.get(k, 0)]
