"""A script that stays: each line of standard input names one of its commands, each answer is a line of JSON.

`harness.Held` is the other end. When the input ends, so does the script, without tearing anything down.
"""
import json
import os
import sys


def serve(commands):
    """Calls `commands[name](*words)` for each line; it returns an object for the answer."""
    for line in sys.stdin:
        name, *words = line.split()
        print(json.dumps(commands[name](*words)), flush=True)
    sys.stdout.flush()
    os._exit(0)
