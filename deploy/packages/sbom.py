"""Prints an SBOM of cargo-cyclonedx without what differs between two builds: the folder, and a random number.

    python3 sbom.py FOLDER SBOM

What is left of a path begins with the name of the project. The date is SOURCE_DATE_EPOCH.
"""

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path


def main():
    folder, path = sys.argv[1:]
    bom = json.loads(Path(path).read_text(encoding="utf-8").replace(f"path+file://{folder}", "path+file:///gpumem"))
    bom.pop("serialNumber", None)
    date = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    bom["metadata"]["timestamp"] = date.strftime("%Y-%m-%dT%H:%M:%SZ")
    text = json.dumps(bom, indent=1, ensure_ascii=False)
    if folder in text:
        sys.exit(f"sbom.py: {path} has the path {folder} in a form that is not known")
    print(text)


if __name__ == "__main__":
    main()
