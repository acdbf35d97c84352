"""A member of a consumer group with nothing but grpcio and generated stubs: commits, and a rebalance survived.

    PYTHONPATH=OUT:integration/python python integration/python/subscribe.py 127.0.0.1:7070
"""

import queue
import sys
import threading
import time
import uuid

import grpc

from client import DEADLINE_S, produce_records
from talweg.v1 import common_pb2, groups_pb2, groups_pb2_grpc, offsets_pb2, offsets_pb2_grpc, produce_pb2
from talweg.v1 import subscribe_pb2, subscribe_pb2_grpc, topics_pb2, topics_pb2_grpc

PARTITIONS = 4
EACH = 200


class Member:
    """Reads on a thread; gives up what it is asked for, commits what it has read."""

    def __init__(self, channel, group, topic):
        self.out, self.lock = queue.Queue(), threading.Lock()
        self.owned, self.seen, self.stored, self.error = set(), set(), {}, None
        self.send(open=subscribe_pb2.SubscribeOpen(
            group=group, topics=[topic], client_id="python", form=common_pb2.FORM_RECORDS,
            credit=common_pb2.Credit(bytes=4 << 20, records=10_000)))
        self.frames = subscribe_pb2_grpc.SubscribeServiceStub(channel).Subscribe(iter(self.out.get, None))
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def send(self, **frame):
        self.out.put(subscribe_pb2.SubscribeRequest(**frame))

    def read(self):
        try:
            for frame in self.frames:
                with self.lock:
                    self.on(frame.WhichOneof("frame"), frame)
        except (grpc.RpcError, AssertionError) as error:
            self.error = error

    def on(self, kind, frame):
        if kind == "assigned":
            self.owned.update(p.partition for p in frame.assigned.partitions)
        elif kind == "records":
            records, position = frame.records.records, frame.records.position
            self.seen.update((position.partition, r.offset) for r in records)
            self.send(commit=subscribe_pb2.SubscribeCommit(commit_id=len(self.seen), next=[
                subscribe_pb2.SubscribePosition(
                    topic_id=position.topic_id, partition=position.partition, offset=records[-1].offset + 1)]))
            size = sum(len(r.SerializeToString()) + 3 for r in records)
            self.send(credit=common_pb2.Credit(bytes=size, records=len(records)))
        elif kind == "revoking":
            # The commits of what was read are ahead of this frame.
            self.owned.difference_update(p.partition for p in frame.revoking.partitions)
            self.send(revoked=subscribe_pb2.SubscribeRevoked(partitions=frame.revoking.partitions))
        elif kind == "committed":
            assert not frame.committed.HasField("error"), frame
            self.stored.update((o.partition, o.offset) for o in frame.committed.offsets)
        elif kind in ("error", "partition_error", "gap"):
            raise AssertionError(f"{frame}")

    def leave(self):
        self.send(leave=subscribe_pb2.SubscribeLeave())
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "no goodbye"


def until(what, members, hope):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for member in members:
            if member.error:
                raise member.error
        if hope():
            return
        assert time.monotonic() < deadline, f"{what}: {[(m.owned, len(m.seen)) for m in members]}"
        time.sleep(0.02)


def main(address):
    with grpc.insecure_channel(address) as channel:
        topics = topics_pb2_grpc.TopicServiceStub(channel)
        name = f"python-{uuid.uuid4().hex[:8]}"
        topics.CreateTopic(topics_pb2.CreateTopicRequest(name=name, partitions=PARTITIONS), timeout=DEADLINE_S)
        records = [produce_pb2.Record(partition=n % PARTITIONS, value=str(n).encode()) for n in range(EACH)]
        produce_records(channel, name, records)
        first = Member(channel, "python", name)
        until("all by the first", [first], lambda: len(first.seen) == EACH)
        second = Member(channel, "python", name)
        both = [first, second]
        until("half each", both, lambda: [len(m.owned) for m in both] == [2, 2])
        assert not first.owned & second.owned
        produce_records(channel, name, records)
        until("all by both", both, lambda: len(first.seen | second.seen) == 2 * EACH)
        assert not any(p in first.owned for p, o in second.seen if o >= EACH // PARTITIONS), "read by both"
        end = 2 * EACH // PARTITIONS
        until("all is committed", both, lambda: sum(o == end for m in both for o in m.stored.values()) == PARTITIONS)
        for member in both:
            member.leave()
        stored = offsets_pb2_grpc.OffsetServiceStub(channel).FetchOffsets(
            offsets_pb2.FetchOffsetsRequest(group="python", topic=name), timeout=DEADLINE_S)
        assert sorted((o.partition, o.offset) for o in stored.offsets) == [(p, end) for p in range(PARTITIONS)]
        groups_pb2_grpc.GroupServiceStub(channel).DeleteGroup(
            groups_pb2.DeleteGroupRequest(group="python"), timeout=DEADLINE_S)
        topics.DeleteTopic(topics_pb2.DeleteTopicRequest(name=name), timeout=DEADLINE_S)
    print(f"ok: {2 * EACH} records, a second member took half, every offset committed")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070")
