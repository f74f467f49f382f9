"""A foreign test suite against three nodes of its own, held against a list of its tests in the repository.

A line of a list is "pass NAME" or "not NAME: REASON". A test of the list that should pass and does
not is a failure; one of the others is run with --all only, and a pass of it is said aloud, so that
its line can change. The list may only grow.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from cluster import Cluster


class List:
    def __init__(self, path):
        self.passing, self.others = [], {}
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            line = line.partition("#")[0].strip()
            if not line:
                continue
            verdict, _, rest = line.partition(" ")
            name, _, reason = rest.partition(": ")
            if verdict == "pass" and name and not reason:
                self.passing.append(name)
            elif verdict == "not" and name and reason:
                self.others[name] = reason
            else:
                raise SystemExit(f"error: {path}:{number}: neither `pass NAME` nor `not NAME: REASON`")

    def judge(self, outcomes):
        """`outcomes`: {name: "passed" | "skipped" | "failed" | ...}. Prints, and returns the exit status."""
        broken = [name for name in self.passing if outcomes.get(name) != "passed"]
        for name in sorted(outcomes):
            if name in self.others and name not in self.passing:
                note = f" (expected: {self.others[name]})" if outcomes[name] != "passed" else " (the list says that it does not: change its line)"
            elif name in self.passing:
                note = ""
            else:
                note = " (not in the list)"
            print(f"{outcomes[name]:8}{name}{note}", flush=True)
        for name in broken:
            if name not in outcomes:
                print(f"missing {name}", flush=True)
        print(f"{len(self.passing) - len(broken)} passed, {len(broken)} failed{': ' + ' '.join(broken) if broken else ''}")
        return 1 if broken or not self.passing else 0


def parser(description, suite):
    """What both command lines have; `suite`: what has to lie in the directory `--suite`."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--suite", required=True, type=Path, help=f"{suite} (set by the script that calls this)")
    found.add_argument("--all", action="store_true", help="also what the list does not expect to pass")
    return found


def hold(name, known, overrides, run):
    """Starts nodes, judges what `run(cluster, directory)` says of each test, and ends the program. What
    the directory holds is kept if anything is not as the list says."""
    directory = Path(tempfile.mkdtemp(prefix=f"corduroy-{name}-"))
    cluster = Cluster(directory, overrides)
    status = 1
    try:
        cluster.start()
        status = known.judge(run(cluster, directory))
    finally:
        cluster.stop()
        if status == 0:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"logs: {directory}", flush=True)
    sys.exit(status)
