"""A worker that takes batches of ten, and dies by SIGKILL between the two steps of one of them.

  groups_worker.py BROKERS TOPIC GROUP process-first|commit-first librdkafka|kafka-python OUTCOME
      [--die-in-batch N] [--until OFFSET]

"Processing" is a line in the file OUTCOME: the record's offset.
"""

import argparse
import os
import signal

from confluent_kafka import Consumer
from kafka import KafkaConsumer

BATCH = 10


class Rdkafka:
    def __init__(self, args):
        self.consumer = Consumer({
            "bootstrap.servers": args.brokers, "group.id": args.group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
        })  # fmt: skip
        self.consumer.subscribe([args.topic])

    def take(self):
        offsets = []
        while len(offsets) < BATCH:
            message = self.consumer.poll(1)
            if message is not None and message.error() is None:
                offsets.append(message.offset())
        return offsets

    def commit(self):
        self.consumer.commit(asynchronous=False)

    def close(self):
        self.consumer.close()


class KafkaPython:
    def __init__(self, args):
        self.consumer = KafkaConsumer(
            args.topic, bootstrap_servers=args.brokers.split(","), group_id=args.group, auto_offset_reset="earliest",
            enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=500, max_poll_records=BATCH,
        )  # fmt: skip

    def take(self):
        offsets = []
        while len(offsets) < BATCH:
            for messages in self.consumer.poll(timeout_ms=1000, max_records=BATCH - len(offsets)).values():
                offsets += [message.offset for message in messages]
        return offsets

    def commit(self):
        self.consumer.commit()

    def close(self):
        self.consumer.close()


def main():
    parser = argparse.ArgumentParser()
    for name in ("brokers", "topic", "group", "order", "client", "outcome"):
        parser.add_argument(name)
    parser.add_argument("--die-in-batch", type=int)
    parser.add_argument("--until", type=int)
    args = parser.parse_args()
    worker = {"librdkafka": Rdkafka, "kafka-python": KafkaPython}[args.client](args)
    number = 0
    with open(args.outcome, "a") as outcome:
        def process(offsets):
            outcome.writelines(f"{offset}\n" for offset in offsets)
            outcome.flush()

        while True:
            offsets = worker.take()
            number += 1
            steps = [lambda: process(offsets), worker.commit]
            if args.order == "commit-first":
                steps.reverse()
            steps[0]()
            if number == args.die_in_batch:
                os.kill(os.getpid(), signal.SIGKILL)
            steps[1]()
            if args.until is not None and offsets[-1] + 1 >= args.until:
                break
    worker.close()


main()
