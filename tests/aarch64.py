"""A line for each module of tests out of nextest's report, and the sum: aarch64.py JUNIT.XML. Exits with 1 if a test failed."""

import sys
import xml.etree.ElementTree as ElementTree

sums, modules = [0, 0, 0], {}
for suite in ElementTree.parse(sys.argv[1]).getroot().iter("testsuite"):
    for case in suite.iter("testcase"):
        module = case.get("name").rpartition("::")[0].split("::")[0]
        modules.setdefault(f"{suite.get('name')} {module}".strip(), []).append(case)
for module, cases in sorted(modules.items()):
    wrong = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    # A test that leaves a part out says so in a line of its own.
    said = "\n".join(out.text or "" for case in cases for tag in ("system-out", "system-err") for out in case.iter(tag))
    skipped = sum(line.startswith("skipped:") for line in said.splitlines())
    numbers = [len(cases) - len(wrong), len(wrong), skipped]
    sums = [a + b for a, b in zip(sums, numbers)]
    print("{}: {} passed, {} failed; {} parts skipped".format(module, *numbers))
    for name in wrong:
        print(f"  failed: {name}")
print("aarch64: {} passed, {} failed; {} parts skipped".format(*sums))
sys.exit(1 if sums[1] else 0)
