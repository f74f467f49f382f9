"""aiokafka: admin, idempotent produce in every codec, read back by assign; the word list."""

import asyncio
import time
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from expected import CODECS, FIRST_TIMESTAMP_MS, PARTITIONS, RECORDS, Read, check, must, plan
from words import program


def producer_of(brokers, codec):
    return AIOKafkaProducer(
        bootstrap_servers=brokers.split(","), enable_idempotence=True, acks="all",
        compression_type=None if codec == "none" else codec, linger_ms=5,
    )  # fmt: skip


async def produce(brokers, topic, codec, records):
    async with producer_of(brokers, codec) as producer:
        futures = [
            await producer.send(
                topic, value=record.value, key=record.key, partition=record.partition,
                headers=record.headers, timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]  # fmt: skip
        return [result.offset for result in await asyncio.wait_for(asyncio.gather(*futures), 60)]


def consumer_of(brokers):
    return AIOKafkaConsumer(
        bootstrap_servers=brokers.split(","), group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", check_crcs=True
    )


async def read_all(consumer, topic, count):
    """Every record of `count` partitions, up to the ends of now."""
    partitions = [TopicPartition(topic, one) for one in range(count)]
    consumer.assign(partitions)
    count = sum((await consumer.end_offsets(partitions)).values())
    await consumer.seek_to_beginning(*partitions)
    read = []
    deadline = time.monotonic() + 60
    while len(read) < count and time.monotonic() < deadline:
        for messages in (await consumer.getmany(timeout_ms=1000)).values():
            read += [
                Read(m.partition, m.offset, m.key, m.value, [tuple(h) for h in m.headers], m.timestamp) for m in messages
            ]
    must(len(read) == count, f"{topic}: read {len(read)} of {count}")
    return read


async def consume(brokers, topic):
    async with consumer_of(brokers) as consumer:
        read = await read_all(consumer, topic, PARTITIONS)
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        ends = await consumer.end_offsets(partitions)
        must(set(ends.values()) == {RECORDS // PARTITIONS}, f"end offsets: {ends}")
        half = RECORDS // 2
        found = (await consumer.offsets_for_times({partitions[0]: FIRST_TIMESTAMP_MS + half}))[partitions[0]]
        must(found.offset == -(-half // PARTITIONS), f"offset for a time: {found.offset}")
        return read


@asynccontextmanager
async def admin_of(brokers):
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers.split(","))
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(admin, topic):
    created = await admin.create_topics([NewTopic(topic, PARTITIONS, 3)], timeout_ms=30_000)
    must(all(error[1] == 0 for error in created.topic_errors), f"created: {created}")
    deadline = time.monotonic() + 10
    while len((described := (await admin.describe_topics([topic]))[0])["partitions"]) != PARTITIONS:
        must(time.monotonic() < deadline, f"described: {described}")
        await asyncio.sleep(0.05)


async def smoke(brokers):
    async with admin_of(brokers) as admin:
        for codec in CODECS:
            topic = f"aiokafka-{codec}"
            await create(admin, topic)
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


async def produce_words(brokers, topic, codec, records):
    async with admin_of(brokers) as admin:
        await create(admin, topic)
    await produce(brokers, topic, codec, records)


async def read_words(brokers, topic):
    async with admin_of(brokers) as admin:
        count = len((await admin.describe_topics([topic]))[0]["partitions"])
    async with consumer_of(brokers) as consumer:
        return await read_all(consumer, topic, count)


def awaited(call):
    return lambda *arguments: asyncio.run(call(*arguments))


program(awaited(smoke), awaited(produce_words), awaited(read_words))
