#!/usr/bin/env python3
"""Three real `corduroy start` processes on loopback, for tests that look from outside.

As a program: `cluster.py start DIR` prints the bootstrap servers; `cluster.py stop DIR` ends what
it started. As a module: the class `Cluster`, whose nodes can be killed, paused and restarted. Only
processes that it started itself are ever signalled, by their pid, after a look that the pid still
runs that command.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

NODES = (1, 2, 3)
ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 30
STOP_SECONDS = 30


def binary():
    """The program under test: `CORDUROY`, else the newest of the release and the debug build."""
    named = os.environ.get("CORDUROY")
    if named:
        return Path(named)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [path for path in (target / "release/corduroy", target / "debug/corduroy") if path.exists()]
    if not built:
        sys.exit("error: there is no corduroy binary\n  help    cargo build --release, or set CORDUROY=PATH")
    return max(built, key=lambda path: path.stat().st_mtime)


def free_ports(count):
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Cluster:
    """Three nodes below one directory; what is needed to find them again is in `cluster.json`."""

    def __init__(self, directory, overrides=()):
        self.directory = Path(directory)
        self.state_file = self.directory / "cluster.json"
        if self.state_file.exists():
            state = json.loads(self.state_file.read_text())
        else:
            self.directory.mkdir(parents=True, exist_ok=True)
            ports = free_ports(3 * len(NODES))
            state = {
                "binary": str(binary().resolve()),
                "kafka": ports[0:3],
                "rpc": ports[3:6],
                "admin": ports[6:9],
                "overrides": list(overrides),
                "pids": {},
            }
        self.state = state
        self.children = {}
        self.save()

    def save(self):
        self.state_file.write_text(json.dumps(self.state, indent=1))

    @property
    def bootstrap(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.state["kafka"])

    def log(self, node):
        return self.directory / f"node-{node}.log"

    def told(self, node, since):
        """What a node has logged since a moment of the wall clock: (seconds since the epoch, the line's JSON)."""
        for line in self.log(node).read_text(errors="replace").splitlines():
            if not line.startswith("{"):
                continue
            told = json.loads(line)
            wall = datetime.fromisoformat(told["timestamp"]).timestamp()
            if wall >= since:
                yield wall, told

    def command(self, node):
        place = NODES.index(node)
        seeds = ",".join(f"127.0.0.1:{port}" for port in self.state["rpc"])
        command = [
            self.state["binary"], "start",
            "--node-id", str(node),
            "--data-dir", str(self.directory / f"data-{node}"),
            "--listen", f"127.0.0.1:{self.state['kafka'][place]}",
            "--rpc-listen", f"127.0.0.1:{self.state['rpc'][place]}",
            "--admin-listen", f"127.0.0.1:{self.state['admin'][place]}",
            "--seeds", seeds,
        ]  # fmt: skip
        for pair in self.state["overrides"]:
            command += ["--set", pair]
        return command

    def start_node(self, node):
        with open(self.log(node), "ab") as log:
            # A group of its own, so that Ctrl-C is ours to answer; not a session, to which Linux would give
            # a share of the processor of its own, whatever priority the caller has.
            child = subprocess.Popen(self.command(node), stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
        self.children[node] = child
        self.state["pids"][str(node)] = child.pid
        self.save()

    def start(self):
        """Starts all nodes and returns when every partition has a leader."""
        for node in NODES:
            self.start_node(node)
        self.wait_healthy()

    def corduroy(self, *arguments, check=True):
        """Runs the program's own command line against this cluster."""
        return subprocess.run(
            [self.state["binary"], *arguments],
            env={**os.environ, "CORDUROY_BROKERS": self.bootstrap},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check,
        )  # fmt: skip

    def wait_healthy(self, seconds=READY_SECONDS):
        outcome = self.corduroy("cluster", "health", "--wait", f"{seconds}s", check=False)
        if outcome.returncode != 0:
            self.print_logs()
            sys.exit(f"error: the cluster is not healthy after {seconds} s\n{outcome.stdout}{outcome.stderr}")

    def pid(self, node):
        return self.state["pids"].get(str(node))

    def runs(self, node):
        """Whether the pid is alive and still runs our command (a pid may be used again)."""
        child = self.children.get(node)
        if child is not None:
            return child.poll() is None
        try:
            words = Path(f"/proc/{self.pid(node)}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return words[:2] == [self.state["binary"].encode(), b"start"]

    def signal(self, node, number):
        if not self.runs(node):
            raise RuntimeError(f"node {node} does not run")
        os.kill(self.pid(node), number)

    def wait_gone(self, node, seconds=STOP_SECONDS):
        """Waits for the end of a node; returns its exit status where it is our child."""
        child = self.children.get(node)
        if child is not None:
            return child.wait(seconds)
        deadline = time.monotonic() + seconds
        while self.runs(node):
            if time.monotonic() > deadline:
                raise RuntimeError(f"node {node} did not end within {seconds} s")
            time.sleep(0.05)
        return None

    def kill(self, node):
        self.signal(node, signal.SIGKILL)
        self.wait_gone(node)

    def pause(self, node):
        self.signal(node, signal.SIGSTOP)

    def resume(self, node):
        self.signal(node, signal.SIGCONT)

    def terminate(self, node):
        """A clean stop; returns the exit status."""
        self.signal(node, signal.SIGTERM)
        return self.wait_gone(node)

    def stop(self):
        """Ends every node that still runs; a node that ignores SIGTERM is killed and reported."""
        stubborn = []
        running = [node for node in NODES if self.pid(node) and self.runs(node)]
        for node in running:
            self.signal(node, signal.SIGCONT)
            self.signal(node, signal.SIGTERM)
        for node in running:
            try:
                self.wait_gone(node)
            except (RuntimeError, subprocess.TimeoutExpired):
                stubborn.append(node)
                self.kill(node)
        if stubborn:
            print(f"warning: nodes {stubborn} did not end by SIGTERM within {STOP_SECONDS} s", file=sys.stderr)
        return not stubborn

    def print_logs(self, lines=30):
        for node in NODES:
            if self.log(node).exists():
                tail = self.log(node).read_text(errors="replace").splitlines()[-lines:]
                print(f"--- node {node}", *tail, sep="\n", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["start", "stop", "pids"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a configuration override for every node")
    args = parser.parse_args()
    if args.verb != "start" and not (args.directory / "cluster.json").exists():
        sys.exit(f"error: no cluster was started in {args.directory}")
    cluster = Cluster(args.directory, args.set)
    match args.verb:
        case "start":
            try:
                cluster.start()
            except BaseException:
                cluster.stop()
                raise
            print(cluster.bootstrap)
        case "stop":
            clean = cluster.stop()
            for node in NODES:
                shutil.rmtree(args.directory / f"data-{node}", ignore_errors=True)
            sys.exit(0 if clean else 1)
        case "pids":
            print(*(cluster.pid(node) for node in NODES))


if __name__ == "__main__":
    main()
