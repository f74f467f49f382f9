"""What every textbook says of consumer groups."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from expected import must, until
from groups_wire import partitions_of

HERE = Path(__file__).resolve().parent


def idle(scene):
    """ten consumers on six partitions: six work, four are idle"""
    scene.create("idle", 6)
    members = scene.mixed(10, "idle-group", ["idle"])
    for member in members:
        member.start()
    described = scene.stable("idle-group", 10)
    scene.settled(members, "idle", 6)
    working = [member for member in members if member.owned]
    must(len(working) == 6 and all(len(m.owned) == 1 for m in working), f"{len(working)} members work")
    with_work = [found for _, _, assignment in described.values() if (found := partitions_of(assignment))]
    must(len(with_work) == 6, f"DescribeGroups shows {len(with_work)} members with partitions")
    # An idle one takes over what a working one leaves.
    working[0].stop()
    rest = [member for member in members if member is not working[0]]
    scene.settled(rest, "idle", 6)


def two_groups(scene):
    """two groups read the same topic whole"""
    scene.create("shared", 4)
    scene.fill("shared", 4, 500)
    groups = {name: scene.mixed(4, name, ["shared"]) for name in ("group-a", "group-b")}
    for member in groups["group-a"] + groups["group-b"]:
        member.start()
    want = {(partition, offset) for partition in range(4) for offset in range(500)}
    for name, members in groups.items():
        def read():
            return [read[2:4] for member in members for read in member.reads]
        until(lambda: set(read()) == want, f"{name} reads all", 60)
        # Nobody crashed: a member that joins late may read again only what was not committed yet.
        must(set(read()) == want, f"{name} reads what was never written")
    for member in groups["group-a"] + groups["group-b"]:
        member.stop()
    for name in groups:
        found = scene.committed(name, "shared", 4)
        must(found == {partition: 500 for partition in range(4)}, f"{name} has committed {found}")


def crash(scene):
    """process-then-commit gives duplicates after a crash, commit-then-process gives losses, exactly as the rule says"""
    scene.create("orders", 1)
    scene.fill("orders", 1, 100)
    for order, client in (("process-first", "librdkafka"), ("commit-first", "librdkafka"), ("process-first", "kafka-python"), ("commit-first", "kafka-python")):
        group = f"{order}-{client}"
        outcome = scene.directory / f"{group}.txt"
        command = [sys.executable, str(HERE / "groups_worker.py"), scene.brokers, "orders", group, order, client, str(outcome)]
        # Batches of 10; the first life ends by SIGKILL within the fourth: between its two steps.
        first = subprocess.run([*command, "--die-in-batch", "4"], timeout=90)
        must(first.returncode == -signal.SIGKILL, f"{group}: the first life ended with {first.returncode}")
        before = [int(line) for line in outcome.read_text().split()]
        second = subprocess.run([*command, "--until", "100"], timeout=120)
        must(second.returncode == 0, f"{group}: the second life ended with {second.returncode}")
        after = [int(line) for line in outcome.read_text().split()][len(before):]
        if order == "process-first":
            # 30 committed, 40 processed: the fourth batch comes again.
            must(before == list(range(40)) and after == list(range(30, 100)), f"{group}: {before} then {after}")
        else:
            # 40 committed, 30 processed: the fourth batch is lost.
            must(before == list(range(30)) and after == list(range(40, 100)), f"{group}: {before} then {after}")
        found = scene.committed(group, "orders", 1)
        must(found == {0: 100}, f"{group} ends at {found}")


def rewind(scene):
    """rewind by offset and by time, of a running member and of an idle group"""
    began_ms = 1_700_000_000_000
    scene.create("history", 2)
    scene.fill("history", 2, 300, timestamp_ms=began_ms)
    consumer = Consumer({
        "bootstrap.servers": scene.brokers, "group.id": "rewinder", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    try:
        consumer.subscribe(["history"])

        def take(count):
            found, deadline = [], time.monotonic() + 60
            while len(found) < count and time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is not None:
                    must(message.error() is None, f"{message.error()}")
                    found.append((message.partition(), message.offset()))
            must(len(found) == count, f"{len(found)} of {count} records")
            return found

        take(600)
        consumer.commit(asynchronous=False)
        consumer.seek(TopicPartition("history", 0, 290))
        must(take(10) == [(0, offset) for offset in range(290, 300)], "a seek by offset")
        found = consumer.offsets_for_times([TopicPartition("history", p, began_ms + 250) for p in (0, 1)], timeout=20)
        must([one.offset for one in found] == [250, 250], f"offsets for a time: {found}")
        for one in found:
            consumer.seek(one)
        must(sorted(take(100)) == [(p, o) for p in (0, 1) for o in range(250, 300)], "a seek by time")
    finally:
        consumer.close()
    # From outside: the group has no members, so anybody may set its offsets.
    committer = scene.committer("rewinder")
    committer.commit(offsets=[TopicPartition("history", 0, 7), TopicPartition("history", 1, 8)], asynchronous=False)
    committer.close()
    member = scene.rdkafka("rewound", "rewinder", ["history"]).start()
    until(lambda: len(member.reads) >= 293 + 292, "the rest is read again", 60)
    member.stop()
    firsts = {p: min(read[3] for read in member.reads if read[2] == p) for p in (0, 1)}
    must(firsts == {0: 7, 1: 8}, f"reading began at {firsts}")


def eager(scene):
    """eager rebalancing: range and roundrobin, each of them across four clients"""
    for strategy in ("range", "roundrobin"):
        topic, group = f"eager-{strategy}", f"eager-{strategy}-group"
        scene.create(topic, 8)
        members = scene.mixed(4, group, [topic], strategy=strategy)
        for member in members:
            member.start()
        scene.stable(group, 4)
        scene.settled(members, topic, 8)
        must({len(member.owned) for member in members} == {2}, f"{strategy}: an uneven share")
        # All give up everything, and all get something, when one more comes.
        mark = time.monotonic()
        late = scene.rdkafka("late", group, [topic], strategy=strategy).start()
        until(lambda: late.owned, f"{strategy}: the newcomer gets a share", 30)
        scene.stable(group, 5)

        def saw_both(member, mark=mark):
            seen = [kind for when, kind, _ in member.events if when > mark]
            return "revoked" in seen and "assigned" in seen

        for member in members:
            until(lambda member=member: saw_both(member), f"{strategy}: {member.name} gives up and gets again", 30)
        scene.settled([*members, late], topic, 8)
        for member in [*members, late]:
            member.stop()


def sticky(scene):
    """eager sticky, Java's and ours in one group, each as the leader: everybody gets back what it had, but for what moves"""
    scene.create("sticky", 6)
    for first, second in ((scene.java, scene.ours), (scene.ours, scene.java)):
        group = f"sticky-{first.__name__}"
        members = [first(f"{group}-0", group, ["sticky"], strategy="sticky").start()]
        scene.stable(group, 1)
        members.append(second(f"{group}-1", group, ["sticky"], strategy="sticky").start())
        scene.stable(group, 2)
        scene.settled(members, "sticky", 6)
        must({len(member.owned) for member in members} == {3}, f"{group}: an uneven share")
        before = {member.name: set(member.owned) for member in members}
        late = second(f"{group}-late", group, ["sticky"], strategy="sticky").start()
        until(lambda late=late: len(late.owned) == 2, f"{group}: the newcomer has its share", 60)
        scene.settled([*members, late], "sticky", 6)
        for member in members:
            must(member.owned < before[member.name], f"{member.name} had {before[member.name]} and got {member.owned}")
        for member in [*members, late]:
            member.stop()


