"""`group.protocol=consumer` (KIP-848): Java's client, librdkafka and our own, their members mixed."""

import os
import signal
import time

from confluent_kafka import ConsumerGroupType, TopicPartition

from cluster import NODES
from expected import must, until
from groups_failover import must_be_calm
from groups_scene import read_everything, report_pause

MODERN = {"group.protocol": "consumer"}


def modern(scene, count, group, topics, start=0, **how):
    return scene.mixed(count, group, topics, start=start, **how, **MODERN)


def describe(scene, group):
    return scene.admin.describe_consumer_groups([group], request_timeout=20)[group].result(30)


def described(scene, group, count, seconds=60):
    """Waits until ConsumerGroupDescribe calls the group stable with so many members."""
    found = None

    def look():
        nonlocal found
        found = describe(scene, group)
        return found.state.name == "STABLE" and len(found.members) == count
    until(look, f"{group} is stable with {count} members", seconds)
    must(found.type == ConsumerGroupType.CONSUMER, f"{group} is of type {found.type}")
    return found


def join(scene):
    """members join one after the other: partitions move one at a time, nobody gives up what it keeps"""
    scene.create("modern", 6)
    scene.fill("modern", 6, 100)
    members = modern(scene, 2, "modern-join", ["modern"])
    for member in members:
        member.start()
    scene.settled(members, "modern", 6)
    described(scene, "modern-join", 2)
    until(lambda: {len(member.owned) for member in members} == {3}, "equal shares")
    before, mark = {member.name: set(member.owned) for member in members}, time.monotonic()
    (late,) = modern(scene, 1, "modern-join", ["modern"], start=2)
    late.start()
    until(lambda: len(late.owned) == 2, "the newcomer has its share", 60)
    scene.settled([*members, late], "modern", 6)
    for member in members:
        taken = {p for when, kind, parts in member.events if when > mark and kind != "assigned" for p in parts}
        must(len(taken) == 1 and taken <= before[member.name], f"{member.name} gave up {taken}")
    found = described(scene, "modern-join", 3)
    owned = sorted((p.topic, p.partition) for member in found.members for p in member.assignment.topic_partitions)
    must(owned == [("modern", p) for p in range(6)], f"ConsumerGroupDescribe shows {owned}")
    listed = scene.admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(30).valid
    must([one.group_id for one in listed] == ["modern-join"], f"ListGroups shows {listed}")
    # One leaves: the others get its partitions, and give up nothing.
    mark = time.monotonic()
    members[0].stop()
    scene.settled([members[1], late], "modern", 6)
    for member in (members[1], late):
        taken = [parts for when, kind, parts in member.events if when > mark and kind != "assigned"]
        must(not taken, f"{member.name} gave up {taken}")
    want = {(p, offset) for p in range(6) for offset in range(100)}
    until(lambda: {r[2:4] for m in [*members, late] for r in m.reads} == want, "all is read", 30)
    for member in (members[1], late):
        member.stop()
    found = scene.committed("modern-join", "modern", 6)
    must(found == {p: 100 for p in range(6)}, f"committed: {found}")


def regex(scene):
    """a subscription by pattern, evaluated by the broker (by our client under the classic protocol): new topics are found"""
    for name in ("logs-a", "logs-b", "other"):
        scene.create(name, 2)
    makers = {"java": lambda: scene.java("regex-java", "regex-java", [], pattern="logs-.*", **MODERN),
              "rdkafka": lambda: scene.rdkafka("regex-rdkafka", "regex-rdkafka", ["^logs-.*"], **MODERN),
              "ours": lambda: scene.ours("regex-ours", "regex-ours", [], pattern="logs-.*", **MODERN),
              "ours, classic": lambda: scene.ours(
                  "regex-classic", "regex-classic", [], pattern="logs-.*", **{"metadata.max.age.ms": "500"})}  # fmt: skip
    members = {kind: make().start() for kind, make in makers.items()}
    want = {(topic, p) for topic in ("logs-a", "logs-b") for p in (0, 1)}
    for kind, member in members.items():
        until(lambda: member.owned == want, f"{kind}: the topics that match", 60)
    scene.create("logs-c", 2)
    want |= {("logs-c", p) for p in (0, 1)}
    for kind, member in members.items():
        until(lambda: member.owned == want, f"{kind}: a new topic that matches", 60)
        member.stop()


