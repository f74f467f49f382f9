"""What every client smoke sends, and the judge of what it reads back."""

import random
import time
from collections import namedtuple

PARTITIONS = 6
RECORDS = 3000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# A moment ago: old enough for a search by time, too young for any retention.
FIRST_TIMESTAMP_MS = time.time_ns() // 1_000_000 - 60_000

# key and value: bytes or None; headers: a list of (str, bytes or None), order and repeats kept.
Sent = namedtuple("Sent", "partition key value headers timestamp_ms")
Read = namedtuple("Read", "partition offset key value headers timestamp_ms")


def plan(client, codec, null_header=True):
    """A deterministic mix: null, empty and repeated keys, tombstones, binary, large and empty values."""
    dice = random.Random(f"{client}/{codec}")
    records = []
    for number in range(RECORDS):
        key = [None, b"", f"key-{number % 17}".encode(), b"\xff\x00" + bytes([number % 251])][number % 4]
        value = f"{client}/{codec}/{number:06}".encode()
        match number % 50:
            case 7:
                value = None
            case 11:
                value = b""
            case 13:
                value = dice.randbytes(dice.randrange(2_000, 20_000))
            case 17:
                value = b"\x00" * 30_000
        headers = []
        if number % 3 == 0:
            headers = [("trace", str(number).encode()), ("trace", b"again"), ("empty", b"")]
            if null_header:
                headers.append(("none", None))
        records.append(Sent(number % PARTITIONS, key, value, headers, FIRST_TIMESTAMP_MS + number))
    return records


class Mismatch(Exception):
    pass


def check(sent, read, offsets=None):
    """Every record once, in order, at contiguous offsets, unchanged. `offsets`: acked, by place in `sent`."""
    for partition in range(PARTITIONS):
        wanted = [record for record in sent if record.partition == partition]
        found = [record for record in read if record.partition == partition]
        if len(wanted) != len(found):
            raise Mismatch(f"partition {partition}: sent {len(wanted)}, read {len(found)}")
        for place, (want, have) in enumerate(zip(wanted, found)):
            if have.offset != place:
                raise Mismatch(f"partition {partition}: offset {have.offset} where {place} is due")
            for field in ("key", "value", "headers", "timestamp_ms"):
                if getattr(want, field) != getattr(have, field):
                    raise Mismatch(
                        f"partition {partition}, offset {place}, {field}: "
                        f"sent {getattr(want, field)!r:.200}, read {getattr(have, field)!r:.200}"
                    )
    if offsets is not None:
        place_in = [0] * PARTITIONS
        for record, acked in zip(sent, offsets, strict=True):
            if acked != place_in[record.partition]:
                raise Mismatch(f"partition {record.partition}: acked at {acked}, stands at {place_in[record.partition]}")
            place_in[record.partition] += 1


def must(condition, message):
    if not condition:
        raise Mismatch(message)


def until(look, message, seconds=10):
    """Looks until the answer is true; a new topic reaches every broker a moment after its creation."""
    deadline = time.monotonic() + seconds
    while not look():
        must(time.monotonic() < deadline, f"{message}: not within {seconds} s")
        time.sleep(0.05)
