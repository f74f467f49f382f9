"""Public bug reports turned into scenarios (R numbers), with members that no client would be."""

import select
import threading
import time

from confluent_kafka import TopicPartition

from cluster import NODES
from expected import must, until
from groups_wire import ELSEWHERE, JOIN, SYNC, GroupBroker, assigned, partitions_of, subscription

SESSION_MS = 6_000


def group_of_two(scene, group, topic=None, rebalance_ms=10_000, session_ms=SESSION_MS):
    """Two bare members in a stable group: their connections, ids and the generation."""
    one, two = scene.coordinators.connect(group), scene.coordinators.connect(group)
    how = {"metadata": subscription(topic or group), "rebalance_ms": rebalance_ms, "session_ms": session_ms}
    ids = [broker.new_member_id(group, **how) for broker in (one, two)]
    for broker, member in ((one, ids[0]), (two, ids[1])):
        broker.post(JOIN, 5, broker.join_body(group, member=member, **how))
    answers = [broker.joined(broker.collect()) for broker in (one, two)]
    if answers[0][1] != answers[1][1] or len(answers[0][4] or answers[1][4]) != 2:
        # One was first: it comes again for the generation of both.
        late = max(answers, key=lambda answer: answer[1])
        first = 0 if answers[0][1] < late[1] else 1
        answers[first] = (one, two)[first].join(group, member=ids[first], **how)
    generation, leader = answers[0][1], answers[0][2]
    must(answers[1][1] == generation, f"two members in generations {[answer[1] for answer in answers]}")
    shares = {ids[0]: assigned(**{topic or group: [0]}), ids[1]: assigned(**{topic or group: [1]})}
    for broker, member in ((one, ids[0]), (two, ids[1])):
        broker.post(SYNC, 3, broker.sync_body(group, generation, member, assignments=shares if member == leader else {}))
    for broker, member in ((one, ids[0]), (two, ids[1])):
        error, assignment = broker.synced(broker.collect())
        must((error, assignment) == ("NONE", shares[member]), f"SyncGroup of {member}: {error}")
    return (one, two), ids, generation, how


def r44_cut_off(scene):
    """R44: twenty members whose connections are cut: the group is empty after the session timeout, and goes on"""
    group, brokers = "r44", []
    scene.create(group, 4)
    how = {"metadata": subscription(group), "session_ms": SESSION_MS}
    for _ in range(20):
        broker = scene.coordinators.connect(group)
        member = broker.new_member_id(group, **how)
        broker.post(JOIN, 5, broker.join_body(group, member=member, **how))
        brokers.append((broker, member))
    for broker, _ in brokers:
        broker.socket.close()
    cut = time.monotonic()
    until(lambda: scene.coordinators.describe(group)[1] == "Empty", "the group becomes empty", SESSION_MS / 1000 + 5)
    print(f"  empty {time.monotonic() - cut:.1f} s after the cut", flush=True)
    member = scene.rdkafka("r44-new", group, [group]).start()
    scene.settled([member], group, 4, seconds=10)


