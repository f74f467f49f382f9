"""Kafka's own tools: kafka-consumer-groups, and the console consumer that reads `__consumer_offsets`."""

import datetime
import json
import re
import threading
import time

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cluster import NODES
from expected import must, until
from groups_wire import Answer

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
METADATA = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"
INTERNAL = "__consumer_offsets"


def command(scene):
    """kafka-consumer-groups: list, describe, reset-offsets, delete-offsets, delete"""
    began_ms = 1_700_000_000_000
    scene.create("tooled", 3)
    scene.fill("tooled", 3, 100, timestamp_ms=began_ms)

    def run(*arguments, check=True):
        return scene.tool(GROUPS, "--bootstrap-server", scene.brokers, *arguments, check=check).stdout

    def rows(*arguments):
        """A table as {column: word} rows."""
        lines = [line.split() for line in run(*arguments).splitlines() if line.strip()]
        heads = [at for at, line in enumerate(lines) if line[0] in ("GROUP", "TOPIC")]
        must(heads, f"no table: {lines}")
        return [dict(zip(lines[heads[0]], line)) for line in lines[heads[0] + 1 :]]

    def offsets():
        found = scene.committed("tooled-group", "tooled", 3)
        return [found[p] for p in range(3)]

    members = [scene.rdkafka(f"tooled-{at}", "tooled-group", ["tooled"]).start() for at in range(2)]
    scene.stable("tooled-group", 2)
    until(lambda: offsets() == [100] * 3, "all is committed", 30)
    must("tooled-group" in run("--list").split(), "--list")
    listed = rows("--list", "--state")
    must({"GROUP": "tooled-group", "STATE": "Stable"}.items() <= next(r for r in listed if r["GROUP"] == "tooled-group").items(), f"--list --state: {listed}")
    must("tooled-group" not in run("--list", "--state", "empty"), "--list --state empty shows a stable group")
    listed = rows("--list", "--type")
    must(any(r["GROUP"] == "tooled-group" and r["TYPE"] == "Classic" for r in listed), f"--list --type: {listed}")
    found = {int(r["PARTITION"]): r for r in rows("--describe", "--group", "tooled-group", "--offsets")}
    for p in range(3):
        want = {"CURRENT-OFFSET": "100", "LOG-END-OFFSET": "100", "LAG": "0"}
        must(want.items() <= found[p].items(), f"--describe --offsets: {found[p]}")
        must(found[p]["CLIENT-ID"].startswith("tooled-"), f"--describe --offsets: {found[p]}")
    found = rows("--describe", "--group", "tooled-group", "--members")
    must(sorted(int(r["#PARTITIONS"]) for r in found) == [1, 2], f"--describe --members: {found}")
    state = run("--describe", "--group", "tooled-group", "--state")
    must("Stable" in state and "range" in state, f"--describe --state: {state}")
    # With members nothing may be set, deleted or forgotten.
    refused = run("--reset-offsets", "--group", "tooled-group", "--topic", "tooled", "--to-earliest", "--execute", check=False)
    must(offsets() == [100] * 3 and "Stable" in refused, f"a reset of a group with members: {refused}")
    refused = run("--delete", "--group", "tooled-group", check=False)
    must("GroupNotEmpty" in refused or "not empty" in refused, f"--delete of a group with members: {refused}")
    refused = run("--delete-offsets", "--group", "tooled-group", "--topic", "tooled", check=False)
    must("GroupSubscribedToTopic" in refused or "subscribed" in refused, f"--delete-offsets with members: {refused}")
    for member in members:
        member.stop()
    until(lambda: scene.coordinators.describe("tooled-group")[1] == "Empty", "the group is empty", 20)

    def reset(*how, execute=True):
        found = rows("--reset-offsets", "--group", "tooled-group", "--topic", "tooled", *how, "--execute" if execute else "--dry-run")
        return [int(r["NEW-OFFSET"]) for r in sorted(found, key=lambda r: int(r["PARTITION"]))]

    must(reset("--to-earliest", execute=False) == [0] * 3 and offsets() == [100] * 3, "a dry run")
    must(reset("--to-earliest") == [0] * 3 and offsets() == [0] * 3, f"--to-earliest: {offsets()}")
    must(reset("--shift-by", "30") == [30] * 3 and offsets() == [30] * 3, f"--shift-by: {offsets()}")
    when = datetime.datetime.fromtimestamp((began_ms + 60) / 1000, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    must(reset("--to-datetime", when + "Z") == [60] * 3 and offsets() == [60] * 3, f"--to-datetime: {offsets()}")
    must(reset("--to-latest") == [100] * 3 and offsets() == [100] * 3, f"--to-latest: {offsets()}")
    run("--delete-offsets", "--group", "tooled-group", "--topic", "tooled:0")
    must(offsets() == [-1, 100, 100], f"after --delete-offsets: {offsets()}")
    run("--delete", "--group", "tooled-group")
    must("tooled-group" not in run("--list").split(), "the deleted group is listed")
    gone = run("--describe", "--group", "tooled-group", check=False)
    must("100" not in gone, f"a deleted group is described: {gone}")
    member = scene.java("tooled-modern", "tooled-modern", ["tooled"], **{"group.protocol": "consumer"}).start()
    until(lambda: len(member.owned) == 3, "a member of the consumer protocol", 30)
    found = rows("--describe", "--group", "tooled-modern", "--members", "--verbose")
    must(len(found) == 1 and int(found[0]["#PARTITIONS"]) == 3, f"--describe --members of a consumer group: {found}")
    state = run("--describe", "--group", "tooled-modern", "--state")
    must("Stable" in state and "uniform" in state, f"--describe --state of a consumer group: {state}")


def read_internal(scene, formatter, seconds=8):
    """The internal topic from its start through one of Kafka's formatters: [(key, value or None)]."""
    done = scene.tool(
        CONSOLE, "--bootstrap-server", scene.brokers, "--topic", INTERNAL, "--from-beginning", "--timeout-ms",
        str(seconds * 1000), "--consumer-property", "enable.auto.commit=false", "--formatter", formatter, check=False, seconds=180,
    )  # fmt: skip
    must("ERROR" not in done.stderr or "TimeoutException" in done.stderr, f"{formatter}: {done.stderr[-800:]}")
    # The formatter puts no newline behind a record.
    text, at, found, decoder = done.stdout, 0, [], json.JSONDecoder()
    while (at := text.find("{", at)) >= 0:
        one, at = decoder.raw_decode(text, at)
        found.append((one["key"], one["value"]))
    return found


def raw_internal(scene):
    """The internal topic from its start as it is: [(key, value or None)] in bytes, partition by partition."""
    consumer = Consumer({"bootstrap.servers": scene.brokers, "group.id": "nobody", "enable.auto.commit": False, "enable.partition.eof": False})
    found = []
    try:
        for partition in range(scene.offsets_partitions()):
            start, end = consumer.get_watermark_offsets(TopicPartition(INTERNAL, partition), timeout=20)
            consumer.assign([TopicPartition(INTERNAL, partition, start)])
            deadline = time.monotonic() + 60
            while start < end:
                must(time.monotonic() < deadline, f"{INTERNAL}/{partition} cannot be read beyond {start}")
                message = consumer.poll(1)
                if message is not None:
                    must(message.error() is None, f"{INTERNAL}/{partition}: {message.error()}")
                    found.append((message.key(), message.value()))
                    start = message.offset() + 1
    finally:
        consumer.close()
    return found


# Kinds of keys of the consumer protocol (KIP-848): what the group is, its members, the target's epoch, what each
# member should have, and has; Kafka's own formatters know none of them.
CONSUMER, MEMBER, TARGET, TARGET_MEMBER, CURRENT = 3, 5, 6, 7, 8


def consumer_group(records, group):
    """What the records say of one group of the consumer protocol: {kind: {member or None: value}}."""
    kept = {kind: {} for kind in (CONSUMER, MEMBER, TARGET, TARGET_MEMBER, CURRENT)}
    for key, value in records:
        key = Answer(key)
        kind = key.take(">h")
        if kind not in kept or key.text() != group:
            continue
        member = key.text() if kind in (MEMBER, TARGET_MEMBER, CURRENT) else None
        if value is None:
            kept[kind].pop(member, None)
            continue
        value = Answer(value)
        must(value.take(">h") == 0, f"version of a record of kind {kind}")
        if kind in (CONSUMER, TARGET):
            kept[kind][member] = value.take(">i")
        elif kind == CURRENT:
            kept[kind][member] = (value.take(">i"), value.take(">i"), value.take(">b"), assignment(value))
        elif kind == TARGET_MEMBER:
            kept[kind][member] = assignment(value)
        else:
            kept[kind][member] = value
    return kept


def assignment(value):
    """Partitions of topics, whichever these are."""
    found = []
    for _ in range(value.compact_count()):
        value.at += 16
        found += [value.take(">i") for _ in range(value.compact_count())]
        value.tags()
    return sorted(found)


def start_offsets(scene):
    asked = {TopicPartition(INTERNAL, p): OffsetSpec.earliest() for p in range(scene.offsets_partitions())}
    return {tp.partition: f.result(20).offset for tp, f in scene.admin.list_offsets(asked).items()}


def refreshes(scene):
    return sum(len(re.findall("live groups are written again", scene.cluster.log(n).read_text(errors="replace"))) for n in NODES)


def internal(scene):
    """the internal topic, refreshed and purged again and again, decodes to what OffsetFetch says of every group"""
    seconds = 60 if scene.long else 15
    groups = [f"inner-{at}" for at in range(24)]
    scene.create("inner", 4)
    scene.create("lived", 4)
    scene.fill("lived", 4, 50)
    stop, trouble = threading.Event(), []

    def commit(mine):
        clients = {group: scene.committer(group) for group in mine}
        number = 0
        try:
            while not stop.is_set():
                number += 1
                for at, (group, client) in enumerate(clients.items()):
                    try:
                        partition = (number + at) % 4
                        offset = TopicPartition("inner", partition, number, metadata=f"{group} {number} ".ljust(120, "."))
                        client.commit(offsets=[offset], asynchronous=False)
                    except Exception as error:
                        trouble.append(f"{group}: {error}")
                        time.sleep(0.1)
        finally:
            for client in clients.values():
                client.close()

    # Some are committed once at the very beginning, and have to live through every purge.
    old = {f"old-{at}": 1000 + at for at in range(12)}
    for group, offset in old.items():
        client = scene.committer(group)
        client.commit(offsets=[TopicPartition("inner", 0, offset)], asynchronous=False)
        client.close()
    doomed = [f"doomed-{at}" for at in range(6)]
    for group in doomed:
        client = scene.committer(group)
        client.commit(offsets=[TopicPartition("inner", 0, 1), TopicPartition("inner", 1, 2)], asynchronous=False)
        client.close()
    live = [scene.rdkafka(f"living-{at}", "living", ["lived"]).start() for at in range(2)]
    # Not Java's: it commits every five seconds whether it has read or not, and the topic would have no end.
    modern = [make(f"modern-{at}", "modern", ["lived"], **{"group.protocol": "consumer"}).start() for at, make in enumerate((scene.ours, scene.rdkafka))]
    static = [scene.java(f"statics-{at}", "statics", ["inner"], instance=f"static-{at}", **{"enable.auto.commit": "false"}).start() for at in range(2)]
    scene.stable("living", 2)
    scene.stable("statics", 2)
    until(lambda: {len(member.owned) for member in modern} == {2}, "equal shares of the consumer protocol", 60)
    # Committed once, by members that stay: what they read has an end.
    lived = {p: 50 for p in range(4)}
    for group in ("living", "modern"):
        until(lambda: scene.committed(group, "lived", 4) == lived, f"{group} has committed what it read", 60)
    generation = {group: scene.coordinators.generation(group) for group in ("living", "statics")}
    until(lambda: all(member.generation == generation["statics"] for member in static), "Java knows its generation")
    threads = [threading.Thread(target=commit, args=(groups[at::3],), daemon=True) for at in range(3)]
    for thread in threads:
        thread.start()
    mark = time.monotonic()
    time.sleep(seconds / 3)
    for group, future in scene.admin.delete_consumer_groups(doomed[:3]).items():
        future.result(20)
    for group in doomed[3:]:
        with scene.coordinators.connect(group):
            scene.tool(GROUPS, "--bootstrap-server", scene.brokers, "--delete-offsets", "--group", group, "--topic", "inner:0")
    # A failover in the midst of it.
    node = scene.coordinator("inner-0")
    scene.cluster.kill(node)
    scene.restart(node)
    time.sleep(seconds * 2 / 3)
    until(lambda: refreshes(scene) >= 6 and sum(start > 0 for start in start_offsets(scene).values()) == scene.offsets_partitions(),
          "every partition of the internal topic is purged", 120)  # fmt: skip
    stop.set()
    for thread in threads:
        thread.join(30)
    for member in live + static + modern:
        must(not member.rebalances(mark), f"{member.name} saw a rebalance: {member.rebalances(mark)[:2]}")
    if trouble:
        print(f"  {len(trouble)} commits were refused around the kill, the first: {trouble[0][:120]}", flush=True)
    want, metadata = {}, {}
    for group in [*groups, *old, *doomed, "living", "modern"]:
        asked = ConsumerGroupTopicPartitions(group)
        for one in scene.admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions:
            if one.offset >= 0:
                want[(group, one.topic, one.partition)] = one.offset
                metadata[(group, one.topic, one.partition)] = one.metadata
    must(all(want[(group, "inner", 0)] == offset for group, offset in old.items()), "an old offset is lost")
    must(not any(group in [key[0] for key in want] for group in doomed[:3]), "a deleted group has offsets")
    must(all(want.get((g, "inner", 0)) is None and want[(g, "inner", 1)] == 2 for g in doomed[3:]), "a deleted offset is there")
    print(f"  {refreshes(scene)} refreshes; the topic begins at {start_offsets(scene)}; {len(want)} live offsets", flush=True)

    have = {}
    for key, value in read_internal(scene, OFFSETS):
        data = key["data"]
        key = (data["group"], data["topic"], data["partition"])
        if value is None:
            have.pop(key, None)
        else:
            have[key] = (value["data"]["offset"], value["data"]["metadata"])
    ours = {key: offset for key, (offset, _) in have.items() if key[0] in {k[0] for k in want} | set(doomed)}
    lost, more = {k: v for k, v in want.items() if ours.get(k) != v}, {k: v for k, v in ours.items() if want.get(k) != v}
    must(not lost and not more, f"OffsetFetch and the topic differ: {list(lost.items())[:3]} and {list(more.items())[:3]}")
    wrong = [key for key, (_, text) in have.items() if key in metadata and key[0] in groups and (text or "").rstrip("\0") != (metadata[key] or "").rstrip("\0")]
    must(not wrong, f"metadata differs: {wrong[:3]}")
    found = {}
    for key, value in read_internal(scene, METADATA):
        found[key["data"]["group"]] = value
    for group, count in (("living", 2), ("statics", 2)):
        value = found.get(group)
        must(value is not None, f"{group} is not in the topic")
        must((value["data"]["generation"], len(value["data"]["members"])) == (generation[group], count), f"{group} in the topic: {str(value)[:300]}")
    names = sorted(m["groupInstanceId"] for m in found["statics"]["data"]["members"])
    must(names == ["static-0", "static-1"], f"static members in the topic: {names}")
    must(all(want[(group, "lived", p)] == 50 for group in ("living", "modern") for p in range(4)), "what members committed is lost")
    told = scene.admin.describe_consumer_groups(["modern"], request_timeout=20)["modern"].result(30)
    owned = {m.member_id: sorted(p.partition for p in m.assignment.topic_partitions) for m in told.members}
    kept = consumer_group(raw_internal(scene), "modern")
    must(len(owned) == 2 and set(kept[MEMBER]) == set(owned), f"members of the consumer protocol: {owned} and {kept}")
    must({member: parts for member, (*_, parts) in kept[CURRENT].items()} == owned, f"what members have: {owned} and {kept}")
    must(kept[TARGET_MEMBER] == owned, f"what members should have: {owned} and {kept}")
    epoch = kept[CONSUMER].get(None)
    epochs = [epoch, kept[TARGET].get(None), *(current[0] for current in kept[CURRENT].values())]
    must(epoch is not None and set(epochs) == {epoch}, f"epochs of a group at rest: {kept}")


SCENARIOS = {"command": command, "internal": internal}