def fence(scene):
    """fencing: a member that was silent comes back without its partitions; static names; a stale epoch"""
    scene.create("fenced", 4)
    process = scene.java_process()
    group = "modern-fence"
    victim = scene.java("fence-victim", group, ["fenced"], process=process, **MODERN).start()
    scene.settled([victim], "fenced", 4)
    # The same static name twice: the second one is refused while the first one lives.
    first = scene.java("fence-static", "modern-static", ["fenced"], instance="one", **MODERN).start()
    scene.settled([first], "fenced", 4)
    second = scene.java("fence-static-2", "modern-static", ["fenced"], instance="one", **MODERN).start()
    until(lambda: second.trouble, "the second of a name is refused", 30)
    must("UnreleasedInstanceId" in second.trouble, f"the second of a name: {second.trouble}")
    # Its place is kept while it is away for a moment.
    owned = set(first.owned)
    first.stop()
    again = scene.java("fence-static-again", "modern-static", ["fenced"], instance="one", **MODERN).start()
    until(lambda: again.owned == owned, "the same partitions after a restart", 30)
    again.stop()
    # The victim stands still for longer than its session; another takes over.
    os.kill(process.process.pid, signal.SIGSTOP)
    other = scene.rdkafka("fence-other", group, ["fenced"], **MODERN).start()
    until(lambda: len(other.owned) == 4, "the other takes over", 60)
    os.kill(process.process.pid, signal.SIGCONT)
    until(lambda: any(kind == "lost" for _, kind, _ in victim.events), "the victim learns that it was fenced", 30)
    scene.settled([victim, other], "fenced", 4)
    # From outside: a member epoch that is not the member's.
    with scene.coordinators.connect(group) as broker:
        error = broker.commit(group, "fenced", {0: 1}, generation=1, member="nobody")[0]
        must(error == "UNKNOWN_MEMBER_ID", f"a commit of an unknown member: {error}")
        error = broker.commit(group, "fenced", {0: 1})[0]
        must(error == "UNKNOWN_MEMBER_ID", f"a commit from outside of a group with members: {error}")
        error, *_ = broker.join(group, member="", metadata=b"")
        must(error == "INCONSISTENT_GROUP_PROTOCOL", f"a classic member with another protocol: {error}")


def modern_kill(scene):
    """kill -9 of the coordinator of a consumer-protocol group: nobody loses anything"""
    count = 50 if scene.long else 4
    scene.create("modern-kill", count)
    members = modern(scene, count, "modern-kill-group", ["modern-kill"])
    ticker = scene.ticker("modern-kill", count)
    for member in members:
        member.start()
    scene.settled(members, "modern-kill", count)
    before = described(scene, "modern-kill-group", count)
    time.sleep(2)
    node = scene.coordinator("modern-kill-group")
    mark = time.monotonic()
    scene.cluster.kill(node)
    # Longer than a session.
    time.sleep(12)
    report_pause(members, ticker, mark)
    must_be_calm(members, mark, "kill")
    after = described(scene, "modern-kill-group", count)
    must({m.member_id for m in before.members} == {m.member_id for m in after.members}, "other members")
    scene.restart(node)
    other = NODES[scene.coordinator("modern-kill-group") % 3]
    scene.hand_over("modern-kill-group", other)
    time.sleep(3)
    must_be_calm(members, mark, "kill, restart, transfer")
    ticker.stop()
    read_everything(members, ticker)


def scale(scene):
    """R58: many members come at once: each partition is read from what was committed, not from the beginning"""
    count, partitions = (50, 200) if scene.long else (10, 40)
    scene.create("scale", partitions)
    scene.fill("scale", partitions, 20)
    committer = scene.committer("scale-group")
    committer.commit(offsets=[TopicPartition("scale", p, 15) for p in range(partitions)], asynchronous=False)
    committer.close()
    members = modern(scene, count, "scale-group", ["scale"])
    for member in members:
        member.start()
    scene.settled(members, "scale", partitions, 120)
    want = {(p, offset) for p in range(partitions) for offset in range(15, 20)}
    def read():
        return {r[2:4] for m in members for r in m.reads}
    until(lambda: want <= read(), "all that is new is read", 60)
    must(read() == want, f"{len(read() - want)} records before the committed offsets are read")
    for member in members:
        member.ask_to_stop()


def migrate(scene):
    """an empty classic group goes on as one of the consumer protocol with its offsets, and back"""
    scene.create("migrate", 2)
    scene.fill("migrate", 2, 10)
    for number, how in enumerate(({}, MODERN, {})):
        member = scene.rdkafka(f"migrate-{number}", "migrate-group", ["migrate"], **how).start()
        # The first reads all, the others only what is new.
        until(lambda: len(member.reads) == 20, "the records are read", 60)
        until(lambda: scene.committed("migrate-group", "migrate", 2) == {p: 10 * (number + 1) for p in (0, 1)}, "committed", 15)
        member.stop()
        scene.fill("migrate", 2, 10)


SCENARIOS = {
    "modern-join": join, "modern-regex": regex, "modern-fence": fence, "modern-kill": modern_kill,
    "r58": scale, "migrate": migrate,
}  # fmt: skip
