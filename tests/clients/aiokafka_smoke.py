"""aiokafka: admin, idempotent produce in every codec, read back by assign."""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from expected import CODECS, FIRST_TIMESTAMP_MS, PARTITIONS, RECORDS, Read, check, must, plan


async def produce(brokers, topic, codec, records):
    producer = AIOKafkaProducer(
        bootstrap_servers=brokers,
        enable_idempotence=True,
        acks="all",
        compression_type=None if codec == "none" else codec,
        linger_ms=5,
    )
    await producer.start()
    try:
        futures = [
            await producer.send(
                topic, value=record.value, key=record.key, partition=record.partition,
                headers=record.headers, timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]  # fmt: skip
        return [result.offset for result in await asyncio.wait_for(asyncio.gather(*futures), 30)]
    finally:
        await producer.stop()


async def consume(brokers, topic):
    consumer = AIOKafkaConsumer(
        bootstrap_servers=brokers, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", check_crcs=True
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        read = []
        deadline = time.monotonic() + 30
        while len(read) < RECORDS and time.monotonic() < deadline:
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                read += [
                    Read(m.partition, m.offset, m.key, m.value, [tuple(h) for h in m.headers], m.timestamp)
                    for m in messages
                ]
        ends = await consumer.end_offsets(partitions)
        must(set(ends.values()) == {RECORDS // PARTITIONS}, f"end offsets: {ends}")
        half = RECORDS // 2
        found = (await consumer.offsets_for_times({partitions[0]: FIRST_TIMESTAMP_MS + half}))[partitions[0]]
        must(found.offset == -(-half // PARTITIONS), f"offset for a time: {found.offset}")
        return read
    finally:
        await consumer.stop()


async def main():
    brokers = sys.argv[1].split(",")
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        for codec in CODECS:
            topic = f"aiokafka-{codec}"
            created = await admin.create_topics([NewTopic(topic, PARTITIONS, 3)], timeout_ms=30_000)
            must(all(error[1] == 0 for error in created.topic_errors), f"created: {created}")
            deadline = time.monotonic() + 10
            while len((described := (await admin.describe_topics([topic]))[0])["partitions"]) != PARTITIONS:
                must(time.monotonic() < deadline, f"described: {described}")
                await asyncio.sleep(0.05)

            sent = plan("aiokafka", codec)
            offsets = await produce(brokers, topic, codec, sent)
            check(sent, await consume(brokers, topic), offsets)

            deleted = await admin.delete_topics([topic], timeout_ms=30_000)
            must(all(error[1] == 0 for error in deleted.topic_error_codes), f"deleted: {deleted}")
            deadline = time.monotonic() + 10
            while topic in await admin.list_topics():
                must(time.monotonic() < deadline, "the deleted topic is still listed")
                await asyncio.sleep(0.1)
            print(f"aiokafka {codec}: {len(sent)} records")
    finally:
        await admin.close()


asyncio.run(main())
