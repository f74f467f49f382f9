"""Runs kafka-python's integration tests against three nodes of its own, and reads its JUnit report."""

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

from suite import List, hold, parser

LIST = Path(__file__).with_name("kafka-python-suite.list")
FILES = ["test/integration/test_consumer_integration.py", "test/integration/test_admin_integration.py"]
# What belongs to consumers and groups.
GROUPS = "consumer or group or heartbeat or offsets"
# As its own fixtures set their brokers up.
OVERRIDES = [
    "auto.create.topics.enable=true", "num.partitions=4", "group.initial.rebalance.delay.ms=300", "group.min.session.timeout.ms=1000",
]  # fmt: skip
TEST_SECONDS, SUITE_SECONDS = 60, 900


def outcomes_of(report):
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        found[case.get("name")] = (
            "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        )
    return found


def main():
    args = parser(__doc__, "kafka-python's source distribution").parse_args()

    def run(cluster, directory):
        report, log = directory / "report.xml", directory / "pytest.log"
        environment = {
            **os.environ, "KAFKA_URI": f"kafka://127.0.0.1:{cluster.state['kafka'][0]}", "KAFKA_VERSION": "4.0",
            "KAFKA_ROOT": str(directory), "PYTHONPATH": str(args.suite),
        }  # fmt: skip
        command = [
            args.suite / "venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=",
            f"--timeout={TEST_SECONDS}", "--timeout-method=signal", f"--junitxml={report}",
            *FILES, *([] if args.all else ["-k", GROUPS]),
        ]  # fmt: skip
        with open(log, "wb") as out:
            subprocess.run(command, cwd=args.suite, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=SUITE_SECONDS)
        if not report.exists():
            print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
            return {}
        return outcomes_of(report)

    hold("kafka-python", List(LIST), OVERRIDES, run)


main()