def r45_never_lost(scene):
    """R45: a coordinator's node restarts again and again: nobody is sent for long to a node that refuses"""
    group = "r45"
    scene.coordinator(group)
    stop, worst, looks, trouble = threading.Event(), [0.0], [0], []

    def look():
        try:
            ask_all()
        except Exception as error:
            trouble.append(repr(error))

    def ask_all():
        refused_since = {}
        while not stop.is_set():
            for node in NODES:
                try:
                    with GroupBroker(scene.coordinators.port(node), timeout=3) as broker:
                        error, found, port = broker.find_coordinator(group)
                    if error not in ELSEWHERE | {"NONE"}:
                        trouble.append(f"FindCoordinator of node {node}: {error}")
                    if error != "NONE":
                        continue
                    if port != scene.coordinators.port(found):
                        trouble.append(f"node {node} gives port {port} for node {found}")
                    with GroupBroker(port, timeout=3) as broker:
                        answer = broker.describe(group)[0]
                except OSError:
                    continue
                looks[0] += 1
                if answer not in ELSEWHERE | {"NONE"}:
                    trouble.append(f"node {found}, named by {node}: {answer}")
                key = (node, found)
                if answer == "NOT_COORDINATOR":
                    since = refused_since.setdefault(key, time.monotonic())
                    worst[0] = max(worst[0], time.monotonic() - since)
                else:
                    refused_since.pop(key, None)
                for other in [k for k in refused_since if k[0] == node and k != key]:
                    refused_since.pop(other)
            time.sleep(0.02)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    for _ in range(10 if scene.long else 3):
        node = scene.coordinator(group)
        scene.cluster.kill(node)
        scene.restart(node)
    stop.set()
    thread.join(30)
    must(not thread.is_alive(), "a node does not answer")
    must(not trouble, f"{len(trouble)} answers that do not belong here, the first: {trouble[:1]}")
    must(looks[0] > 0, "nobody ever named a coordinator that answered")
    print(f"  {looks[0]} looks; longest time that a node named one that answers NOT_COORDINATOR: {worst[0] * 1000:.0f} ms", flush=True)
    must(worst[0] < 5, f"for {worst[0]:.1f} s a node named one that answers NOT_COORDINATOR")


def r48_killed_while_joining(scene):
    """R48: the coordinator dies, or hands over, while members join: everybody gets an answer within the session"""
    for group, end in (("r48-lead", "lead"), ("r48-kill", "kill")):
        scene.create(group, 2)
        (one, two), ids, generation, how = group_of_two(scene, group, rebalance_ms=30_000, session_ms=10_000)
        # The second joins again with another subscription: parked, for the first one does not come.
        changed = {**how, "metadata": subscription(group, "another")}
        two.post(JOIN, 5, two.join_body(group, member=ids[1], **changed))
        until(lambda: one.heartbeat(group, generation, ids[0]) == "REBALANCE_IN_PROGRESS", "a rebalance begins")
        node = scene.coordinator(group)
        began = time.monotonic()
        if end == "kill":
            scene.cluster.kill(node)
            try:
                answer = two.joined(two.collect())[0]
                raise AssertionError(f"the killed coordinator answers: {answer}")
            except OSError:
                pass
        else:
            other = next(n for n in NODES if n != node)
            scene.hand_over(group, other)
            answer = two.joined(two.collect())[0]
            must(answer in ELSEWHERE, f"a parked JoinGroup is answered with {answer}")
        # Both go on with the ids that they have.
        def again():
            with scene.coordinators.connect(group) as broker:
                return broker.heartbeat(group, generation, ids[0])
        answer = None
        while time.monotonic() < began + 10:
            try:
                answer = again()
                if answer not in ELSEWHERE:
                    break
            except OSError:
                pass
        must(answer in ("NONE", "REBALANCE_IN_PROGRESS"), f"a heartbeat after {end}: {answer}")
        brokers = [scene.coordinators.connect(group), scene.coordinators.connect(group)]
        for broker, member in zip(brokers, ids):
            broker.post(JOIN, 5, broker.join_body(group, member=member, **changed))
        answers = [broker.joined(broker.collect()) for broker in brokers]
        if answers[0][1] != answers[1][1]:
            first = 0 if answers[0][1] < answers[1][1] else 1
            answers[first] = brokers[first].join(group, member=ids[first], **changed)
        took = time.monotonic() - began
        must([a[0] for a in answers] == ["NONE", "NONE"], f"after {end}: {answers}")
        must(answers[0][1] == answers[1][1] > generation, f"after {end}: generations {[a[1] for a in answers]}")
        must(took < 10, f"after {end} the members are together again only after {took:.1f} s")
        print(f"  {end}: both in generation {answers[0][1]} after {took:.1f} s", flush=True)
        if end == "kill":
            scene.restart(node)


