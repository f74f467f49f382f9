"""Group members of three foreign clients and our own behind one face: what was read when, and every rebalance.

Times are seconds of the monotonic clock, which the Java process shares.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaConnectionError

from expected import must

SESSION_MS, HEARTBEAT_MS = 15_000, 1_000


class Member:
    """What every member tells. `events`: (time, "assigned" | "revoked" | "lost", partitions)."""

    kind = "?"

    def __init__(self, name, group, topics, **settings):
        self.name, self.group, self.topics, self.settings = name, group, list(topics), settings
        self.owned = set()
        self.events, self.reads, self.errors = [], [], []
        self.generation = None
        self.generations = []

    def note(self, kind, partitions, when=None):
        self.events.append((time.monotonic() if when is None else when, kind, frozenset(partitions)))
        if kind == "assigned":
            self.owned = self.owned | set(partitions)
        else:
            self.owned = self.owned - set(partitions)

    def note_generation(self, generation):
        if generation is not None and generation != self.generation:
            self.generation = generation
            self.generations.append((time.monotonic(), generation))

    def rebalances(self, since):
        """Callbacks since a moment that had partitions in them, or generations."""
        return [event for event in self.events if event[0] >= since and event[2]] + [
            (when, "generation", number) for when, number in self.generations if when >= since
        ]


class Threaded(Member):
    def start(self):
        self.stopping = threading.Event()
        self.commands = []
        self.trouble = None
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()
        return self

    def live(self):
        try:
            self.run()
        except Exception as error:
            self.trouble = error
            self.errors.append((time.monotonic(), repr(error)))

    def stop(self, seconds=30):
        """Closes the client: a dynamic member leaves its group."""
        self.stopping.set()
        self.thread.join(seconds)
        must(not self.thread.is_alive(), f"{self.name} ({self.kind}) does not close within {seconds} s")
        must(self.trouble is None, f"{self.name} ({self.kind}) broke: {self.trouble!r}")

    def ask_to_stop(self):
        self.stopping.set()


class Rdkafka(Threaded):
    """confluent-kafka, that is librdkafka."""

    kind = "librdkafka"

    def __init__(self, name, group, topics, brokers, instance=None, strategy="range", **settings):
        super().__init__(name, group, topics, **settings)
        self.config = {
            "bootstrap.servers": brokers,
            "client.id": name,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 500,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
        }
        if settings.get("group.protocol") != "consumer":
            self.config |= {
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        if instance:
            self.config["group.instance.id"] = instance
        self.config |= settings

    def run(self):
        keys = lambda partitions: [(p.topic, p.partition) for p in partitions]  # noqa: E731
        consumer = Consumer({**self.config, "error_cb": lambda error: self.errors.append((time.monotonic(), str(error)))})
        self.consumer = consumer
        try:
            consumer.subscribe(
                self.topics,
                on_assign=lambda _, partitions: self.note("assigned", keys(partitions)),
                on_revoke=lambda _, partitions: self.note("revoked", keys(partitions)),
                on_lost=lambda _, partitions: self.note("lost", keys(partitions)),
            )
            while not self.stopping.is_set():
                message = consumer.poll(0.05)
                if message is None:
                    continue
                if message.error():
                    if message.error().code() != KafkaError._PARTITION_EOF:
                        self.errors.append((time.monotonic(), str(message.error())))
                        if message.error().fatal():
                            raise RuntimeError(str(message.error()))
                    continue
                self.reads.append(
                    (time.monotonic(), message.topic(), message.partition(), message.offset(), message.value())
                )
        finally:
            consumer.close()


class KafkaPython(Threaded):
    kind = "kafka-python"
    ASSIGNORS = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def __init__(self, name, group, topics, brokers, instance=None, strategy="range", **settings):
        super().__init__(name, group, topics, **settings)
        self.config = {
            "bootstrap_servers": brokers.split(","),
            "client_id": name,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": True,
            "auto_commit_interval_ms": 500,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "partition_assignment_strategy": [self.ASSIGNORS[strategy]],
            "reconnect_backoff_ms": 20,
            "reconnect_backoff_max_ms": 500,
        }
        if instance:
            self.config["group_instance_id"] = instance
        self.config |= settings

    def run(self):
        member = self
        keys = lambda partitions: [(p.topic, p.partition) for p in partitions]  # noqa: E731

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked):
                member.note("revoked", keys(revoked))

            def on_partitions_assigned(self, assigned):
                member.note("assigned", keys(assigned))

            def on_partitions_lost(self, lost):
                member.note("lost", keys(lost))

        consumer = KafkaConsumer(**self.config)
        try:
            consumer.subscribe(self.topics, listener=Listener())
            while not self.stopping.is_set():
                try:
                    polled = consumer.poll(timeout_ms=50)
                except KafkaConnectionError as error:
                    # It tells its user of a broker that has died instead of looking for the next one
                    # by itself; a user would poll again.
                    self.errors.append((time.monotonic(), repr(error)))
                    continue
                for messages in polled.values():
                    now = time.monotonic()
                    self.reads += [(now, m.topic, m.partition, m.offset, m.value) for m in messages]
                generation = consumer._coordinator._generation.generation_id
                self.note_generation(generation if generation >= 0 else None)
        finally:
            consumer.close()


class JavaMembers:
    """One Java process in which Java members live."""

    def __init__(self, java, brokers, log):
        self.members, self.brokers = {}, brokers
        self.log = open(log, "ab")
        self.process = subprocess.Popen(
            [*java, "Members"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1
        )
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        for line in self.process.stdout:
            name, nanos, kind, words = line.rstrip("\n").split("\t", 3)
            member, when = self.members[name], int(nanos) / 1e9
            match kind:
                case "assigned" | "revoked" | "lost":
                    parts = [part.rsplit(":", 1) for part in words.split(",") if part]
                    member.note(kind, [(topic, int(number)) for topic, number in parts], when)
                case "generation":
                    member.note_generation(int(words))
                case "read":
                    topic, partition, offset, value = words.split("\t")
                    member.reads.append((when, topic, int(partition), int(offset), value.encode()))
                case "error":
                    member.errors.append((when, words))
                    member.trouble = words
                case "closed":
                    member.closed.set()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        """Without a farewell to anybody."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.thread.join(10)
        self.log.close()


