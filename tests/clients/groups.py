"""Consumer groups on three real nodes, judged by clients that are not ours.

  tests/clients/groups [--long] [--set KEY=VALUE] [--list] [SCENARIO ...]

Each chapter has a cluster of its own. Exit status 0 only if all scenarios passed.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import groups_failover
import groups_migration
import groups_modern
import groups_reports
import groups_textbook
import groups_tools
from groups_scene import Scene

QUICK = ["group.initial.rebalance.delay.ms=300"]
# Chapter: its scenarios, and what its nodes are started with.
CHAPTERS = {
    "textbook": (groups_textbook.SCENARIOS, QUICK),
    "failover": (groups_failover.SCENARIOS, QUICK),
    "modern": (groups_modern.SCENARIOS, [*QUICK, "group.consumer.session.timeout.ms=10000", "group.consumer.heartbeat.interval.ms=1000"]),
    "migration": (groups_migration.SCENARIOS, QUICK),
    "tools": (groups_tools.SCENARIOS, [*QUICK, "offsets.topic.segment.bytes=20000", "offsets.topic.num.partitions=3", "log.retention.check.interval.ms=1000"]),
    "reports": (groups_reports.SCENARIOS, [*QUICK, "offsets.retention.check.interval.ms=500"]),
}


def chosen(names):
    """{chapter: {name: scenario}} of what was asked for; a chapter's name means all of it."""
    known = {name for scenarios, _ in CHAPTERS.values() for name in scenarios} | set(CHAPTERS)
    if unknown := set(names) - known:
        sys.exit(f"error: unknown: {', '.join(sorted(unknown))}\n  help    --list shows all")
    picked = {}
    for chapter, (scenarios, _) in CHAPTERS.items():
        some = {n: s for n, s in scenarios.items() if not names or n in names or chapter in names}
        if some:
            picked[chapter] = some
    return picked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="names of scenarios or chapters (default: all)")
    parser.add_argument("--long", action="store_true", help="fifty members, more rounds")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for every node")
    parser.add_argument("--member", required=True, type=Path, help="our own client's group_member (set by `groups`)")
    parser.add_argument("--build", required=True, type=Path, help="where the clients are (set by `groups`)")
    args = parser.parse_args()
    if args.list:
        for chapter, (scenarios, _) in CHAPTERS.items():
            print(chapter)
            for name, scenario in scenarios.items():
                print(f"  {name:20}{scenario.__doc__}")
        return
    passed, failed = 0, []
    for chapter, scenarios in chosen(args.scenarios).items():
        directory = Path(tempfile.mkdtemp(prefix=f"corduroy-groups-{chapter}-"))
        began = time.monotonic()
        scene = Scene(directory, args, CHAPTERS[chapter][1])
        clean = True
        print(f"{chapter}: three nodes of {scene.cluster.state['binary']} serve after {time.monotonic() - began:.0f} s", flush=True)
        try:
            for name, scenario in scenarios.items():
                print(f"{name}: {scenario.__doc__}", flush=True)
                began = time.monotonic()
                try:
                    scene.begin()
                    scenario(scene)
                    passed += 1
                    print(f"ok      {name} ({time.monotonic() - began:.0f} s)", flush=True)
                except Exception as error:
                    failed.append(name)
                    clean = False
                    print(f"FAILED  {name} ({time.monotonic() - began:.0f} s): {type(error).__name__}: {error}", flush=True)
                    traceback.print_exc()
                    scene.tell()
                finally:
                    scene.end()
        finally:
            scene.close()
            if clean:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                print(f"        logs and data: {directory}", flush=True)
    print(f"{passed} passed, {len(failed)} failed{': ' + ' '.join(failed) if failed else ''}")
    sys.exit(1 if failed else 0)


main()
