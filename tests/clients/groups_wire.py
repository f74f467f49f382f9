"""The group APIs as bare requests: members that no client would be, and the bare answers to them."""

import struct
import time

from raw import Broker, Reader, text

ERRORS = {
    0: "NONE", 3: "UNKNOWN_TOPIC_OR_PARTITION", 12: "OFFSET_METADATA_TOO_LARGE",
    14: "COORDINATOR_LOAD_IN_PROGRESS", 15: "COORDINATOR_NOT_AVAILABLE", 16: "NOT_COORDINATOR",
    22: "ILLEGAL_GENERATION", 23: "INCONSISTENT_GROUP_PROTOCOL", 24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID", 26: "INVALID_SESSION_TIMEOUT", 27: "REBALANCE_IN_PROGRESS",
    42: "INVALID_REQUEST", 68: "NON_EMPTY_GROUP", 69: "GROUP_ID_NOT_FOUND", 79: "MEMBER_ID_REQUIRED",
    81: "GROUP_MAX_SIZE_REACHED", 82: "FENCED_INSTANCE_ID", 86: "GROUP_SUBSCRIBED_TO_TOPIC",
    110: "FENCED_MEMBER_EPOCH", 111: "UNRELEASED_INSTANCE_ID", 113: "STALE_MEMBER_EPOCH",
}  # fmt: skip
# What says "ask again, perhaps elsewhere", and nothing about the member.
ELSEWHERE = {"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"}
HEARTBEAT, LEAVE, SYNC, DESCRIBE, JOIN, FIND, COMMIT, FETCH = 12, 13, 14, 15, 11, 10, 8, 9


def name(error):
    return ERRORS.get(error, f"error {error}")


def nullable(value):
    return struct.pack(">h", -1) if value is None else text(value)


def data(value):
    return struct.pack(">i", len(value)) + value


def listed(rows):
    return struct.pack(">i", len(rows)) + b"".join(rows)


def compact(rows):
    """An array of a flexible version, of fewer than 127 rows."""
    return bytes([len(rows) + 1]) + b"".join(rows)


def compact_text(value):
    value = value.encode()
    return bytes([len(value) + 1]) + value


def subscription(*topics):
    """The consumer protocol's metadata, version 0."""
    return struct.pack(">h", 0) + listed([text(topic) for topic in topics]) + data(b"")


def assigned(**topics):
    """The consumer protocol's assignment, version 0: topic=[partition, ...]."""
    rows = [text(topic) + listed([struct.pack(">i", p) for p in partitions]) for topic, partitions in topics.items()]
    return struct.pack(">h", 0) + listed(rows) + data(b"")


def partitions_of(assignment):
    """What an assignment of the consumer protocol holds: {(topic, partition)}; empty bytes hold nothing."""
    if not assignment:
        return set()
    answer, found = Answer(assignment), set()
    answer.take(">h")
    for _ in range(answer.take(">i")):
        topic = answer.text()
        found |= {(topic, partition) for partition in answer.numbers()}
    return found