def r50_two_of_a_name(scene):
    """R50, R53: two members of one instance name: the newer one has it, the older one is fenced everywhere"""
    group, how = "r50", {"instance": "the-one", "metadata": subscription("r50"), "session_ms": SESSION_MS}
    scene.create(group, 1)
    old, new = scene.coordinators.connect(group), scene.coordinators.connect(group)
    error, generation, _, first, _ = old.join(group, **how)
    must(error == "NONE", f"a static JoinGroup: {error}")
    must(old.sync(group, generation, first, "the-one", {first: assigned(r50=[0])})[0] == "NONE", "SyncGroup")
    error, again, leader, second, _ = new.join(group, **how)
    must(error == "NONE" and second != first, f"the second of the name: {error}, {second}")
    must(again == generation, f"a static member that comes back makes generation {again} of {generation}")
    must(old.heartbeat(group, generation, first, "the-one") == "FENCED_INSTANCE_ID", "the old one's heartbeat")
    must(old.sync(group, generation, first, "the-one")[0] == "FENCED_INSTANCE_ID", "the old one's SyncGroup")
    found = old.commit(group, "r50", {0: 5}, generation, first, "the-one")
    must(found == {0: "FENCED_INSTANCE_ID"}, f"the old one's commit: {found}")
    must(old.leave(group, first, "the-one") == "FENCED_INSTANCE_ID", "the old one's LeaveGroup")
    found = old.join(group, member=first, **how)[0]
    must(found == "FENCED_INSTANCE_ID", f"the old one's JoinGroup: {found}")
    must(new.heartbeat(group, generation, second, "the-one") == "NONE", "the new one's heartbeat")
    error, assignment = new.sync(group, generation, second, "the-one")
    must(error == "NONE" and partitions_of(assignment) == {("r50", 0)}, f"the new one's SyncGroup: {error}")
    # In the midst of a rebalance the static one joins again, and keeps its id.
    third = scene.coordinators.connect(group)
    member = third.new_member_id(group, metadata=how["metadata"])
    third.post(JOIN, 5, third.join_body(group, member=member, metadata=how["metadata"], session_ms=SESSION_MS))
    until(lambda: new.heartbeat(group, generation, second, "the-one") == "REBALANCE_IN_PROGRESS", "a rebalance begins")
    new.post(JOIN, 5, new.join_body(group, member=second, **how))
    answer = new.joined(new.collect())
    must(answer[0] == "NONE" and answer[3] == second, f"the static one joins again: {answer}")
    joined = third.joined(third.collect())
    must(joined[:2] == ("NONE", answer[1]), f"the dynamic one joins: {joined}")
    two_at_once(scene, group, how, (third, member), answer[1])


