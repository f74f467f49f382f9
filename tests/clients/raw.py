"""Single Kafka requests to a broker of choice: what no client lets a test send, and the bare answer."""

import socket
import struct

from kafka.record.default_records import DefaultRecordBatchBuilder

ERRORS = {
    0: "NONE", 1: "OFFSET_OUT_OF_RANGE", 3: "UNKNOWN_TOPIC_OR_PARTITION", 5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER", 7: "REQUEST_TIMED_OUT", 19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER", 56: "KAFKA_STORAGE_ERROR", 59: "UNKNOWN_PRODUCER_ID",
}  # fmt: skip


def name(error):
    return ERRORS.get(error, f"error {error}")


def text(value):
    value = value.encode()
    return struct.pack(">h", len(value)) + value


def batch(values, producer_id=-1, producer_epoch=-1, base_sequence=-1):
    """One uncompressed record batch."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False, producer_id=producer_id,
        producer_epoch=producer_epoch, base_sequence=base_sequence, batch_size=1 << 20,
    )  # fmt: skip
    for place, value in enumerate(values):
        builder.append(place, timestamp=None, key=None, value=value, headers=[])
    return bytes(builder.build())


class Broker:
    """One connection; requests one at a time."""

    def __init__(self, port, timeout=15):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, key, version, body):
        self.correlation += 1
        frame = struct.pack(">hhi", key, version, self.correlation) + text("raw") + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self.take(struct.unpack(">i", self.take(4))[0])
        if struct.unpack_from(">i", answer)[0] != self.correlation:
            raise AssertionError("the answer is not to this request")
        return answer[4:]

    def take(self, count):
        found = bytearray()
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            found += piece
        return bytes(found)

    def produce(self, topic, partition, records, acks=-1, timeout_ms=5000):
        """Produce v7; the error's name and the base offset."""
        body = struct.pack(">h", -1) + struct.pack(">hi", acks, timeout_ms)
        body += struct.pack(">i", 1) + text(topic)
        body += struct.pack(">iii", 1, partition, len(records)) + records
        answer = self.call(0, 7, body)
        _, error, offset = struct.unpack_from(">ihq", answer, 4 + 2 + len(topic) + 4)
        return name(error), offset

    def init_producer_id(self):
        """InitProducerId v1; producer id and epoch."""
        _, error, producer_id, epoch = struct.unpack(">ihqh", self.call(22, 1, struct.pack(">hi", -1, 60_000)))
        if error:
            raise AssertionError(f"InitProducerId: {name(error)}")
        return producer_id, epoch

    def list_offset(self, topic, partition, timestamp):
        """ListOffsets v1 (-1 latest, -2 earliest); the error's name and the offset."""
        body = struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, partition, timestamp)
        answer = self.call(2, 1, body)
        _, error, _, offset = struct.unpack_from(">ihqq", answer, 4 + 2 + len(topic) + 4)
        return name(error), offset

    def partitions(self, topic):
        """Of one topic, never creating it in passing: {partition: (leader, in_sync)}."""
        return self.topics().get(topic, {})

    def topics(self):
        """Metadata v1: {topic: {partition: (leader, in_sync)}}."""
        answer = Reader(self.call(3, 1, struct.pack(">i", -1)))
        for _ in range(answer.take(">i")):
            answer.take(">i"), answer.text(), answer.take(">i"), answer.text()
        answer.take(">i")
        found = {}
        for _ in range(answer.take(">i")):
            _, name, _ = answer.take(">h"), answer.text(), answer.take(">b")
            partitions = found[name] = {}
            for _ in range(answer.take(">i")):
                _, partition, leader = answer.take(">h"), answer.take(">i"), answer.take(">i")
                _, in_sync = answer.numbers(), answer.numbers()
                partitions[partition] = (leader, in_sync)
        return found


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, layout):
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def text(self):
        length = self.take(">h")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def numbers(self):
        return [self.take(">i") for _ in range(self.take(">i"))]
