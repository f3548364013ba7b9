"""What `import mha_course` costs on top of `import torch`.

Run it as: python tests/benchmarks/imports.py [runs]
Each run is a fresh process with -X importtime, which gives both times: they are paired.
"""

import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_MS = 50
LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)$")


def one_run() -> dict[str, float]:
    """Milliseconds: cumulative ones of torch and mha_course, and what lies between them."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import mha_course"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [found for found in map(LINE.match, done.stderr.splitlines()) if found]
    total = {found[4]: int(found[2]) / 1000 for found in lines}
    own = sum(int(found[1]) for found in lines if found[4].startswith("mha_course")) / 1000
    extra = total["mha_course"] - total["torch"]
    return {
        "import torch": total["torch"],
        "import mha_course on top of torch": extra,
        "of which our own files": own,
        "of which other packages": extra - own,
    }


def main(runs: int) -> bool:
    """Print the table; whether the median keeps to the limit."""
    one_run()  # fills the file cache
    found = [one_run() for _ in range(runs)]
    print(f"| {runs} fresh processes | median ms | least | largest | limit |")
    print("|---|---|---|---|---|")
    for name in found[0]:
        values = [run[name] for run in found]
        limit = LIMIT_MS if "on top" in name else ""
        median = statistics.median(values)
        print(f"| {name} | {median:.1f} | {min(values):.1f} | {max(values):.1f} | {limit} |")
    return statistics.median(run["import mha_course on top of torch"] for run in found) <= LIMIT_MS


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 11))
