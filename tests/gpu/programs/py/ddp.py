"""Two processes of data-parallel training, one a GPU: `ddp.py STEPS` starts train_lengths.py twice and passes on what they print."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).with_name("train_lengths.py")

with tempfile.TemporaryDirectory() as folder:
    ranks = [subprocess.Popen([sys.executable, SCRIPT, sys.argv[1], str(rank), f"{folder}/store"]) for rank in range(2)]
    statuses = [rank.wait() for rank in ranks]
sys.exit(f"ranks ended with {statuses}" if any(statuses) else 0)
