"""A coordinator's death is not a rebalance."""

import time

from cluster import NODES
from expected import must, until
from groups_scene import CALM_SECONDS, read_everything, report_failover, report_pause


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
        # What the pauses are compared with.
        time.sleep(CALM_SECONDS)
        mark, mark_wall = time.monotonic(), time.time()
        scene.cluster.kill(node)
        # Longer than a session: who was not heard of by the new coordinator would be gone.
        time.sleep(22 if number == 0 else 5)
        report_failover(scene.cluster, "kill", mark_wall, node)
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
    mark = time.monotonic()
    for _ in range(12 if scene.long else 4):
        node = scene.coordinator("lead-group")
        other = NODES[node % 3]
        scene.hand_over("lead-group", other)
        until(lambda: scene.coordinator("lead-group") == other, f"node {other} coordinates", 10)
        time.sleep(1.5)
    report_pause(members, ticker, mark)
    must_be_calm(members, mark, "transfers")
    must(set(scene.stable("lead-group", 6)) == ids, "other member ids")
    found = scene.coordinators.generation("lead-group")
    must(found == generation, f"generation {generation} became {found}")
    ticker.stop()
    read_everything(members, ticker)


def restart_all(scene, members):
    """Restarts the nodes in turn. Each member owns something and reads within 30 s after the last one.

    Returns when the first one went.
    """
    mark = time.monotonic()
    for node in NODES:
        status = scene.cluster.terminate(node)
        must(status == 0, f"node {node} ended with {status}")
        scene.restart(node)
    restarted = time.monotonic()
    until(
        lambda: all(m.owned and any(r[0] > restarted for r in m.reads[-50:]) for m in members),
        "all members consume after the last restart", 30,
    )  # fmt: skip
    print(f"  all consume {time.monotonic() - restarted:.1f} s after the last restart", flush=True)
    # A rebalance that a restart has begun would show by now.
    time.sleep(3)
    return mark


def rolling_rdkafka(scene):
    """R47: a rolling restart under ten members of librdkafka: none of them gets stuck"""
    scene.create("r47", 10)
    members = [scene.rdkafka(f"r47-{at}", "r47-group", ["r47"]) for at in range(10)]
    ticker, _ = running(scene, "r47-group", "r47", 10, members)
    report_pause(members, ticker, restart_all(scene, members))
    scene.stable("r47-group", 10)
    ticker.stop()
    read_everything(members, ticker)


def rolling(scene):
    """a rolling restart: no rebalance of static members, at most one of dynamic ones"""
    for group, is_static in (("rolling-static", True), ("rolling-dynamic", False)):
        count = 50 if scene.long else 9
        scene.create(group, count)
        members = scene.mixed(count, group, [group], are_static=is_static)
        ticker, _ = running(scene, group, group, count, members)
        generation = scene.coordinators.generation(group)
        mark = restart_all(scene, members)
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
    partitions = 50 if scene.long else 12
    # With the three that stay fifty members at once.
    rounds, waves = (6, (24, 13, 10)) if scene.long else (3, (6, 3, 2))
    scene.create("storm", partitions)
    ticker = scene.ticker("storm", partitions, 0.1)
    steady = scene.mixed(3, "storm-group", ["storm"])
    everybody = list(steady)
    for member in steady:
        member.start()
    for number in range(rounds):
        makers = [(scene.rdkafka, "rdkafka"), (scene.java, "java"), (scene.ours, "ours")]
        wave = [
            make(f"storm-{number}-{kind}-{at}", "storm-group", ["storm"])
            for (make, kind), count in zip(makers, waves) for at in range(count)
        ]  # fmt: skip
        everybody += wave
        for member in wave:
            member.start()
        time.sleep(1.5)
        for member in wave:
            member.ask_to_stop()
        time.sleep(0.5)
    began = time.monotonic()
    scene.stable("storm-group", 3, seconds=60)
    scene.settled(steady, "storm", partitions, seconds=60)
    print(f"  settled {time.monotonic() - began:.1f} s after the last storm, in generation {scene.coordinators.generation('storm-group')}", flush=True)
    ticker.stop()
    read_everything(everybody, ticker)


SCENARIOS = {"kill": kill, "lead": lead, "rolling": rolling, "r47": rolling_rdkafka, "storm": storm}
