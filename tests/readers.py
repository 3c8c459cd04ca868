#!/usr/bin/env python3
"""Profiles of `gpumem serve`, read by packages that know their formats and nothing of gpumem.

    readers.py BUILT PACKAGES

BUILT has gpumem, libgpumem.so and the simulated driver. PACKAGES has what `make readers` installs there: opentelemetry-proto
of PyPI in `python`, which reads what is pushed, and pprof-format of npm, which reads what is fetched. A server that leaks
(demo/leak.c) is profiled. The sums have to be those of `gpumem allocs`, and what is pushed has to keep the rules of its
description: no index beyond its table, nothing twice in a table, nothing that is not used.
"""
import gzip
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

BUILT, PACKAGES = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, os.path.join(PACKAGES, "python"))
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as otlp

NODE = """
const { Profile } = require("pprof-format");
const bytes = require("zlib").gunzipSync(require("fs").readFileSync(process.argv[1]));
const profile = Profile.decode(bytes);
const text = (index) => profile.stringTable.strings[Number(index)];
const sum = (index) => profile.sample.reduce((sum, sample) => sum + Number(sample.value[index]), 0);
const keys = profile.sample.flatMap((sample) => sample.label.map((label) => text(label.key)));
console.log(JSON.stringify({
  sums: Object.fromEntries(profile.sampleType.map((type, index) => [text(type.type) + " " + text(type.unit), sum(index)])),
  labels: [...new Set(keys)].sort(),
}));
"""
pushed = []


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        pushed.append(otlp.ExportProfilesServiceRequest.FromString(gzip.decompress(body)))
        answer = otlp.ExportProfilesServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def check(request):
    """The sums of a request by sample type. Its tables are held to their rules."""
    tables = request.dictionary
    texts, used, sums = tables.string_table, [set() for _ in range(6)], {}
    in_texts, in_attributes, in_mappings, in_functions, in_locations, in_stacks = used
    (process,) = request.resource_profiles
    for profile in (profile for scope in process.scope_profiles for profile in scope.profiles):
        for kind in (profile.sample_type, profile.period_type):
            in_texts |= {kind.type_strindex, kind.unit_strindex}
        name = f"{texts[profile.sample_type.type_strindex]} {texts[profile.sample_type.unit_strindex]}"
        for sample in profile.samples:
            (value,) = sample.values
            sums[name] = sums.get(name, 0) + value
            in_stacks.add(sample.stack_index)
            in_attributes |= set(sample.attribute_indices)
    for stack in in_stacks:
        in_locations |= set(tables.stack_table[stack].location_indices)
    for location in map(tables.location_table.__getitem__, in_locations):
        in_mappings.add(location.mapping_index)
        in_functions |= {line.function_index for line in location.lines}
    for function in map(tables.function_table.__getitem__, in_functions):
        in_texts |= {function.name_strindex, function.filename_strindex}
    in_texts |= {tables.mapping_table[index].filename_strindex for index in in_mappings}
    in_texts |= {tables.attribute_table[index].key_strindex for index in in_attributes}
    rows = [tables.attribute_table, tables.mapping_table, tables.function_table, tables.location_table, tables.stack_table]
    packed = [texts] + [[row.SerializeToString() for row in table] for table in rows]
    for index, (table, of_table) in enumerate(zip(packed, used)):
        assert not table[0], f"table {index} begins with {table[0]}"
        assert len(set(table)) == len(table), f"table {index} has something twice"
        assert of_table | {0} == set(range(len(table))), f"table {index} has something that is not used"
    return sums


def wait(what, ready):
    for _ in range(300):
        if answer := ready():
            return answer
        time.sleep(0.2)
    sys.exit(f"readers: {what}: not after 60 s")


def fetch(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.read()
    except urllib.error.HTTPError:
        return None


def main():
    work = tempfile.mkdtemp()
    leak = os.path.join(work, "leak")
    subprocess.run(["cc", "-std=gnu11", "-O1", "-g", "demo/leak.c", "-ldl", "-o", leak], check=True)
    os.symlink(os.path.join(BUILT, "libcuda.so"), os.path.join(work, "libcuda.so.1"))
    here = dict(os.environ, GPUMEM_DIR=work)
    gpumem = os.path.join(BUILT, "gpumem")
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{receiver.server_port}"
    words = [gpumem, "serve", "--listen", "127.0.0.1:0", "--otlp", url, "--otlp-every", "1s"]
    server = subprocess.Popen(words, env=here, stdout=subprocess.PIPE, text=True)
    at = server.stdout.readline().split()[1].removesuffix("/metrics")
    preload = {"LD_LIBRARY_PATH": work, "LD_PRELOAD": os.path.join(BUILT, "libgpumem.so")}
    program = subprocess.Popen([leak, "blocks"], env=here | preload, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        page = wait("a profile", lambda: fetch(f"{at}/debug/pprof/gpu?pid={program.pid}"))
        # It stands still from here on, so that all say the same.
        program.send_signal(19)
        time.sleep(1.5)
        page = wait("a profile", lambda: fetch(f"{at}/debug/pprof/gpu?pid={program.pid}"))
        path = os.path.join(work, "profile.pb.gz")
        with open(path, "wb") as file:
            file.write(page)
        count = len(pushed)
        wait("a push", lambda: len(pushed) > count + 1)
        said = subprocess.run([gpumem, "allocs", str(program.pid), "--json"], env=here, capture_output=True, check=True)
        bytes_live = json.loads(said.stdout)["bytes"]
        read = subprocess.run(["node", "-e", NODE, path], cwd=PACKAGES, capture_output=True, check=True, text=True)
        fetched = json.loads(read.stdout)
        all_sums = [check(request) for request in pushed]
        ever = sum(sums.get("alloc_space bytes", 0) for sums in all_sums)
        print(f"fetched, by pprof-format: {fetched}\npushed, by opentelemetry-proto: {all_sums[-1]}, {ever} bytes ever allocated")
        assert fetched["sums"]["inuse_space bytes"] == all_sums[-1]["inuse_space bytes"] == bytes_live, bytes_live
        assert fetched["sums"]["alloc_space bytes"] == ever, "each allocation is pushed once"
        print(f"readers: as gpumem allocs has it: {bytes_live} bytes live; {len(pushed)} requests")
    finally:
        program.kill()
        server.kill()


main()
