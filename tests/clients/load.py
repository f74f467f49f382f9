"""An idempotent producer at full speed, the fate of each of its records, and the judge of them."""

import threading
import time
from array import array

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

UNKNOWN, FAILED = -1, -2
VALUE_BYTES = 200


class Load:
    """Writes `partition:sequence` to every partition, round robin, until stopped."""

    def __init__(self, brokers, topic, partitions, rate=None, **settings):
        self.topic, self.partitions, self.rate = topic, partitions, rate
        # By partition and sequence: the acked offset, UNKNOWN or FAILED.
        self.fates = [array("q") for _ in range(partitions)]
        self.last_ack = [None] * partitions
        self.gaps = [(0.0, 0.0)] * partitions  # (seconds, when it began)
        self.acked = 0
        self.errors = {}
        self.stopping = threading.Event()
        self.producer = Producer({
            "bootstrap.servers": brokers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "queue.buffering.max.messages": 20_000,
            **settings,
        })  # fmt: skip
        self.thread = threading.Thread(target=self.run, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def run(self):
        began, number = time.monotonic(), 0
        while not self.stopping.is_set():
            partition = number % self.partitions
            fates = self.fates[partition]
            sequence = len(fates)
            value = f"{partition}:{sequence}:".encode().ljust(VALUE_BYTES, b".")
            try:
                self.producer.produce(
                    self.topic, value=value, partition=partition, on_delivery=self.note(partition, sequence)
                )
            except BufferError:
                self.producer.poll(0.05)
                continue
            fates.append(UNKNOWN)
            number += 1
            if number % 64 == 0:
                self.producer.poll(0)
                if self.rate is not None:
                    ahead = number / self.rate - (time.monotonic() - began)
                    if ahead > 0:
                        self.producer.poll(ahead)

    def note(self, partition, sequence):
        def delivered(error, message):
            if error is not None:
                self.fates[partition][sequence] = FAILED
                self.errors[error.name()] = self.errors.get(error.name(), 0) + 1
                return
            self.fates[partition][sequence] = message.offset()
            self.acked += 1
            now = time.monotonic()
            before = self.last_ack[partition]
            if before is not None and now - before > self.gaps[partition][0]:
                self.gaps[partition] = (now - before, before)
            self.last_ack[partition] = now

        return delivered

    def wait_acked(self, more, seconds=60):
        """Waits until `more` records than now are acknowledged."""
        due, deadline = self.acked + more, time.monotonic() + seconds
        while self.acked < due:
            if time.monotonic() > deadline:
                raise AssertionError(f"no {more} acks within {seconds} s; errors so far: {self.errors}")
            time.sleep(0.02)

    def forget_gaps(self):
        self.gaps = [(0.0, 0.0)] * self.partitions

    def longest_gap(self):
        return max(self.gaps)[0]

    def high_acked(self, partition):
        """The highest offset acknowledged in a partition so far, -1 for none."""
        fates = self.fates[partition]
        return next((fates[at] for at in range(len(fates) - 1, -1, -1) if fates[at] >= 0), -1)

    def stop(self, seconds=90):
        """Stops and waits for the fate of every record."""
        self.stopping.set()
        self.thread.join(10)
        left = self.producer.flush(seconds)
        if left:
            raise AssertionError(f"{left} records have no fate after {seconds} s")
        return self

    def failed(self):
        return sum(self.errors.values())


def read_all(brokers, topic, partitions, seconds=120):
    """Yields (partition, offset, value) from the start of each partition to its end as of now."""
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": "never-used",
        "enable.auto.commit": False,
        "check.crcs": True,
    })  # fmt: skip
    try:
        ends = {}
        for partition in range(partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            if high > low:
                ends[partition] = high
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        deadline = time.monotonic() + seconds
        while ends:
            if time.monotonic() > deadline:
                raise AssertionError(f"reading {topic} did not reach the ends {ends} within {seconds} s")
            for message in consumer.consume(10_000, timeout=1):
                if message.error():
                    raise KafkaException(message.error())
                partition = message.partition()
                yield partition, message.offset(), message.value()
                if partition in ends and message.offset() + 1 >= ends[partition]:
                    del ends[partition]
    finally:
        consumer.close()


def judge(load, brokers):
    """Every acked record once, at its acked offset, in order; nothing that was never sent."""
    seen = [-1] * load.partitions
    found = [0] * load.partitions
    faults = []
    for partition, offset, value in read_all(brokers, load.topic, load.partitions):
        owner, sequence, _ = value.split(b":", 2)
        sequence = int(sequence)
        if int(owner) != partition or sequence >= len(load.fates[partition]):
            faults.append(f"{partition}@{offset}: {value[:40]!r} was never sent here")
            continue
        if sequence <= seen[partition]:
            faults.append(f"{partition}@{offset}: record {sequence} after {seen[partition]}: double or out of order")
        seen[partition] = max(seen[partition], sequence)
        fate = load.fates[partition][sequence]
        if fate >= 0:
            found[partition] += 1
            if fate != offset:
                faults.append(f"{partition}@{offset}: record {sequence} was acknowledged at {fate}")
        elif fate == UNKNOWN:
            faults.append(f"{partition}@{offset}: record {sequence} has no fate")
    for partition in range(load.partitions):
        acked = sum(1 for fate in load.fates[partition] if fate >= 0)
        if acked != found[partition]:
            faults.append(f"partition {partition}: {acked} acknowledged, {found[partition]} of them read: LOST")
    if faults:
        raise AssertionError("\n".join([f"{len(faults)} faults", *faults[:10]]))
    return sum(found)