class Answer(Reader):
    def bytes(self):
        length = self.take(">i")
        if length < 0:
            return None
        self.at += length
        return bytes(self.data[self.at - length : self.at])

    def error(self):
        return name(self.take(">h"))

    def rows(self, read):
        return [read() for _ in range(self.take(">i"))]

    # Flexible versions.

    def varint(self):
        value, shift = 0, 0
        while True:
            byte = self.take(">B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact_count(self):
        """Of an array; null counts as empty."""
        return max(self.varint() - 1, 0)

    def compact_text(self):
        length = self.varint() - 1
        if length < 0:
            return None
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode()

    def tags(self):
        for _ in range(self.varint()):
            self.varint()
            self.at += self.varint()


class GroupBroker(Broker):
    """One connection to one node."""

    def ask(self, key, version, body):
        return Answer(self.call(key, version, body))

    def post(self, key, version, body):
        """Sends a request whose answer is taken later, with [`GroupBroker.collect`]."""
        self.correlation += 1
        frame = struct.pack(">hhi", key, version, self.correlation) + text("raw") + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def collect(self):
        return Answer(self.take(struct.unpack(">i", self.take(4))[0])[4:])

    def find_coordinator(self, group):
        """Version 1: the error's name, node, port."""
        answer = self.ask(FIND, 1, text(group) + b"\0")
        answer.take(">i")
        error, _ = answer.error(), answer.text()
        node, _ = answer.take(">i"), answer.text()
        return error, node, answer.take(">i")

    def join_body(self, group, member="", instance=None, metadata=b"", protocol="range", session_ms=10_000,
                  rebalance_ms=10_000, kind="consumer"):  # fmt: skip
        return (
            text(group) + struct.pack(">ii", session_ms, rebalance_ms) + text(member) + nullable(instance)
            + text(kind) + listed([text(protocol) + data(metadata)])
        )  # fmt: skip

    @staticmethod
    def joined(answer):
        """JoinGroup version 5: error, generation, leader, member id, members."""
        answer.take(">i")
        error, generation = answer.error(), answer.take(">i")
        _, leader, member = answer.text(), answer.text(), answer.text()
        members = answer.rows(lambda: (answer.text(), answer.text(), answer.bytes()))
        return error, generation, leader, member, [one[0] for one in members]

    def join(self, group, **how):
        return self.joined(self.ask(JOIN, 5, self.join_body(group, **how)))

    def new_member_id(self, group, **how):
        """The id that the coordinator gives to a member that comes the first time (KIP-394)."""
        error, _, _, member, _ = self.join(group, **how)
        if error != "MEMBER_ID_REQUIRED":
            raise AssertionError(f"a first JoinGroup is answered with {error}")
        return member

    @staticmethod
    def sync_body(group, generation, member, instance=None, assignments=()):
        rows = [text(one) + data(assignment) for one, assignment in dict(assignments).items()]
        return text(group) + struct.pack(">i", generation) + text(member) + nullable(instance) + listed(rows)

    @staticmethod
    def synced(answer):
        answer.take(">i")
        return answer.error(), answer.bytes()

    def sync(self, *args, **how):
        return self.synced(self.ask(SYNC, 3, self.sync_body(*args, **how)))

    def heartbeat(self, group, generation, member, instance=None):
        answer = self.ask(HEARTBEAT, 3, text(group) + struct.pack(">i", generation) + text(member) + nullable(instance))
        answer.take(">i")
        return answer.error()

    def leave(self, group, member="", instance=None):
        answer = self.ask(LEAVE, 3, text(group) + listed([text(member) + nullable(instance)]))
        answer.take(">i")
        error = answer.error()
        codes = answer.rows(lambda: (answer.text(), answer.text(), answer.error())[2])
        return codes[0] if codes and error == "NONE" else error

    def commit(self, group, topic, offsets, generation=-1, member="", instance=None, metadata=None, epoch=-1):
        """OffsetCommit version 7 of {partition: offset}, or of such pairs in a list: {partition: error}."""
        pairs = offsets.items() if isinstance(offsets, dict) else offsets
        rows = [struct.pack(">iqi", p, offset, epoch) + nullable(metadata) for p, offset in pairs]
        body = text(group) + struct.pack(">i", generation) + text(member) + nullable(instance)
        answer = self.ask(COMMIT, 7, body + listed([text(topic) + listed(rows)]))
        answer.take(">i")
        found = {}
        for _ in range(answer.take(">i")):
            answer.text()
            found.update(answer.rows(lambda: (answer.take(">i"), answer.error())))
        return found

    def commit_for(self, group, topic, offsets, retention_ms):
        """OffsetCommit version 2 from outside of the group, of {partition: offset} that live so long: {partition: error}."""
        rows = [struct.pack(">iq", p, offset) + nullable(None) for p, offset in offsets.items()]
        body = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">q", retention_ms)
        answer = self.ask(COMMIT, 2, body + listed([text(topic) + listed(rows)]))
        found = {}
        for _ in range(answer.take(">i")):
            answer.text()
            found.update(answer.rows(lambda: (answer.take(">i"), answer.error())))
        return found

    def fetch_offsets(self, group, topic, partitions, version=5):
        """OffsetFetch version 1, 5, 8 or 9: {partition: (offset, leader epoch, metadata, error)}, the group's error."""
        if version >= 8:
            return self.fetch_offsets_of_groups(group, topic, partitions, version)
        body = text(group) + listed([text(topic) + listed([struct.pack(">i", p) for p in partitions])])
        answer = self.ask(FETCH, version, body)
        if version >= 3:
            answer.take(">i")
        found = {}
        for _ in range(answer.take(">i")):
            answer.text()
            for _ in range(answer.take(">i")):
                partition, offset = answer.take(">i"), answer.take(">q")
                epoch = answer.take(">i") if version >= 5 else None
                found[partition] = (offset, epoch, answer.text(), answer.error())
        return found, answer.error() if version >= 2 else None

    def ask_flexible(self, key, version, body):
        """With request header 2 and response header 1, which end in tagged fields."""
        self.correlation += 1
        frame = struct.pack(">hhi", key, version, self.correlation) + text("raw") + b"\0" + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self.collect()
        answer.tags()
        return answer

    def fetch_offsets_of_groups(self, group, topic, partitions, version):
        """OffsetFetch version 8 or 9, as [`GroupBroker.fetch_offsets`]."""
        member = b"\0" + struct.pack(">i", -1) if version >= 9 else b""
        topics = [compact_text(topic) + compact([struct.pack(">i", p) for p in partitions]) + b"\0"]
        body = compact([compact_text(group) + member + compact(topics) + b"\0"]) + b"\0" + b"\0"
        answer = self.ask_flexible(FETCH, version, body)
        answer.take(">i")
        found, error = {}, None
        for _ in range(answer.compact_count()):
            answer.compact_text()
            for _ in range(answer.compact_count()):
                answer.compact_text()
                for _ in range(answer.compact_count()):
                    partition, offset, epoch = answer.take(">i"), answer.take(">q"), answer.take(">i")
                    found[partition] = (offset, epoch, answer.compact_text(), answer.error())
                    answer.tags()
                answer.tags()
            error = answer.error()
            answer.tags()
        return found, error

    def describe(self, group):
        """DescribeGroups version 4: error, state, protocol, {member id: (instance, client id, assignment)}."""
        answer = self.ask(DESCRIBE, 4, listed([text(group)]) + b"\0")
        answer.take(">i"), answer.take(">i")
        error, _, state = answer.error(), answer.text(), answer.text()
        _, protocol = answer.text(), answer.text()
        members = {}
        for _ in range(answer.take(">i")):
            member, instance, client, _ = answer.text(), answer.text(), answer.text(), answer.text()
            answer.bytes()
            members[member] = (instance, client, answer.bytes())
        return error, state, protocol, members


