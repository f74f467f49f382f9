"""Faults on three real nodes while an idempotent librdkafka producer runs at full speed.

  tests/clients/faults [--seconds N] [--set KEY=VALUE] [SCENARIO ...]

Each scenario starts its own three nodes, does its harm, heals, and reads everything back: an acked
record that is lost, double, moved or out of order fails it. Exit status 0 only if all passed.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cluster import NODES, Cluster
from expected import must, until
from load import Load, judge, read_all
from raw import Broker, batch

PARTITIONS = 4
GAP_GOAL_SECONDS, GAP_GOOD_SECONDS = 1.0, 1.5


class Scene:
    """A running cluster with one topic, and what every scenario asks of it."""

    def __init__(self, directory, args, overrides=()):
        self.args = args
        self.cluster = Cluster(directory, [*overrides, *args.set])
        self.cluster.start()
        self.admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})

    def create(self, topic, partitions=PARTITIONS, **config):
        config = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2", **config})
        self.admin.create_topics([new])[topic].result(30)

    def partitions(self, topic, among=NODES):
        """{partition: (leader, in_sync)} as the first of `among` that answers sees it.

        Bare requests: librdkafka would go on asking a node that is stopped.
        """
        trouble = None
        for node in among:
            try:
                with Broker(self.port(node), timeout=2) as broker:
                    return broker.partitions(topic)
            except OSError as error:
                trouble = error
        raise trouble

    def leader(self, topic, partition=0, among=NODES, seconds=30):
        """The leader as Metadata names it, once it is one of `among`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found, _ = self.partitions(topic, among).get(partition, (None, None))
                if found in among:
                    return found
            except OSError as error:
                found = error
            must(time.monotonic() < deadline, f"{topic}/{partition}: no leader among {among}, but {found}")
            time.sleep(0.05)

    def in_sync(self, topic, count, partitions=PARTITIONS, seconds=60):
        """Waits until every partition has `count` in-sync replicas."""
        def look():
            try:
                found = self.partitions(topic)
            except OSError:
                return False
            return len(found) == partitions and all(len(isr) == count for _, isr in found.values())
        until(look, f"{count} in-sync replicas of {topic}", seconds)

    def port(self, node):
        return self.cluster.state["kafka"][NODES.index(node)]

    def load(self, topic="load", acked=5000, **settings):
        """A topic under load, once so many records are acknowledged."""
        self.create(topic)
        load = Load(self.cluster.bootstrap, topic, PARTITIONS, **settings).start()
        load.wait_acked(acked)
        return load

    def produce(self, topic, records, among=NODES, seconds=15):
        """A bare Produce to the leader of partition 0, followed for as long as it moves."""
        deadline = time.monotonic() + seconds
        while True:
            with Broker(self.port(self.leader(topic, among=among))) as broker:
                answer = broker.produce(topic, 0, records)
            if answer[0] != "NOT_LEADER_OR_FOLLOWER" or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def latest(self, topic, partition, among, seconds=30):
        """ListOffsets(latest) of whoever leads, bare: librdkafka's own call stays with a dead leader."""
        deadline = time.monotonic() + seconds
        while True:
            with Broker(self.port(self.leader(topic, partition, among=among))) as broker:
                error, end = broker.list_offset(topic, partition, -1)
            if error == "NONE":
                return end
            must(time.monotonic() < deadline, f"{topic}/{partition}: ListOffsets is refused: {error}")
            time.sleep(0.05)

    def restart(self, node):
        self.cluster.start_node(node)
        self.cluster.wait_healthy()


def report_gap(load, goal=True):
    gap = load.longest_gap()
    grade = ""
    if goal:
        grade = f" (goal < {GAP_GOAL_SECONDS:g} s: {'reached' if gap < GAP_GOAL_SECONDS else 'good' if gap < GAP_GOOD_SECONDS else 'MISSED'})"
    print(f"  longest gap between acks of a partition: {gap * 1000:.0f} ms{grade}")


