"""A real text file with keys: what every client writes whole, and what each partition must then hold.

  words.py input            prints the file: Debian's word list (or WORDS), each line as KEY:LINE
  words.py judge PREFIX     PREFIX-0, PREFIX-1, ... are what was read of the partitions of a topic: fails
                            unless each holds, byte for byte and in order, the lines whose keys belong there

Lines are bytes; nothing here decodes them. A key goes where murmur2 sends it: what Java's client does
with keys, and every other client that is asked to.
"""

import os
import sys
from functools import cache
from pathlib import Path

from expected import FIRST_TIMESTAMP_MS, Sent, must

LINES_MIN = 100_000
# So that every key comes back about a hundred times.
KEYS = 997


def keyed_lines():
    """[(key, line)] in the order of the file. Lines are unique: one too many or out of place shows."""
    words = Path(os.environ.get("WORDS", "/usr/share/dict/words"))
    lines = words.read_bytes().split(b"\n")[:-1]
    must(len(lines) >= LINES_MIN, f"{words} has {len(lines)} lines, at least {LINES_MIN} are due")
    must(len(set(lines)) == len(lines), f"the lines of {words} are not unique")
    return [(b"k%d" % (number * 7919 % KEYS), line) for number, line in enumerate(lines, 1)]


@cache
def murmur2(key):
    """Of Kafka's partitioner: the hash as an unsigned number of 31 bits."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * factor & mask
        found = found * factor & mask ^ (word ^ word >> 24) * factor & mask
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return (found ^ found >> 15) & 0x7FFFFFFF


def judge(prefix):
    names = list(Path(prefix).parent.glob(f"{Path(prefix).name}-[0-9]*"))
    due = [[] for _ in names]
    must(len(due) > 1, f"{prefix}: {len(due)} partitions were read")
    for key, line in keyed_lines():
        due[murmur2(key) % len(due)].append(b"%s:%s" % (key, line))
    for partition, wanted in enumerate(due):
        found = Path(f"{prefix}-{partition}").read_bytes().split(b"\n")
        must(found.pop() == b"", f"{prefix}-{partition} ends within a line")
        must(len(found) == len(wanted), f"{prefix}-{partition}: {len(found)} lines, {len(wanted)} are due")
        for place, (want, have) in enumerate(zip(wanted, found)):
            must(want == have, f"{prefix}-{partition}, offset {place}: {have!r}, due is {want!r}")


def write(prefix, partitions):
    """`partitions`: [(key, line)] by partition. One file for each, as `judge` wants them."""
    for partition, lines in enumerate(partitions):
        Path(f"{prefix}-{partition}").write_bytes(b"".join(b"%s:%s\n" % line for line in lines))


def sent(text):
    """What a client has to send of what `input` printed: with keys, to where its partitioner says."""
    lines = (line.split(b":", 1) for line in text.split(b"\n")[:-1])
    return [Sent(None, key, value, [], FIRST_TIMESTAMP_MS) for key, value in lines]


def by_partition(read):
    """[(key, line)] by partition; nothing is missing between them."""
    partitions = [[] for _ in range(1 + max(record.partition for record in read))]
    for record in read:
        lines = partitions[record.partition]
        must(record.offset == len(lines), f"partition {record.partition}: offset {record.offset} where {len(lines)} is due")
        lines.append((record.key, record.value))
    return partitions


def program(smoke, produce, read):
    """The command line of each Python client: see drive.sh."""
    brokers, verb, *rest = sys.argv[1:]
    match verb, rest:
        case "smoke", []:
            smoke(brokers)
        case "produce", [topic, codec]:
            produce(brokers, topic, codec, sent(sys.stdin.buffer.read()))
        case "read", [topic, prefix]:
            write(prefix, by_partition(read(brokers, topic)))
        case _:
            sys.exit(f"error: neither smoke, nor produce TOPIC CODEC, nor read TOPIC PREFIX: {sys.argv[1:]}")


def main():
    match sys.argv[1:]:
        case ["input"]:
            for line in keyed_lines():
                sys.stdout.buffer.write(b"%s:%s\n" % line)
        case ["judge", prefix]:
            judge(prefix)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