class Coordinators:
    """Finds a group's coordinator, and follows it where it goes."""

    def __init__(self, cluster):
        self.cluster = cluster

    def port(self, node):
        return self.cluster.state["kafka"][node - 1]

    def find(self, group, seconds=20):
        """The coordinator's node, as soon as somebody names one that serves."""
        deadline, trouble = time.monotonic() + seconds, "nobody asked"
        while time.monotonic() < deadline:
            for node in (1, 2, 3):
                try:
                    with GroupBroker(self.port(node), timeout=5) as broker:
                        trouble, found, port = broker.find_coordinator(group)
                    if trouble != "NONE":
                        continue
                    with GroupBroker(port, timeout=5) as broker:
                        trouble, *_ = broker.describe(group)
                    if trouble == "NONE":
                        return found
                except OSError as error:
                    trouble = error
            time.sleep(0.05)
        raise AssertionError(f"no coordinator of {group} within {seconds} s: {trouble}")

    def connect(self, group, timeout=15, seconds=20):
        return GroupBroker(self.port(self.find(group, seconds)), timeout=timeout)

    def describe(self, group):
        with self.connect(group) as broker:
            return broker.describe(group)

    def generation(self, group, most=200):
        """The generation of a group with members: the one whose heartbeat is not refused.

        DescribeGroups does not tell it. The heartbeat is one in a member's name, which does it no harm.
        """
        with self.connect(group) as broker:
            _, _, _, members = broker.describe(group)
            if not members:
                return None
            member = min(members)
            for generation in range(1, most):
                error = broker.heartbeat(group, generation, member)
                if error in ("NONE", "REBALANCE_IN_PROGRESS"):
                    return generation
                if error != "ILLEGAL_GENERATION":
                    raise AssertionError(f"a heartbeat of {group}: {error}")
        raise AssertionError(f"{group} is in no generation below {most}")