def two_at_once(scene, group, how, dynamic, generation):
    """While the group rejoins, two processes come at the same time that both have no id and the same name."""
    broker, member = dynamic
    late = scene.coordinators.connect(group)
    newcomer = late.new_member_id(group, metadata=how["metadata"])
    late.post(JOIN, 5, late.join_body(group, member=newcomer, metadata=how["metadata"], session_ms=SESSION_MS))
    until(lambda: broker.heartbeat(group, generation, member) == "REBALANCE_IN_PROGRESS", "another rebalance begins")
    twins = [scene.coordinators.connect(group) for _ in range(2)]
    for twin in twins:
        twin.post(JOIN, 5, twin.join_body(group, **how))
    # The one that came first is told at once: the other one has its place, and waits for the rest.
    ready, _, _ = select.select([twin.socket for twin in twins], [], [], 5)
    must(len(ready) == 1, f"{len(ready)} of two of a name are answered while the group waits for others")
    loser = next(twin for twin in twins if twin.socket is ready[0])
    winner = next(twin for twin in twins if twin is not loser)
    error = loser.joined(loser.collect())[0]
    must(error == "FENCED_INSTANCE_ID", f"the first of two of a name: {error}")
    broker.post(JOIN, 5, broker.join_body(group, member=member, metadata=how["metadata"], session_ms=SESSION_MS))
    answers = {one: one.joined(one.collect()) for one in (winner, broker, late)}
    error, generation, leader, owner, _ = answers[winner]
    must(error == "NONE", f"the second of two of a name: {error}")
    must(all(a[:2] == ("NONE", generation) for a in answers.values()), f"the group joins: {list(answers.values())}")
    # The owner leads or not: whoever leads gives it everything.
    for one, answer in answers.items():
        name = "the-one" if one is winner else None
        shares = {owner: assigned(r50=[0])} if answer[3] == leader else {}
        one.post(SYNC, 3, one.sync_body(group, generation, answer[3], name, shares))
    found = {one: one.synced(one.collect()) for one in answers}
    must(all(error == "NONE" for error, _ in found.values()), f"SyncGroup: {[e for e, _ in found.values()]}")
    owns = [one for one, (_, assignment) in found.items() if partitions_of(assignment)]
    must(owns == [winner], "the partition is not the winner's alone")
    must(winner.heartbeat(group, generation, owner, "the-one") == "NONE", "the winner's heartbeat")
    described = scene.coordinators.describe(group)[3]
    must([m for m, (instance, *_) in described.items() if instance == "the-one"] == [owner], f"members {described}")


def r54_slow_member(scene):
    """R54: while a slow member keeps a rebalance open the others' heartbeats keep them in the group"""
    group = "r54"
    scene.create(group, 2)
    # The row asks for 30 s; either way it is longer than a session.
    seconds = 30 if scene.long else 9
    (one, two), ids, generation, how = group_of_two(scene, group, rebalance_ms=(seconds + 10) * 1000, session_ms=SESSION_MS)
    late = scene.coordinators.connect(group, timeout=seconds + 30)
    member = late.new_member_id(group, **how)
    late.post(JOIN, 5, late.join_body(group, member=member, **how))
    until(lambda: one.heartbeat(group, generation, ids[0]) == "REBALANCE_IN_PROGRESS", "a rebalance begins")
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        for broker, one_id in ((one, ids[0]), (two, ids[1])):
            error = broker.heartbeat(group, generation, one_id)
            must(error == "REBALANCE_IN_PROGRESS", f"after {time.monotonic() - began:.1f} s: {error}")
        time.sleep(0.5)
    # A commit of the old generation still counts until the join phase ends.
    found = one.commit(group, group, {0: 3}, generation, ids[0])
    must(found == {0: "NONE"}, f"a commit while others join: {found}")
    for broker, one_id in ((one, ids[0]), (two, ids[1])):
        broker.post(JOIN, 5, broker.join_body(group, member=one_id, **how))
    answers = [broker.joined(broker.collect()) for broker in (one, two, late)]
    must(all(answer[:2] == ("NONE", generation + 1) for answer in answers), f"{answers}")


def r56_offsets_stay(scene):
    """R56: committed offsets are there after every node was restarted, and after a look for expired ones"""
    group = "r56"
    scene.create(group, 4)
    committer = scene.committer(group)
    committer.commit(offsets=[TopicPartition(group, p, 100 + p, metadata=f"note {p}") for p in range(3)], asynchronous=False)
    committer.close()
    for node in NODES:
        scene.cluster.kill(node)
    for node in NODES:
        scene.cluster.start_node(node)
    scene.cluster.wait_healthy(60)
    with scene.coordinators.connect(group) as broker:
        # What is due goes with the next look: by then the others have been looked at.
        must(broker.commit_for(group, group, {3: 1}, retention_ms=1) == {3: "NONE"}, "a commit for a millisecond")
        until(lambda: broker.fetch_offsets(group, group, [3])[0][3][0] == -1, "the coordinator looks for what has expired", 30)
        found, _ = broker.fetch_offsets(group, group, [0, 1, 2])
    # confluent-kafka sends the zero at the end of its C string as well.
    found = {p: (offset, text.rstrip("\0"), error) for p, (offset, _, text, error) in found.items()}
    must(found == {p: (100 + p, f"note {p}", "NONE") for p in range(3)}, f"after the restart: {found}")