def finish(scene, load):
    """No record has failed, and each is read back."""
    load.stop()
    must(load.failed() == 0, f"records failed: {load.errors}")
    scene.cluster.wait_healthy()
    read = judge(load, scene.cluster.bootstrap)
    print(f"  {read} acknowledged records read once and in order; none failed")


def kill_leader(scene):
    """kill -9 of a leader, three times; each time it comes back."""
    load = scene.load()
    for _ in range(3):
        victim = scene.leader("load")
        load.forget_gaps()
        scene.cluster.kill(victim)
        time.sleep(scene.args.seconds)
        load.wait_acked(1000)
        print(f"  node {victim} killed")
        report_gap(load)
        scene.restart(victim)
        scene.in_sync("load", 3)
    finish(scene, load)


def kill_follower(scene):
    """kill -9 of a node that does not lead partition 0; it comes back."""
    load = scene.load()
    victim = next(node for node in NODES if node != scene.leader("load"))
    load.forget_gaps()
    scene.cluster.kill(victim)
    time.sleep(scene.args.seconds)
    load.wait_acked(1000)
    report_gap(load)
    scene.restart(victim)
    scene.in_sync("load", 3)
    finish(scene, load)


def pause_leader(scene):
    """SIGSTOP of a leader for 10 s: what it believed when it wakes must harm nobody."""
    # A stopped process keeps its sockets open: the client notices by its own timeout.
    load = scene.load(**{"socket.timeout.ms": 3000, "request.timeout.ms": 2000})
    victim = scene.leader("load")
    load.forget_gaps()
    scene.cluster.pause(victim)
    others = [node for node in NODES if node != victim]
    began = time.monotonic()
    scene.leader("load", among=others)
    print(f"  a new leader is named {(time.monotonic() - began) * 1000:.0f} ms after SIGSTOP")
    time.sleep(max(0, 10 - (time.monotonic() - began)))
    scene.cluster.resume(victim)
    load.wait_acked(5000)
    report_gap(load, goal=False)
    scene.in_sync("load", 3)
    finish(scene, load)


def kill_all(scene):
    """kill -9 of all three at once, and restart."""
    load = scene.load(acked=20_000)
    for node in NODES:
        scene.cluster.signal(node, 9)
    for node in NODES:
        scene.cluster.wait_gone(node)
    time.sleep(1)
    for node in NODES:
        scene.cluster.start_node(node)
    scene.cluster.wait_healthy()
    load.wait_acked(5000)
    report_gap(load, goal=False)
    finish(scene, load)


def terminate_each(scene):
    """SIGTERM of each node in turn under load: exit status 0 and no failed record."""
    load = scene.load()
    for node in NODES:
        load.forget_gaps()
        status = scene.cluster.terminate(node)
        must(status == 0, f"node {node} ended with status {status}")
        load.wait_acked(2000)
        print(f"  node {node} drained")
        report_gap(load)
        scene.restart(node)
        scene.in_sync("load", 3)
    finish(scene, load)