class JavaMember(Member):
    kind = "java"
    ASSIGNORS = {
        "range": "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    }

    def __init__(self, java, name, group, topics, instance=None, strategy="range", pattern=None, **settings):
        super().__init__(name, group, topics, **settings)
        self.java, self.closed, self.trouble = java, threading.Event(), None
        config = {
            "bootstrap.servers": java.brokers,
            "client.id": name,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "true",
            "auto.commit.interval.ms": "500",
            "reconnect.backoff.ms": "20",
            "reconnect.backoff.max.ms": "500",
        }
        if settings.get("group.protocol") != "consumer":
            config |= {
                "partition.assignment.strategy": self.ASSIGNORS[strategy],
                "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_MS),
            }
        if instance:
            config["group.instance.id"] = instance
        self.config = {**config, **settings}
        self.subscribe = ["regex", pattern] if pattern else ["topics", ",".join(topics)]

    def start(self):
        self.java.members[self.name] = self
        pairs = [f"{key}={value}" for key, value in self.config.items()]
        self.java.tell("\t".join(["start", self.name, *self.subscribe, *pairs]))
        return self

    def ask_to_stop(self):
        self.java.tell(f"stop\t{self.name}")

    def stop(self, seconds=30):
        self.ask_to_stop()
        must(self.closed.wait(seconds), f"{self.name} (java) does not close within {seconds} s")
        must(self.trouble is None, f"{self.name} (java) broke: {self.trouble}")


class OwnClient(Member):
    """Our own client: `client/examples/group_member.rs`, a process for each member.

    An event's time is that of its line's arrival here.
    """

    kind = "ours"
    NEEDS_SECONDS = 30  # to finish a join (10 s), to commit (10 s) and to leave (10 s), at most

    def __init__(self, program, log, name, group, topics, brokers, instance=None, strategy="range", pattern=None, **settings):
        super().__init__(name, group, topics, **settings)
        self.program, self.log, self.trouble, self.process = program, log, None, None
        config = {
            "client.id": name,
            "auto.commit.interval.ms": "500",
            "reconnect.backoff.ms": "20",
            "reconnect.backoff.max.ms": "500",
        }
        if settings.get("group.protocol") != "consumer":
            config |= {
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_MS),
            }
        if instance:
            config["group.instance.id"] = instance
        config |= settings
        what = ["--matching", pattern] if pattern else [",".join(topics)]
        self.words = [group, *what, "--brokers", brokers, "--from", "earliest"]
        for key, value in config.items():
            self.words += ["--set", f"{key}={value}"]

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, *self.words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()
        return self

    def listen(self):
        for line in self.process.stdout:
            now, told = time.monotonic(), json.loads(line)
            match told["what"]:
                case "assigned" | "revoked" | "lost" as kind:
                    self.note_generation(told.get("generation"))
                    self.note(kind, [tuple(at) for at in told["partitions"]], now)
                case "generation":
                    self.note_generation(told["generation"])
                case "batch":
                    topic, partition = told["topic"], told["partition"]
                    self.reads += [(now, topic, partition, offset, (value or "").encode()) for offset, value in told["records"]]
                case "error":
                    self.errors.append((now, told["text"]))
                    self.trouble = told["text"]

    def ask_to_stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def stop(self, seconds=30):
        self.ask_to_stop()
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        must(status is not None, f"{self.name} (ours) does not close within {seconds} s")
        self.thread.join(5)
        must(self.trouble is None and status == 0, f"{self.name} (ours) ends with {status}: {self.trouble}")

    def end(self):
        """Waits for a member that was asked to stop; one that does not is killed."""
        if self.process:
            try:
                self.process.wait(self.NEEDS_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.thread.join(5)


class Ticker:
    """A slow producer that reaches every partition often: what pauses are measured against."""

    def __init__(self, brokers, topic, partitions, every_seconds=0.05):
        self.topic, self.partitions, self.every = topic, partitions, every_seconds
        self.acks = []  # (time, topic, partition, offset, value)
        self.sent, self.failed = 0, []
        self.stopping = threading.Event()
        self.producer = Producer({
            "bootstrap.servers": brokers, "enable.idempotence": True, "acks": "all", "linger.ms": 1,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20,
        })  # fmt: skip
        self.thread = threading.Thread(target=self.run, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def note(self, error, message):
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acks.append((time.monotonic(), self.topic, message.partition(), message.offset(), message.value()))

    def run(self):
        due = time.monotonic()
        while not self.stopping.is_set():
            for partition in range(self.partitions):
                self.producer.produce(self.topic, f"{partition}:{self.sent}".encode(), partition=partition, on_delivery=self.note)
                self.sent += 1
            due += self.every
            self.producer.poll(max(0, due - time.monotonic()))

    def stop(self):
        self.stopping.set()
        self.thread.join(10)
        must(self.producer.flush(60) == 0, "records are unsent after 60 s")
        must(not self.failed, f"{len(self.failed)} records were refused, the first: {self.failed[:1]}")


def longest_gap(moments, since, until=None):
    """The longest time without an entry of one partition: (seconds, partition, when it began)."""
    until = time.monotonic() if until is None else until
    last, longest = {}, (0.0, None, since)
    for when, topic, partition, *_ in sorted(moments, key=lambda row: row[0]):
        if when > until:
            break
        before = max(last.get((topic, partition), since), since)
        if when - before > longest[0]:
            longest = (when - before, (topic, partition), before)
        last[(topic, partition)] = when
    for key, before in last.items():
        if until - max(before, since) > longest[0]:
            longest = (until - max(before, since), key, before)
    return longest


def spread(members, topic, partitions):
    """Whether each partition has exactly one owner among the members."""
    owned = [one for member in members for one in member.owned]
    return sorted(owned) == sorted((topic, partition) for partition in range(partitions))


def java_command(build):
    """How to run a Java program of this directory, as `tests/clients/groups` has compiled it."""
    build = Path(build)
    return ["java", "-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", f"{build}/java/classes:{build}/java/lib/*"]


def dump(members, file=sys.stderr):
    """What a failed scenario wants to know."""
    for member in members:
        print(json.dumps({
            "member": member.name, "kind": member.kind, "owned": sorted(map(str, member.owned)),
            "events": [(round(t, 2), kind, sorted(map(str, p))[:4]) for t, kind, p in member.events[-12:]],
            "generations": [(round(t, 2), n) for t, n in member.generations[-6:]],
            "errors": [(round(t, 2), e[:160]) for t, e in member.errors[-5:]], "reads": len(member.reads),
            "last read": round(member.reads[-1][0], 2) if member.reads else None,
        }), file=file)  # fmt: skip
