"""A coordinator's death is not a rebalance."""

import time

from cluster import NODES
from expected import must, until
from groups_scene import read_everything, report_pause


def disturbed(members, since):
    return {f"{member.name} ({member.kind})": found for member in members if (found := member.rebalances(since))}


def must_be_calm(members, since, what):
    found = disturbed(members, since)
    must(not found, f"{what}: {len(found)} of {len(members)} members saw a rebalance, for example {list(found.items())[:2]}")


def running(scene, group, topic, partitions, members):
    """A ticker, and members that share the topic in a group that is stable."""
    ticker = scene.ticker(topic, partitions)
    for member in members:
        member.start()
    described = scene.stable(group, len(members), seconds=120)
    scene.settled(members, topic, partitions, seconds=60)
    until(lambda: all(any(r[0] > time.monotonic() - 1 for r in m.reads[-3:]) for m in members if m.owned), "all consume", 60)
    return ticker, set(described)


def kill(scene):
    """kill -9 of the coordinator of a mixed group: nobody sees a rebalance"""
    count = 50 if scene.long else 9
    scene.create("kill", count)
    members = scene.mixed(count, "kill-group", ["kill"])
    ticker, ids = running(scene, "kill-group", "kill", count, members)
    generation = scene.coordinators.generation("kill-group")
    for number in range(3 if scene.long else 1):
        node = scene.coordinator("kill-group")
        mark = time.monotonic()
        scene.cluster.kill(node)
        # Longer than a session: who was not heard of by the new coordinator would be gone.
        time.sleep(22 if number == 0 else 5)
        report_pause(members, ticker, mark)
        must_be_calm(members, mark, f"kill {number}")
        must(scene.coordinator("kill-group") != node, "the dead node is named as coordinator")
        must(set(scene.stable("kill-group", count)) == ids, "other member ids")
        found = scene.coordinators.generation("kill-group")
        must(found == generation, f"generation {generation} became {found}")
        scene.restart(node)
        must_be_calm(members, mark, f"restart {number}")
    ticker.stop()
    read_everything(members, ticker)
    for member in members:
        member.ask_to_stop()


def lead(scene):
    """R46: the group's partition changes its leader by wish, again and again: the generation stays"""
    scene.create("lead", 6)
    members = scene.mixed(6, "lead-group", ["lead"])
    ticker, ids = running(scene, "lead-group", "lead", 6, members)
    generation = scene.coordinators.generation("lead-group")
    place = f"__consumer_offsets/{scene.offsets_partition('lead-group')}"
    mark = time.monotonic()
    for _ in range(12 if scene.long else 4):
        node = scene.coordinator("lead-group")
        other = NODES[node % 3]
        scene.cluster.corduroy("partition", "lead", place, str(other))
        until(lambda: scene.coordinator("lead-group") == other, f"node {other} coordinates", 10)
        time.sleep(1.5)
    report_pause(members, ticker, mark)
    must_be_calm(members, mark, "transfers")
    must(set(scene.stable("lead-group", 6)) == ids, "other member ids")
    found = scene.coordinators.generation("lead-group")
    must(found == generation, f"generation {generation} became {found}")
    ticker.stop()
    read_everything(members, ticker)


def rolling(scene):
    """R47: a rolling restart: no rebalance of static members, at most one of dynamic ones"""
    for group, is_static in (("rolling-static", True), ("rolling-dynamic", False)):
        scene.create(group, 9)
        makers = [scene.rdkafka, scene.java, scene.kafka_python]
        members = [
            makers[at % 3](f"{group}-{at}", group, [group], instance=f"{group}-{at}" if is_static else None)
            for at in range(9)
        ]
        ticker, _ = running(scene, group, group, 9, members)
        generation = scene.coordinators.generation(group)
        mark = time.monotonic()
        for node in NODES:
            status = scene.cluster.terminate(node)
            must(status == 0, f"node {node} ended with {status}")
            scene.restart(node)
        restarted = time.monotonic()
        def all_consume():
            return all(any(r[0] > restarted for r in m.reads[-50:]) for m in members if m.owned)
        until(all_consume, "all consume again", 30)
        time.sleep(3)
        report_pause(members, ticker, mark)
        after = scene.coordinators.generation(group)
        print(f"  {group}: generation {generation} before, {after} after three restarts", flush=True)
        if is_static:
            must_be_calm(members, mark, "a rolling restart of static members")
        must(after - generation <= (0 if is_static else 1), f"generation {generation} became {after}")
        ticker.stop()
        read_everything(members, ticker)
        for member in members:
            member.ask_to_stop()


def storm(scene):
    """storms of joins and leaves settle, and nothing is lost"""
    scene.create("storm", 12)
    rounds = 6 if scene.long else 3
    ticker = scene.ticker("storm", 12, 0.1)
    steady = scene.mixed(3, "storm-group", ["storm"])
    everybody = list(steady)
    for member in steady:
        member.start()
    for number in range(rounds):
        wave = [scene.rdkafka(f"storm-{number}-{at}", "storm-group", ["storm"]) for at in range(6)]
        wave += [scene.java(f"storm-{number}-java-{at}", "storm-group", ["storm"]) for at in range(3)]
        everybody += wave
        for member in wave:
            member.start()
        time.sleep(1.5)
        for member in wave:
            member.ask_to_stop()
        time.sleep(0.5)
    began = time.monotonic()
    scene.stable("storm-group", 3, seconds=60)
    scene.settled(steady, "storm", 12, seconds=60)
    print(f"  settled {time.monotonic() - began:.1f} s after the last storm, in generation {scene.coordinators.generation('storm-group')}", flush=True)
    ticker.stop()
    read_everything(everybody, ticker)


SCENARIOS = {"kill": kill, "lead": lead, "rolling": rolling, "storm": storm}
