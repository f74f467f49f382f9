"""kafka-python: admin, idempotent produce in every codec, read back by assign; the word list."""

import time
from contextlib import closing

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from expected import CODECS, FIRST_TIMESTAMP_MS, PARTITIONS, RECORDS, Read, check, must, plan, until
from words import program


def produce(brokers, topic, codec, records):
    producer = KafkaProducer(
        bootstrap_servers=brokers.split(","),
        enable_idempotence=True,
        acks="all",
        compression_type=None if codec == "none" else codec,
        linger_ms=5,
    )
    try:
        futures = [
            producer.send(
                topic, value=record.value, key=record.key, partition=record.partition,
                headers=record.headers, timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]  # fmt: skip
        producer.flush(60)
        return [future.get(10).offset for future in futures]
    finally:
        producer.close(10)


def consumer_of(brokers):
    return closing(
        KafkaConsumer(
            bootstrap_servers=brokers.split(","), group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", check_crcs=True
        )
    )


def read_all(consumer, topic):
    """Every record of every partition, up to the ends of now."""
    partitions = [TopicPartition(topic, one) for one in sorted(consumer.partitions_for_topic(topic))]
    count = sum(consumer.end_offsets(partitions).values())
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    read = []
    deadline = time.monotonic() + 60
    while len(read) < count and time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=1000).values():
            read += [
                Read(m.partition, m.offset, m.key, m.value, [tuple(h) for h in m.headers], m.timestamp) for m in messages
            ]
    must(len(read) == count, f"{topic}: read {len(read)} of {count}")
    return read


def consume(brokers, topic):
    with consumer_of(brokers) as consumer:
        read = read_all(consumer, topic)
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(partitions)
        must(set(ends.values()) == {RECORDS // PARTITIONS}, f"end offsets: {ends}")
        half = RECORDS // 2
        found = consumer.offsets_for_times({partitions[0]: FIRST_TIMESTAMP_MS + half})[partitions[0]]
        must(found.offset == -(-half // PARTITIONS), f"offset for a time: {found.offset}")
        return read


def create(admin, topic):
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], timeout_ms=30_000)
    until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == PARTITIONS, "six partitions described")


def smoke(brokers):
    with closing(KafkaAdminClient(bootstrap_servers=brokers.split(","))) as admin:
        for codec in CODECS:
            topic = f"kafka-python-{codec}"
            create(admin, topic)
            sent = plan("kafka-python", codec, null_header=False)
            offsets = produce(brokers, topic, codec, sent)
            check(sent, consume(brokers, topic), offsets)

            admin.delete_topics([topic], timeout_ms=30_000)
            until(lambda: topic not in admin.list_topics(), "the deleted topic leaves the list")
            print(f"kafka-python {codec}: {len(sent)} records")


def produce_words(brokers, topic, codec, records):
    with closing(KafkaAdminClient(bootstrap_servers=brokers.split(","))) as admin:
        create(admin, topic)
    produce(brokers, topic, codec, records)


def read_words(brokers, topic):
    with consumer_of(brokers) as consumer:
        return read_all(consumer, topic)


program(smoke, produce_words, read_words)