def r57_never_empty_by_mistake(scene):
    """R57: OffsetFetch of a node that starts, leads or does not: the offset, or an error; never "none committed" """
    group = "r57"
    scene.create(group, 1)
    committer = scene.committer(group)
    committer.commit(offsets=[TopicPartition(group, 0, 77)], asynchronous=False)
    committer.close()
    versions = (1, 5, 8, 9)
    stop, wrong, seen = threading.Event(), [], {version: {} for version in versions}

    def look(node, version):
        while not stop.is_set():
            try:
                with GroupBroker(scene.coordinators.port(node), timeout=3) as broker:
                    while not stop.is_set():
                        found, whole = broker.fetch_offsets(group, group, [0], version=version)
                        # Before version 2 there is no place but the partition's to say it.
                        offset, _, _, error = found.get(0, (None, None, None, whole))
                        error = error if whole in (None, "NONE") else whole
                        seen[version][error] = seen[version].get(error, 0) + 1
                        if error == "NONE" and offset != 77 or error not in ELSEWHERE | {"NONE"}:
                            wrong.append((node, version, offset, error))
            except OSError:
                time.sleep(0.01)
            except Exception as error:
                # An answer that cannot be read.
                wrong.append((node, version, repr(error)))
                return

    threads = [threading.Thread(target=look, args=(node, version), daemon=True) for node in NODES for version in versions]
    for thread in threads:
        thread.start()
    for _ in range(5 if scene.long else 2):
        node = scene.coordinator(group)
        scene.cluster.kill(node)
        scene.restart(node)
        other = next(n for n in NODES if n != scene.coordinator(group))
        scene.hand_over(group, other)
    loading_coordinator(scene, group, lambda: sum(answers.get("COORDINATOR_LOAD_IN_PROGRESS", 0) for answers in seen.values()))
    stop.set()
    for thread in threads:
        thread.join(10)
    for version, answers in seen.items():
        print(f"  OffsetFetch {version}: {answers}", flush=True)
    must(not wrong, f"{len(wrong)} wrong answers, the first: {wrong[:1]}")
    # The windows that this is about were really looked into.
    for version, answers in seen.items():
        must(answers.get("NONE", 0) > 0, f"version {version}: nobody ever answered")
        must(answers.get("NOT_COORDINATOR", 0) > 0, f"version {version}: no node was seen that does not coordinate")


def loading_coordinator(scene, group, seen):
    """Makes a node lead that cannot serve yet, until `seen` has counted more answers that say so.

    The new leader's first entry has to be on a majority, and the only other node that lives is far behind:
    it was paused while megabytes were committed.
    """
    before = seen()
    node = scene.coordinator(group)
    behind = next(n for n in NODES if n != node)
    scene.cluster.pause(behind)
    try:
        with scene.coordinators.connect(group, timeout=60) as broker:
            for _ in range(6):
                found = broker.commit(group, group, [(0, 77)] * 1900, metadata="x" * 4096)
                must(found == {0: "NONE"}, f"a commit on two nodes of three: {found}")
        scene.cluster.kill(node)
    finally:
        scene.cluster.resume(behind)
    until(lambda: seen() > before, "a coordinator that leads and is not ready", 30)
    print(f"  a coordinator that leads and is not ready: seen {seen() - before} times and more", flush=True)
    scene.restart(node)


