"""A running cluster, and what every scenario of consumer groups asks of it."""

import subprocess
import time

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cluster import NODES, Cluster
from expected import must, until
from groups_members import JavaMember, JavaMembers, KafkaPython, OwnClient, Rdkafka, Ticker, dump, java_command, longest_gap, spread
from groups_wire import Coordinators, GroupBroker


# A partition of a group of healthy members must not stand still for longer: far above what is promised
# (a second), far below what a rebalance or a lost member would take on this load.
PAUSE_MOST_SECONDS = 10

# What a pause is compared with: the same members in the time before the fault.
CALM_SECONDS = 5
# A pause that begins so soon after a fault is the fault's.
AT_ONCE_SECONDS = 0.25


class Scene:
    def __init__(self, directory, args, overrides=()):
        self.args, self.long, self.directory = args, args.long, directory
        self.cluster = Cluster(directory, [*overrides, *args.set])
        self.cluster.start()
        self.brokers = self.cluster.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.brokers})
        self.coordinators = Coordinators(self.cluster)
        self.members, self.javas, self.tickers = [], [], []
        self.java_shared = None

    # Between scenarios.

    def begin(self):
        """A clean start for a scenario on a cluster that others have used."""
        self.members, self.tickers = [], []
        for node in NODES:
            if not self.cluster.runs(node):
                self.cluster.start_node(node)
        self.cluster.wait_healthy(60)

    def end(self):
        """Ends the clients that a scenario left behind; they leave their groups."""
        for member in self.members:
            try:
                member.ask_to_stop()
            except OSError:
                pass
        for ticker in self.tickers:
            ticker.stopping.set()
        for member in self.members:
            if isinstance(member, OwnClient):
                member.end()
        for java in self.javas:
            java.kill()
        self.javas, self.java_shared = [], None

    def close(self):
        self.end()
        return self.cluster.stop()

    def tell(self):
        dump(self.members)
        for ticker in self.tickers:
            last = {}
            for when, _, partition, offset, _ in ticker.acks:
                last[partition] = (round(when, 2), offset)
            print(f"last acks of {ticker.topic}, now {time.monotonic():.2f}: {last}", flush=True)
            for node in NODES:
                try:
                    with self.broker(node, timeout=5) as broker:
                        led = broker.partitions(ticker.topic)
                        ends = {p: broker.list_offset(ticker.topic, p, -1) for p, (leader, _) in led.items() if leader == node}
                    print(f"  node {node}: (leader, in sync) {led}; ends {ends}", flush=True)
                except OSError as error:
                    print(f"  node {node}: {error!r}", flush=True)

    # Topics and records.

    def create(self, topic, partitions, **config):
        config = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2", **config})
        self.admin.create_topics([new])[topic].result(30)

    def fill(self, topic, partitions, each, timestamp_ms=None):
        """`each` records "partition:number" in every partition; timestamps count up by 1 ms."""
        failed = []
        producer = Producer({"bootstrap.servers": self.brokers, "enable.idempotence": True})
        for number in range(each):
            for partition in range(partitions):
                producer.produce(
                    topic, f"{partition}:{number}".encode(), partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                    **({} if timestamp_ms is None else {"timestamp": timestamp_ms + number}),
                )  # fmt: skip
            producer.poll(0)
        must(producer.flush(60) == 0 and not failed, f"{topic} could not be filled: {failed[:1]}")

    # Members.

    def keep(self, member):
        self.members.append(member)
        return member

    def rdkafka(self, name, group, topics, **how):
        return self.keep(Rdkafka(name, group, topics, self.brokers, **how))

    def kafka_python(self, name, group, topics, **how):
        return self.keep(KafkaPython(name, group, topics, self.brokers, **how))

    def java_process(self):
        java = JavaMembers(java_command(self.args.build), self.brokers, self.directory / "java.log")
        self.javas.append(java)
        return java

    def java(self, name, group, topics, process=None, **how):
        if process is None:
            self.java_shared = process = self.java_shared or self.java_process()
        return self.keep(JavaMember(process, name, group, topics, **how))

    def ours(self, name, group, topics, **how):
        log = self.directory / "ours.log"
        return self.keep(OwnClient(self.args.member, log, name, group, topics, self.brokers, **how))

    def mixed(self, count, group, topics, start=0, are_static=False, **how):
        """`count` members, of all clients in turn that speak the protocol."""
        makers = [self.rdkafka, self.java, self.ours]
        if how.get("group.protocol") != "consumer":
            makers.append(self.kafka_python)
        names = [f"{group}-{at}" for at in range(start, start + count)]
        return [
            makers[at % len(makers)](name, group, topics, instance=name if are_static else None, **how)
            for at, name in enumerate(names, start)
        ]

    def settled(self, members, topic, partitions, seconds=60):
        """Waits until each partition has one owner, and the coordinator calls the group stable."""
        def look():
            must(not [m for m in members if getattr(m, "trouble", None)], "a member broke")
            return spread(members, topic, partitions)
        until(look, f"{len(members)} members share {partitions} partitions", seconds)

    def stable(self, group, count, seconds=60):
        """Waits until DescribeGroups calls the group stable with so many members."""
        found = None
        def look():
            nonlocal found
            error, state, _, members = found = self.coordinators.describe(group)
            return error == "NONE" and state == "Stable" and len(members) == count
        try:
            until(look, "", seconds)
        except AssertionError:
            raise AssertionError(f"{group} is not stable with {count} members after {seconds} s, but {found[:2]} with {len(found[3])}") from None
        return found[3]

    def ticker(self, topic, partitions, *how):
        self.tickers.append(Ticker(self.brokers, topic, partitions, *how))
        return self.tickers[-1].start()

    # What a group has committed.

    def committed(self, group, topic, partitions):
        """{partition: offset}, as OffsetFetch tells it; -1: none."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in range(partitions)])
        found = self.admin.list_consumer_group_offsets([wanted])[group].result(30)
        return {one.partition: max(one.offset, -1) for one in found.topic_partitions}

    def committer(self, group):
        """A client that may commit to a group without members."""
        return Consumer({"bootstrap.servers": self.brokers, "group.id": group, "enable.auto.commit": False})

    # The cluster's side.

    def coordinator(self, group):
        return self.coordinators.find(group)

    def hand_over(self, group, node):
        """Asks the node to coordinate the group: makes it the leader of the group's partition."""
        place = f"__consumer_offsets/{self.offsets_partition(group)}"
        deadline = time.monotonic() + 15
        # A node that was just restarted is refused until it is in sync.
        while (done := self.cluster.corduroy("partition", "lead", place, str(node), check=False)).returncode != 0:
            must(time.monotonic() < deadline, f"`corduroy partition lead {place} {node}`: {done.stdout}{done.stderr}")
            time.sleep(0.1)

    def offsets_partition(self, group):
        """Kafka's own rule: Java's hash of the name, modulo the topic's partitions."""
        number = 0
        for unit in memoryview(group.encode("utf-16-be")).cast("B").tolist()[1::2] if group.isascii() else ():
            number = (31 * number + unit) & 0xFFFFFFFF
        # The hash is a signed number of 32 bits, of which `Utils.abs` takes the amount.
        amount = 0 if number == 1 << 31 else min(number, (1 << 32) - number)
        return amount % self.offsets_partitions()

    def offsets_partitions(self):
        return len(self.admin.list_topics("__consumer_offsets", timeout=15).topics["__consumer_offsets"].partitions)

    def broker(self, node, timeout=15):
        return GroupBroker(self.coordinators.port(node), timeout=timeout)

    def restart(self, node):
        """Starts the node, and waits until it has caught up: the next one may die now."""
        self.cluster.start_node(node)
        self.cluster.wait_healthy(60)

        def is_back():
            try:
                with self.broker(node) as broker:
                    topics = broker.topics()
            except OSError:
                return False
            return all(leader in NODES and len(in_sync) == 3 for led in topics.values() for leader, in_sync in led.values())
        until(is_back, f"node {node} is in sync everywhere", 60)

    def tool(self, name, *arguments, check=True, seconds=90):
        """One of Kafka's own programs by the name of its main class."""
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self.args.build}/tools/lib/*", name, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        if check:
            must(done.returncode == 0, f"{name.rsplit('.', 1)[-1]} {' '.join(arguments)}: {done.stdout[-800:]}{done.stderr[-800:]}")
        return done


def report_pause(members, ticker, since, goal=True, until_when=None):
    """Prints the longest pause of consumption beside what the producer saw, by client, and judges it."""
    reads = sorted((read[0], read[1], read[2], member.kind) for member in members for read in list(member.reads))
    pause, where, began = longest_gap(reads, since, until_when)
    acks, _, acks_began = longest_gap(ticker.acks, since, until_when)
    grade = f" (goal < 1 s: {'reached' if pause < 1 else 'MISSED'})" if goal else ""
    print(f"  longest pause of a partition's consumption: {pause * 1000:.0f} ms{grade}, of its producer: {acks * 1000:.0f} ms"
          f" ({where}, {began - since:.2f} s after the fault; the producer's {acks_began - since:.2f} s after it)", flush=True)  # fmt: skip
    by_kind = longest_gaps_by_kind(reads, since, until_when)
    print("  by client: " + ", ".join(f"{kind} {gap * 1000:.0f} ms ({at - since:.2f} s after)" for kind, (gap, at) in sorted(by_kind.items())), flush=True)
    resumed = longest_gaps_by_kind(reads, since, until_when, begins_at_once=True)
    print("  until each partition was read on: " + ", ".join(f"{kind} {gap * 1000:.0f} ms" for kind, (gap, _) in sorted(resumed.items()))
          + f"; in the {CALM_SECONDS} s before, nothing having happened: {calm_gap(reads, since) * 1000:.0f} ms", flush=True)  # fmt: skip
    must(pause < PAUSE_MOST_SECONDS, f"nobody read {where} for {pause:.1f} s")
    return pause


def longest_gaps_by_kind(reads, since, until=None, begins_at_once=False):
    """The longest gap of a partition that a client ended by reading on: {kind: (seconds, when it began)}.

    `begins_at_once`: only those that last from the fault on, without what the machine did later. What was
    under way when the fault came is read yet, so a pause may begin a little after it.
    """
    last, longest = {}, {}
    for when, topic, partition, kind in reads:
        if until is not None and when > until:
            break
        before = max(last.get((topic, partition), since), since)
        counts = not begins_at_once or before - since < AT_ONCE_SECONDS
        if counts and when - before > longest.get(kind, (0, since))[0]:
            longest[kind] = (when - before, before)
        last[(topic, partition)] = when
    return longest


def calm_gap(reads, until):
    """The longest gap of a partition in the time before a fault: what the machine itself makes of it."""
    since = until - CALM_SECONDS
    found = longest_gaps_by_kind([read for read in reads if since <= read[0]], since, until)
    return max((gap for gap, _ in found.values()), default=0)


def report_failover(cluster, topic, mark_wall, dead):
    """Prints when the living nodes knew of a node's death, and when they led in its place, in ms after it."""
    for node in NODES:
        if node == dead:
            continue
        after = {}
        for wall, told in cluster.told(node, mark_wall):
            place = (told.get("span") or {}).get("topic")
            match told["fields"].get("message"):
                case "a node is down":
                    after.setdefault("knew", wall)
                case "leads" if place == topic:
                    after.setdefault("first", wall)
                    after["last"], after["count"] = wall, after.get("count", 0) + 1
                case "leads" if place == "__consumer_offsets":
                    after["coordinates"], after["groups"] = wall, after.get("groups", 0) + 1
        ms = lambda name: f"{(after[name] - mark_wall) * 1000:.0f} ms" if name in after else "never"  # noqa: E731
        print(f"  node {node}: knew after {ms('knew')}, led {after.get('count', 0)} partitions of {topic} more after {ms('first')} to {ms('last')},"
              f" coordinated {after.get('groups', 0)} more after {ms('coordinates')}", flush=True)  # fmt: skip


def read_everything(members, ticker, seconds=60):
    """Every acked record is read by the group, at least once."""
    acked = {(topic, partition, offset) for _, topic, partition, offset, _ in ticker.acks}
    def missing():
        return acked - {read[1:4] for member in members for read in member.reads}
    deadline = time.monotonic() + seconds
    while left := missing():
        must(time.monotonic() < deadline, f"{len(left)} of {len(acked)} acked records are never read, for example {min(left)}")
        time.sleep(0.2)
    reads = sum(len(member.reads) for member in members)
    print(f"  {len(acked)} acked records read, {reads - len(acked)} of them again", flush=True)
