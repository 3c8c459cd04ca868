"""Runs a program of this folder, then says so and holds what it has until its input ends.

    hold.py PROGRAM [ARGUMENT...]
"""
import json
import os
import pathlib
import runpy
import sys

leave = os._exit


def hold(*_):
    print(json.dumps({"held": True}), flush=True)
    sys.stdin.read()
    leave(0)


os._exit = hold
sys.argv.pop(0)
kept = runpy.run_path(str(pathlib.Path(__file__).with_name(f"{sys.argv[0]}.py")), run_name="__main__")
hold()
