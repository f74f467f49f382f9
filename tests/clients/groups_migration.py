"""A group that changes its protocol while it has members (KIP-848): up to `consumer`, and down again."""

from expected import must, until
from groups_modern import MODERN, described

PARTITIONS = 6
EACH = 10


class Group:
    """A group on a topic of its own, and how many records its partitions have."""

    def __init__(self, scene, name):
        self.scene, self.topic, self.name, self.filled = scene, name, f"{name}-group", 0
        scene.create(name, PARTITIONS)

    def member(self, maker, name, **how):
        return maker(f"{self.topic}-{name}", self.name, [self.topic], **how).start()

    def goes_on(self, members):
        """Each partition has one owner, everybody owns some, and new records are read and committed."""
        self.scene.settled(members, self.topic, PARTITIONS)
        until(lambda: all(member.owned for member in members), "everybody owns some", 60)
        self.scene.fill(self.topic, PARTITIONS, EACH)
        self.filled += EACH
        want = {partition: self.filled for partition in range(PARTITIONS)}
        until(lambda: self.scene.committed(self.name, self.topic, PARTITIONS) == want, f"{self.filled} are committed", 60)

    def nothing_is_lost(self):
        reads = {read[2:4] for member in self.scene.members for read in member.reads}
        want = {(partition, offset) for partition in range(PARTITIONS) for offset in range(self.filled)}
        must(reads >= want, f"{len(want - reads)} records were not read")


def up_and_down(scene):
    """classic members are replaced by ones of the consumer protocol, one by one, and those by classic ones"""
    group = Group(scene, "migration")
    kinds = [scene.rdkafka, scene.java, scene.kafka_python]
    modern = [scene.rdkafka, scene.java, scene.ours]
    members = [group.member(maker, f"old-{at}") for at, maker in enumerate(kinds)]
    group.goes_on(members)
    scene.stable(group.name, 3)
    for at, maker in enumerate(modern):
        members.append(group.member(maker, f"new-{at}", **MODERN))
        group.goes_on(members)
        members.pop(0).stop()
        group.goes_on(members)
    described(scene, group.name, 3)
    for at, maker in enumerate(kinds):
        members.append(group.member(maker, f"back-{at}"))
        group.goes_on(members)
        members.pop(0).stop()
        group.goes_on(members)
    scene.stable(group.name, 3)
    group.nothing_is_lost()


def migration_kill(scene):
    """the coordinator of a group of both kinds is killed: its successor goes on with both"""
    group = Group(scene, "migration-kill")
    members = [
        group.member(scene.rdkafka, "rdkafka"), group.member(scene.java, "java"),
        group.member(scene.kafka_python, "kafka-python"), group.member(scene.rdkafka, "new", **MODERN),
    ]  # fmt: skip
    group.goes_on(members)
    described(scene, group.name, 4)
    node = scene.coordinator(group.name)
    scene.cluster.kill(node)
    group.goes_on(members)
    scene.cluster.start_node(node)
    scene.cluster.wait_healthy(60)
    # The successor turns it back.
    members.pop().stop()
    group.goes_on(members)
    scene.stable(group.name, 3)
    group.nothing_is_lost()


SCENARIOS = {"up-and-down": up_and_down, "migration-kill": migration_kill}
