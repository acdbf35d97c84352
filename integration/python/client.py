"""Publish and consume with nothing but grpcio and generated stubs, in both forms.

    python -m grpc_tools.protoc -I proto --python_out=OUT --grpc_python_out=OUT proto/talweg/v1/*.proto
    PYTHONPATH=OUT:integration/python python integration/python/client.py 127.0.0.1:7070
"""

import queue
import sys
import time
import uuid

import grpc

import batches
from talweg.v1 import common_pb2, fetch_pb2, fetch_pb2_grpc, produce_pb2, produce_pb2_grpc
from talweg.v1 import producers_pb2, producers_pb2_grpc, topics_pb2, topics_pb2_grpc

DEADLINE_S = 30


class Stream:
    """One bidirectional stream: send() frames, iterate over answers."""

    def __init__(self, call):
        self._out = queue.Queue()
        self._in = call(iter(self._out.get, None), timeout=DEADLINE_S)

    def send(self, frame):
        self._out.put(frame)

    def finish(self):
        self._out.put(None)

    def next(self, kind):
        """The next frame of this kind; heartbeats and positions are skipped, anything else is an error."""
        for frame in self._in:
            got = frame.WhichOneof("frame")
            if got == kind:
                return getattr(frame, kind)
            if got not in ("heartbeat", "positions"):
                raise AssertionError(f"expected {kind}, got {frame}")
        raise AssertionError(f"stream ended before {kind}")

    def end(self):
        """Reads to the planned end; status OK or an exception."""
        return [frame.WhichOneof("frame") for frame in self._in]


def produce_records(channel, topic, records):
    """Thin form. Returns {stream sequence: (partition, offset)}."""
    stream = Stream(produce_pb2_grpc.ProduceServiceStub(channel).Produce)
    stream.send(produce_pb2.ProduceRequest(open=produce_pb2.ProduceOpen(client_id="python", acks=common_pb2.ACKS_ALL)))
    opened = stream.next("opened")
    assert opened.credit.bytes > 0 and opened.credit.records > 0
    stream.send(produce_pb2.ProduceRequest(
        records=produce_pb2.RecordsFrame(topic=topic, first_sequence=0, records=records)))
    acked = {}
    while len(acked) < len(records):
        ack = stream.next("records_ack")
        assert ack.durability.replicas_holding >= 1
        for i, sequence in enumerate(ack.sequences):
            assert sequence not in acked, "acknowledged twice"
            acked[sequence] = (ack.partition, ack.base_offset + i)
    stream.finish()
    stream.end()
    return acked


def produce_batches(channel, topic, partition, encoded):
    """Batch form. Returns the base offset of each batch."""
    stream = Stream(produce_pb2_grpc.ProduceServiceStub(channel).Produce)
    stream.send(produce_pb2.ProduceRequest(open=produce_pb2.ProduceOpen(client_id="python", acks=common_pb2.ACKS_ALL)))
    stream.next("opened")
    for sequence, batch in enumerate(encoded):
        stream.send(produce_pb2.ProduceRequest(batch=produce_pb2.BatchFrame(
            topic=topic, partition=partition, first_sequence=sequence, batches=batch)))
    offsets = []
    while len(offsets) < len(encoded):
        ack = stream.next("batch_ack")
        offsets.extend(ack.base_offsets)
        assert ack.up_to_sequence == len(offsets) - 1
    stream.finish()
    stream.end()
    return offsets


def fetch(channel, topic, partitions, form, count):
    """Reads `count` records from the start: [(partition, offset, key, value)]."""
    stream = Stream(fetch_pb2_grpc.FetchServiceStub(channel).Fetch)
    grant = common_pb2.Credit(bytes=4 << 20, records=10_000)
    stream.send(fetch_pb2.FetchRequest(open=fetch_pb2.FetchOpen(
        client_id="python", form=form, credit=grant,
        partitions=[fetch_pb2.FetchPartition(topic=topic, partition=p, earliest=True) for p in partitions])))
    assert len(stream.next("opened").positions) == len(partitions)
    found = []
    while len(found) < count:
        if form == common_pb2.FORM_RECORDS:
            frame = stream.next("records")
            for r in frame.records:
                key = r.key if r.HasField("key") else None
                value = r.value if r.HasField("value") else None
                found.append((frame.position.partition, r.offset, key, value))
            size, records = sum(r.ByteSize() for r in frame.records), len(frame.records)
        else:
            frame = stream.next("batches")
            before = len(found)
            for offset, _, key, value in batches.decode(frame.batches):
                if offset >= frame.first_offset:
                    found.append((frame.position.partition, offset, key, value))
            size, records = len(frame.batches), len(found) - before
        stream.send(fetch_pb2.FetchRequest(credit=common_pb2.Credit(bytes=size, records=records)))
    stream.finish()
    return found


def main(address):
    with grpc.insecure_channel(address) as channel:
        topics = topics_pb2_grpc.TopicServiceStub(channel)
        name = f"python-{uuid.uuid4().hex[:8]}"
        # Uncompressed, because this little client does not carry a codec.
        topics.CreateTopic(topics_pb2.CreateTopicRequest(
            name=name, partitions=3, config={"compression.type": "none"}), timeout=DEADLINE_S)

        # Null and empty are different things, in keys and values.
        thin = [
            produce_pb2.Record(key=b"a", value=b"1"),
            produce_pb2.Record(key=b"a", value=b"2"),
            produce_pb2.Record(key=b"", value=b""),
            produce_pb2.Record(key=b"gone"),
            produce_pb2.Record(value=b"no key", partition=2),
        ]
        acked = produce_records(channel, name, thin)
        assert acked[0][0] == acked[1][0] and acked[0][1] < acked[1][1], "order per key"

        identity = producers_pb2_grpc.ProducerServiceStub(channel).InitProducer(
            producers_pb2.InitProducerRequest(), timeout=DEADLINE_S)
        now = int(time.time() * 1000)
        ids = dict(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)
        first = batches.encode([(now, b"k", b"b0"), (now + 1, None, b"b1")], base_sequence=0, **ids)
        second = batches.encode([(now + 2, b"", None)], base_sequence=2, **ids)
        offsets = produce_batches(channel, name, 1, [first, second])
        again = produce_batches(channel, name, 1, [first])
        assert again == offsets[:1], f"a repeat gets its first offset: {again} != {offsets}"

        expected = {(p, o): (r.key if r.HasField("key") else None, r.value if r.HasField("value") else None)
                    for r, (p, o) in zip(thin, (acked[i] for i in range(len(thin))))}
        expected.update({(1, offsets[0]): (b"k", b"b0"), (1, offsets[0] + 1): (None, b"b1"), (1, offsets[1]): (b"", None)})
        for form in (common_pb2.FORM_RECORDS, common_pb2.FORM_BATCHES):
            found = fetch(channel, name, range(3), form, len(expected))
            assert {(p, o): (k, v) for p, o, k, v in found} == expected, f"{form}: {found} != {expected}"
        topics.DeleteTopic(topics_pb2.DeleteTopicRequest(name=name), timeout=DEADLINE_S)
    print(f"ok: {len(expected)} records in both forms, a repeat recognised, null and empty kept apart")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070")