def insync_matrix(scene):
    """min.insync.replicas 1, 2, 3 against 3, 2, 1 living replicas, the bare answers to acks=all."""
    for least in (1, 2, 3):
        topic = f"min-{least}"
        scene.create(topic, partitions=1, min_insync_replicas=least)
    faults = []
    maybe = {least: 0 for least in (1, 2, 3)}
    living = list(NODES)
    for alive in (3, 2, 1):
        if alive == 1:
            # The one that is left has to be the one that led: only a leader can say what is missing.
            for least in (1, 2, 3):
                lead(scene, f"min-{least}", living[0])
        while len(living) > alive:
            scene.cluster.kill(living.pop())
        for least in (1, 2, 3):
            topic = f"min-{least}"
            leader = scene.leader(topic, among=living) if alive >= 2 else living[0]
            until_isr(scene, topic, alive)
            with Broker(scene.port(leader)) as broker:
                end_before = broker.list_offset(topic, 0, -1)
                answer, offset = broker.produce(topic, 0, batch([b"matrix"]))
                end_after = broker.list_offset(topic, 0, -1)
            # A single one of three is no majority: whatever min says, nothing is acknowledged. With
            # min 1 it may be appended while the lease lasts; then its fate is open.
            allowed = {"NONE"} if alive >= 2 and alive >= least else {"NOT_ENOUGH_REPLICAS"}
            if alive == 1 and least == 1:
                allowed |= {"NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"}
            maybe[least] += answer == "REQUEST_TIMED_OUT"
            print(f"  min.insync.replicas={least}, {alive} alive: {answer}")
            if answer not in allowed:
                faults.append(f"min {least}, {alive} alive: {answer}, not {sorted(allowed)}")
            if answer != "NONE" and end_before[0] == end_after[0] == "NONE" and end_before != end_after:
                faults.append(f"min {least}, {alive} alive: refused, but the end moved {end_before} -> {end_after}")
    must(not faults, "; ".join(faults))
    for node in NODES:
        if node not in living:
            scene.cluster.start_node(node)
    scene.cluster.wait_healthy()
    for least in (1, 2, 3):
        until_isr(scene, f"min-{least}", 3)
        answer, offset = scene.produce(f"min-{least}", batch([b"healed"]))
        accepted = sum(1 for alive in (3, 2) if alive >= least)
        due = range(accepted, accepted + maybe[least] + 1)
        must(answer == "NONE" and offset in due, f"healed: {answer} at {offset}, due at {due}")


def lead(scene, topic, node):
    """Moves the leadership of partition 0 to a node."""
    if scene.leader(topic) != node:
        scene.cluster.corduroy("partition", "lead", f"{topic}/0", str(node))
        scene.leader(topic, among=[node])


def until_isr(scene, topic, alive):
    """As far as a majority lives, waits for the in-sync set to show the dead as gone."""
    if alive >= 2:
        scene.in_sync(topic, alive, partitions=1, seconds=30)
    else:
        time.sleep(1)


def latest_offset(scene):
    """After each of 30 failovers ListOffsets(latest) is past the last acknowledged offset."""
    load = scene.load(acked=2000, rate=5000)
    for number in range(30):
        victim = scene.leader("load", partition=number % PARTITIONS)
        scene.cluster.kill(victim)
        others = [node for node in NODES if node != victim]
        for partition in range(PARTITIONS):
            acked = load.high_acked(partition)
            end = scene.latest("load", partition, others)
            must(end > acked, f"failover {number}, partition {partition}: latest {end}, acknowledged {acked}")
        scene.cluster.start_node(victim)
        scene.in_sync("load", 3)
    finish(scene, load)


