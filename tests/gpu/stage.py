"""Runs a script of stages/ or bench/ with what they share (tools/) on its path: stage.py guard bugs clean"""
import pathlib
import runpy
import sys

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = [HERE / name for name in ("stages", "bench", "tools")]

if len(sys.argv) < 2:
    sys.exit(__doc__)
script = next((folder / f"{sys.argv[1]}.py" for folder in FOLDERS if (folder / f"{sys.argv[1]}.py").is_file()), None)
if not script:
    sys.exit(f"stage.py: there is no script {sys.argv[1]}")
sys.path[:1] = map(str, FOLDERS)
sys.argv[:2] = [str(script)]
runpy.run_path(str(script), run_name="__main__")