def cooperative(scene):
    """cooperative rebalancing: a newcomer takes its share, nobody gives up anything else"""
    scene.create("cooperative", 6)
    makers = [scene.rdkafka, scene.java, scene.ours]
    for make in makers:
        kind = make.__name__
        group = f"cooperative-{kind}"
        members = [make(f"{group}-{at}", group, ["cooperative"], strategy="cooperative-sticky").start() for at in range(2)]
        scene.stable(group, 2)
        scene.settled(members, "cooperative", 6)
        mark = time.monotonic()
        before = {member.name: set(member.owned) for member in members}
        late = make(f"{group}-late", group, ["cooperative"], strategy="cooperative-sticky").start()
        until(lambda: len(late.owned) == 2, f"{kind}: the newcomer has its share", 60)
        scene.settled([*members, late], "cooperative", 6)
        for member in members:
            taken = [p for when, what, parts in member.events if when > mark and what != "assigned" for p in parts]
            must(len(taken) == 1 and set(taken) <= before[member.name], f"{kind}: {member.name} gave up {taken}")
            must(member.owned == before[member.name] - set(taken), f"{kind}: {member.name} kept {member.owned}")
        for member in [*members, late]:
            member.stop()


def static(scene):
    """static members: a restart within the session timeout changes nothing; after it, a rebalance"""
    scene.create("static", 6)
    for make in (scene.rdkafka, scene.java, scene.kafka_python, scene.ours):
        kind = make.__name__
        group = f"static-{kind}"
        members = [make(f"{group}-{at}", group, ["static"], instance=f"{kind}-{at}").start() for at in range(3)]
        scene.stable(group, 3)
        scene.settled(members, "static", 6)
        generation = scene.coordinators.generation(group)
        owned, mark = set(members[0].owned), time.monotonic()
        members[0].stop()
        again = make(f"{group}-again", group, ["static"], instance=f"{kind}-0").start()
        until(lambda: again.owned == owned, f"{kind}: the same partitions after a restart", 30)
        for member in members[1:]:
            # A client may report late in which generation it was all the time.
            seen = [event for event in member.rebalances(mark) if event[1:] != ("generation", generation)]
            must(not seen, f"{kind}: {member.name} was disturbed: {seen}")
        must(scene.coordinators.generation(group) == generation, f"{kind}: a new generation")
        names = sorted(instance for instance, _, _ in scene.stable(group, 3).values())
        must(names == [f"{kind}-{at}" for at in range(3)], f"{kind}: DescribeGroups shows {names}")
        for member in [again, *members[1:]]:
            member.stop()


