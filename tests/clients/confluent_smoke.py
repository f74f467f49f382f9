"""confluent-kafka (librdkafka): admin, idempotent produce in every codec, read back by assign; the word list."""

import time
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from expected import CODECS, FIRST_TIMESTAMP_MS, PARTITIONS, RECORDS, Read, check, must, plan, until
from words import program

# librdkafka's RD_KAFKA_PARTITION_UA.
WHERE_ITS_KEY_SAYS = -1


def produce(brokers, topic, codec, records):
    failed, offsets = [], [None] * len(records)
    producer = Producer({
        "bootstrap.servers": brokers,
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": codec,
        "linger.ms": 5,
        # As Java's does it; its own default is another.
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 1_000_000,
    })  # fmt: skip

    def on_delivery(place):
        def note(error, message):
            if error is not None:
                failed.append(error)
            else:
                offsets[place] = message.offset()
        return note

    for place, record in enumerate(records):
        producer.produce(
            topic, value=record.value, key=record.key,
            partition=WHERE_ITS_KEY_SAYS if record.partition is None else record.partition,
            headers=record.headers, timestamp=record.timestamp_ms, on_delivery=on_delivery(place),
        )  # fmt: skip
        producer.poll(0)
    must(producer.flush(60) == 0, "records are still unsent after 60 s")
    must(not failed, f"{len(failed)} records failed, the first: {failed[:1]}")
    return offsets


def consumer_of(brokers):
    return closing(Consumer({
        "bootstrap.servers": brokers,
        "group.id": "never-used",
        "enable.auto.commit": False,
        "enable.partition.eof": False,
        "check.crcs": True,
    }))  # fmt: skip


def read_all(consumer, topic):
    """Every record of every partition, up to the ends of now."""
    partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    count = sum(consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=10)[1] for one in partitions)
    consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
    read = []
    deadline = time.monotonic() + 60
    while len(read) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=1):
            if message.error():
                raise KafkaException(message.error())
            read.append(Read(
                message.partition(), message.offset(), message.key(), message.value(),
                message.headers() or [], message.timestamp()[1],
            ))  # fmt: skip
    must(len(read) == count, f"{topic}: read {len(read)} of {count}")
    return read


def consume(brokers, topic):
    with consumer_of(brokers) as consumer:
        read = read_all(consumer, topic)
        for partition in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            must((low, high) == (0, RECORDS // PARTITIONS), f"watermarks of {partition}: {low}, {high}")
        # The first record of partition 0 at or after a time in the middle.
        half = RECORDS // 2
        found = consumer.offsets_for_times([TopicPartition(topic, 0, FIRST_TIMESTAMP_MS + half)], timeout=10)[0]
        must(found.offset == -(-half // PARTITIONS), f"offset for a time: {found.offset}")
        return read


def described(admin, topic):
    partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
    if len(partitions) != PARTITIONS:
        return False
    if not all(len(p.replicas) == 3 and p.leader in p.replicas for p in partitions.values()):
        return False
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        config = admin.describe_configs([resource])[resource].result(10)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise
    return config["min.insync.replicas"].value == "2"


def create(brokers, topic):
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[topic].result(30)
    until(lambda: described(admin, topic), "six partitions with three replicas, a leader and the config given")
    return admin


def smoke(brokers):
    for codec in CODECS:
        topic = f"confluent-{codec}"
        admin = create(brokers, topic)
        sent = plan("confluent", codec)
        offsets = produce(brokers, topic, codec, sent)
        check(sent, consume(brokers, topic), offsets)

        admin.delete_topics([topic])[topic].result(30)
        until(lambda: topic not in admin.list_topics(timeout=10).topics, "the deleted topic leaves the list")
        print(f"confluent-kafka {codec}: {len(sent)} records")


def produce_words(brokers, topic, codec, records):
    create(brokers, topic)
    produce(brokers, topic, codec, records)


def read_words(brokers, topic):
    with consumer_of(brokers) as consumer:
        return read_all(consumer, topic)


program(smoke, produce_words, read_words)
