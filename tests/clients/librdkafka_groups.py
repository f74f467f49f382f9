"""Runs librdkafka's test runner, one test at a time, against three nodes of its own."""

import os
import re
import subprocess
import time
from pathlib import Path

from suite import List, hold, parser

HERE = Path(__file__).parent
# By the protocol that members speak (KIP-848: "consumer").
LISTS = {"classic": HERE / "librdkafka-groups.list", "consumer": HERE / "librdkafka-groups-consumer.list"}
TEST_SECONDS = 900
# As the suite expects its brokers: topics are created by name with four partitions.
OVERRIDES = ["auto.create.topics.enable=true", "num.partitions=4", "group.initial.rebalance.delay.ms=300"]


def run_one(suite, name, brokers, protocol, log):
    """One test, or of NUMBER/TEXT its parts with this text in their names: "passed", "skipped",
    "failed" or "late". Not in quick mode, which leaves most of it out, and without those that have a
    mock for a broker.
    """
    number, _, part = name.partition("/")
    conf = log.with_name("test.conf")
    conf.write_text(f"bootstrap.servers={brokers}\n")
    environment = {
        **os.environ, "TESTS": number, "LD_LIBRARY_PATH": "../src:../src-cpp", "TEST_KAFKA_VERSION": "4.0.0",
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol, "RDKAFKA_TEST_CONF": str(conf),
    }  # fmt: skip
    if part:
        environment["SUBTESTS"] = part
    with open(log, "wb") as out:
        child = subprocess.Popen(
            ["./test-runner", "-p1", "-L", "-E"], cwd=suite, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            status = child.wait(TEST_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return "late"
    if status != 0:
        return "failed"
    # The runner's table at the end: "| 0018_cgrp_term | PASSED | 7.2s |", in colours.
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    if part and not re.search(rf"\[ [^\n]*{re.escape(part)}[^\n]*: PASS", text):
        # The runner calls a test passed of which no part was run.
        return "skipped"
    rows = [row for row in text.splitlines() if row.startswith("|") and row.strip("| ").startswith(number)]
    if any("PASSED" in row for row in rows):
        return "passed"
    return "skipped" if any("SKIPPED" in row for row in rows) else "failed"


def main():
    line = parser(__doc__, "librdkafka's tests, built")
    line.add_argument("--consumer", dest="protocol", action="store_const", const="consumer", default="classic")
    line.add_argument("numbers", nargs="*", metavar="NUMBER[/PART]")
    args = line.parse_args()
    known = List(LISTS[args.protocol])
    numbers = args.numbers or [*known.passing, *(known.others if args.all else [])]
    if args.numbers:
        # Whoever names tests wants them to pass, whatever the list expects.
        known.passing, known.others = args.numbers, {}

    def run(cluster, directory):
        # The first look for a coordinator creates __consumer_offsets: no test's patience is spent on that.
        cluster.corduroy("group", "describe", "nobody", check=False)
        cluster.wait_healthy()
        outcomes = {}
        for number in numbers:
            began = time.monotonic()
            outcomes[number] = run_one(args.suite, number, cluster.bootstrap, args.protocol, directory / f"{number.replace('/', '-').rstrip(':')}.log")
            print(f"        {number} {outcomes[number]} ({time.monotonic() - began:.0f} s)", flush=True)
        return outcomes

    hold("librdkafka", known, OVERRIDES, run)


main()