def metadata(scene):
    """committed metadata and leader epoch come back; too long a text is refused"""
    scene.create("noted", 2)
    group = "noted-group"
    with scene.coordinators.connect(group) as broker:
        text = "where I was: ¡ñ! " + "x" * 4000
        must(broker.commit(group, "noted", {0: 41}, metadata=text, epoch=7) == {0: "NONE"}, "a commit with metadata")
        must(broker.commit(group, "noted", {1: 5}, metadata=None) == {1: "NONE"}, "a commit without metadata")
        found, error = broker.fetch_offsets(group, "noted", [0, 1, 9])
        want = {0: (41, 7, text, "NONE"), 1: (5, -1, "", "NONE"), 9: (-1, -1, "", "NONE")}
        must((found, error) == (want, "NONE"), f"OffsetFetch: {found}, {error}")
        refused = broker.commit(group, "noted", {0: 42}, metadata="y" * 4097)
        must(refused == {0: "OFFSET_METADATA_TOO_LARGE"}, f"too long a text: {refused}")
        found, _ = broker.fetch_offsets(group, "noted", [0])
        must(found[0][:3] == (41, 7, text), f"after a refused commit: {found}")
    committer = scene.committer(group)
    committer.commit(offsets=[TopicPartition("noted", 0, 50, metadata="half", leader_epoch=3)], asynchronous=False)
    (found,) = committer.committed([TopicPartition("noted", 0)], timeout=20)
    must((found.offset, found.metadata, found.leader_epoch) == (50, "half", 3), f"librdkafka: {found}")
    (found,) = committer.committed([TopicPartition("noted", 7)], timeout=20)
    must(found.offset == OFFSET_INVALID, f"a partition that nobody committed: {found}")
    committer.close()


def left(scene):
    """what a member's leaving allows is allowed as soon as it is answered: commits from outside, deletion"""
    scene.create("left", 1)
    for number in range(20):
        group = f"left-{number}"
        with scene.coordinators.connect(group) as broker:
            member = broker.new_member_id(group)
            error, generation, *_ = broker.join(group, member=member)
            must(error == "NONE", f"JoinGroup: {error}")
            must(broker.sync(group, generation, member, assignments={member: b""})[0] == "NONE", "SyncGroup")
            must(broker.leave(group, member) == "NONE", "LeaveGroup")
            error = broker.commit(group, "left", {0: 1})[0]
            must(error == "NONE", f"{group}: a commit from outside right after the last member left: {error}")
        results = scene.admin.delete_consumer_groups([group])
        results[group].result(20)


SCENARIOS = {
    "left": left,
    "idle": idle, "two-groups": two_groups, "crash": crash, "rewind": rewind, "eager": eager,
    "sticky": sticky, "cooperative": cooperative, "static": static, "metadata": metadata,
}  # fmt: skip