def recreate(scene):
    """Delete and recreate a topic 20 times under load: never a record of an ancestor."""
    other = scene.load("other", acked=1000, rate=2000)
    for generation in range(20):
        scene.create("phoenix")
        producer = Producer({
            "bootstrap.servers": scene.cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": 10_000,
        })  # fmt: skip
        failed = []
        for number in range(2000):
            producer.produce(
                "phoenix", value=b"%d:%d" % (generation, number), partition=number % PARTITIONS,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        must(producer.flush(30) == 0 and not failed, f"generation {generation}: {failed[:1]}")
        counts = [0] * PARTITIONS
        for partition, offset, value in read_all(scene.cluster.bootstrap, "phoenix", PARTITIONS):
            owner, number = (int(part) for part in value.split(b":"))
            must(owner == generation, f"generation {generation} shows {value!r} at {partition}@{offset}")
            must(offset == counts[partition] == number // PARTITIONS, f"{value!r} stands at {partition}@{offset}")
            counts[partition] += 1
        must(sum(counts) == 2000, f"generation {generation}: {sum(counts)} of 2000 records")
        # The deletion meets records on their way; what becomes of them is nobody's promise.
        for number in range(500):
            producer.produce("phoenix", value=b"%d:late" % generation, partition=number % PARTITIONS)
        producer.poll(0)
        scene.admin.delete_topics(["phoenix"])["phoenix"].result(30)
        producer.purge()
        producer.flush(10)
        del producer
        until(lambda: "phoenix" not in scene.admin.list_topics(timeout=10).topics, "the deleted topic leaves the list")
    print("  20 generations")
    finish(scene, other)


def hibernated(scene):
    """An idle partition that sleeps takes a write at once."""
    scene.create("idle", partitions=1)
    leader = scene.leader("idle")
    with Broker(scene.port(leader)) as broker:
        awake = []
        for _ in range(20):
            began = time.perf_counter()
            must(broker.produce("idle", 0, batch([b"x"]))[0] == "NONE", "a write to a partition that is awake")
            awake.append(time.perf_counter() - began)
        asleep = []
        for _ in range(3):
            time.sleep(8)
            began = time.perf_counter()
            answer, _ = broker.produce("idle", 0, batch([b"x"]))
            asleep.append(time.perf_counter() - began)
            must(answer == "NONE", f"a write to a partition that sleeps: {answer}")
    print(f"  awake {sorted(awake)[10] * 1000:.1f} ms, after 8 s of sleep {max(asleep) * 1000:.1f} ms")
    must(max(asleep) < 1, "waking takes over a second")


def textbook(scene):
    """The lesson of every Raft course: five committed records, three that only the leader has, failover."""
    scene.create("lesson", partitions=1)
    leader = scene.leader("lesson")
    scene.in_sync("lesson", 3, partitions=1)
    followers = [node for node in NODES if node != leader]
    with Broker(scene.port(leader)) as broker:
        for number in range(5):
            answer = broker.produce("lesson", 0, batch([b"committed-%d" % number]))
            must(answer == ("NONE", number), f"committed-{number}: {answer}")
        for node in followers:
            scene.cluster.signal(node, 9)
        # acks=1 while the lease lasts: appended here, on no other disk.
        lost = [broker.produce("lesson", 0, batch([b"alone-%d" % number]), acks=1) for number in range(3)]
        for node in followers:
            scene.cluster.wait_gone(node)
        must([one[0] for one in lost] == ["NONE"] * 3, f"acks=1 while the lease lasts: {lost}")
        high = broker.list_offset("lesson", 0, -1)
        must(high in [("NONE", 5), ("NOT_LEADER_OR_FOLLOWER", -1)], f"the high watermark with three uncommitted: {high}")
        answers = {broker.produce("lesson", 0, batch([b"refused"]))[0] for _ in range(3)}
        must(answers == {"NOT_ENOUGH_REPLICAS"}, f"acks=all with one replica of min 2: {answers}")
    seen = [value for _, _, value in read_all_quietly(scene, "lesson", 5)]
    must(not any(value.startswith(b"alone") for value in seen), f"a consumer saw uncommitted records: {seen}")
    scene.cluster.kill(leader)
    for node in followers:
        scene.cluster.start_node(node)
    heir = scene.leader("lesson", among=followers)
    with Broker(scene.port(heir)) as broker:
        until(lambda: broker.produce("lesson", 0, batch([b"after"]))[0] == "NONE", "a write to the heir", 30)
    scene.restart(leader)
    scene.in_sync("lesson", 3, partitions=1)
    values = [value for _, _, value in read_all(scene.cluster.bootstrap, "lesson", 1)]
    must(values == [b"committed-%d" % number for number in range(5)] + [b"after"], f"read {values}")
    # The old leader, leading again, tells the same.
    lead(scene, "lesson", leader)
    again = [value for _, _, value in read_all(scene.cluster.bootstrap, "lesson", 1)]
    must(again == values, f"the old leader shows {again}")
    print("  the committed five survive, the other three are gone, nobody saw them")


def read_all_quietly(scene, topic, count):
    """What a consumer gets that asks a leader without its majority: up to `count` records or nothing."""
    try:
        yield from read_all(scene.cluster.bootstrap, topic, 1, seconds=5)
    except Exception as error:  # librdkafka's or the deadline's: a refusal is an answer here
        print(f"  (a consumer without a majority: {str(error)[:80]})")


def behind_purge(scene):
    """A follower behind the purge point is rebuilt, leads, and knows a producer's last five batches."""
    scene.create("short", partitions=1, segment_bytes=1 << 20, retention_bytes=2 << 20)
    leader = scene.leader("short")
    scene.in_sync("short", 3, partitions=1)
    victim = next(node for node in NODES if node != leader)
    with Broker(scene.port(leader)) as broker:
        producer_id, epoch = broker.init_producer_id()
        first = batch([b"before"], producer_id, epoch, 0)
        must(broker.produce("short", 0, first) == ("NONE", 0), "the first batch")
        scene.cluster.kill(victim)
        batches, offsets = [], []
        for number in range(5):
            batches.append(batch([b"%d-a" % number, b"%d-b" % number], producer_id, epoch, 1 + 2 * number))
            answer, offset = broker.produce("short", 0, batches[-1])
            must(answer == "NONE", f"batch {number}: {answer}")
            offsets.append(offset)
        filler = batch([b"x" * 100_000] * 5)

        def purged():
            must(broker.produce("short", 0, filler)[0] == "NONE", "filling")
            return broker.list_offset("short", 0, -2)[1] > offsets[-1]

        until(purged, "the log start passes the producer's batches", 90)
    scene.restart(victim)
    scene.in_sync("short", 3, partitions=1)
    lead(scene, "short", victim)
    with Broker(scene.port(victim)) as broker:
        answers = [broker.produce("short", 0, one) for one in batches]
        must(answers == [("NONE", offset) for offset in offsets], f"duplicates answered {answers}, originals at {offsets}")
        fresh = broker.produce("short", 0, batch([b"next"], producer_id, epoch, 11))
        must(fresh[0] == "NONE", f"the producer's next batch: {fresh}")
    print(f"  node {victim} answers its duplicates at {offsets}")


# librdkafka asks for every topic that it has met, in a way that creates it where that is on.
recreate.overrides = ["auto.create.topics.enable=false"]
# By default a look every five minutes.
behind_purge.overrides = ["log.retention.check.interval.ms=1000"]

SCENARIOS = {
    "kill-leader": kill_leader,
    "kill-follower": kill_follower,
    "pause-leader": pause_leader,
    "kill-all": kill_all,
    "terminate-each": terminate_each,
    "insync-matrix": insync_matrix,
    "latest-offset": latest_offset,
    "recreate": recreate,
    "hibernated": hibernated,
    "textbook": textbook,
    "behind-purge": behind_purge,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=3, help="of load after each fault (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for every node")
    args = parser.parse_args()
    unknown = set(args.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    failed = []
    chosen = args.scenarios or list(SCENARIOS)
    for name in chosen:
        directory = Path(tempfile.mkdtemp(prefix=f"corduroy-{name}-"))
        print(f"{name}: {SCENARIOS[name].__doc__}", flush=True)
        began = time.monotonic()
        scene = None
        try:
            scenario = SCENARIOS[name]
            scene = Scene(directory, args, getattr(scenario, "overrides", ()))
            scenario(scene)
            print(f"ok      {name} ({time.monotonic() - began:.0f} s)", flush=True)
        except Exception as error:
            failed.append(name)
            print(f"FAILED  {name} ({time.monotonic() - began:.0f} s): {type(error).__name__}: {error}", flush=True)
            print(f"        logs and data: {directory}", flush=True)
        finally:
            if scene is not None:
                scene.cluster.stop()
            if name not in failed:
                shutil.rmtree(directory, ignore_errors=True)
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


main()