def r59_many_die(scene):
    """R59: many members in five groups die at once: the node stays, and its memory comes back"""
    count = 500 if scene.long else 100

    def memory():
        total = 0
        for node in NODES:
            with open(f"/proc/{scene.cluster.pid(node)}/status") as status:
                total += next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return total / 1024

    def round_of(number):
        brokers, ports = [], {}
        for at in range(count):
            group = f"r59-{number}-{at % 5}"
            ports[group] = ports.get(group) or scene.coordinators.port(scene.coordinator(group))
            broker = GroupBroker(ports[group], timeout=30)
            member = broker.new_member_id(group, session_ms=SESSION_MS)
            broker.post(JOIN, 5, broker.join_body(group, member=member, metadata=b"x" * 5000, session_ms=SESSION_MS))
            brokers.append(broker)
        peak = memory()
        for broker in brokers:
            broker.socket.close()
        for group in ports:
            until(lambda: scene.coordinators.describe(group)[1] in ("Empty", "Dead"), f"{group} is empty", SESSION_MS / 1000 + 25)
        return peak

    # The baseline is what they held before anybody came. What an allocator keeps is not given up to the
    # last page, hence the margin; that it is no leak is what the rounds are for.
    base = memory()
    most = base * 1.3 + 30
    for number in range(4):
        peak = round_of(number)
        died = time.monotonic()
        while (after := memory()) > most and time.monotonic() < died + 60:
            time.sleep(0.5)
        print(f"  three nodes: {base:.0f} MiB before anybody came, {peak:.0f} with {count} members, {after:.0f} MiB"
              f" {time.monotonic() - died:.0f} s after they died", flush=True)  # fmt: skip
        must(all(scene.cluster.runs(node) for node in NODES), "a node died")
        must(after <= most, f"memory does not come back: {after:.0f} MiB of {base:.0f} after 60 s")


def r60_old_generation(scene):
    """R60: a commit of an old generation is refused, changes nothing, and the connection lives"""
    group = "r60"
    scene.create(group, 2)
    (one, two), ids, generation, how = group_of_two(scene, group)
    must(one.commit(group, group, {0: 10}, generation, ids[0]) == {0: "NONE"}, "a commit of this generation")
    # The second leaves: the first one joins the next generation.
    must(two.leave(group, ids[1]) == "NONE", "LeaveGroup")
    error, following, *_ = one.join(group, member=ids[0], **how)
    must(error == "NONE" and following > generation, f"the next generation: {error}, {following}")
    in_between = one.commit(group, group, {0: 11}, following, ids[0])
    must(in_between == {0: "REBALANCE_IN_PROGRESS"}, f"a commit between JoinGroup and SyncGroup: {in_between}")
    must(one.sync(group, following, ids[0], assignments={ids[0]: assigned(r60=[0, 1])})[0] == "NONE", "SyncGroup")
    old = one.commit(group, group, {0: 12}, generation, ids[0])
    must(old == {0: "ILLEGAL_GENERATION"}, f"a commit of an old generation: {old}")
    gone = two.commit(group, group, {1: 13}, generation, ids[1])
    must(gone == {1: "UNKNOWN_MEMBER_ID"}, f"a commit of a member that left: {gone}")
    outside = two.commit(group, group, {1: 14})
    must(outside == {1: "UNKNOWN_MEMBER_ID"}, f"a commit from outside of a group with members: {outside}")
    found, _ = one.fetch_offsets(group, group, [0, 1])
    must((found[0][0], found[1][0]) == (10, -1), f"the stored offsets: {found}")
    must(one.heartbeat(group, following, ids[0]) == "NONE", "the connection is usable")


SCENARIOS = {
    "r44": r44_cut_off, "r45": r45_never_lost, "r48": r48_killed_while_joining, "r50": r50_two_of_a_name,
    "r54": r54_slow_member, "r56": r56_offsets_stay, "r57": r57_never_empty_by_mistake, "r59": r59_many_die,
    "r60": r60_old_generation,
}  # fmt: skip
