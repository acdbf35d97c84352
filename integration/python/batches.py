"""Record batches (docs/formats/record-batch.md) in plain Python: what a client needs for the batch form."""

import struct

_TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = (_n >> 1) ^ (0x82F63B78 if _n & 1 else 0)
    _TABLE.append(_n)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)  # zigzag
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _bytes(value) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def encode(records, producer_id=-1, producer_epoch=-1, base_sequence=-1) -> bytes:
    """records: [(timestamp_ms, key or None, value or None)], uncompressed."""
    first = records[0][0]
    body = bytearray()
    for delta, (timestamp, key, value) in enumerate(records):
        record = b"\0" + _varint(timestamp - first) + _varint(delta) + _bytes(key) + _bytes(value) + _varint(0)
        body += _varint(len(record)) + record
    after_crc = struct.pack(
        ">hiqqqhii", 0, len(records) - 1, first, max(r[0] for r in records),
        producer_id, producer_epoch, base_sequence, len(records),
    ) + bytes(body)
    return struct.pack(">qiibI", 0, 9 + len(after_crc), -1, 2, crc32c(after_crc)) + after_crc


def decode(data: bytes):
    """Every record of the uncompressed batches in data: (offset, timestamp_ms, key, value)."""
    at = 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        _, magic, crc = struct.unpack_from(">ibI", data, at + 12)
        end = at + 12 + length
        assert magic == 2 and crc == crc32c(data[at + 21:end]), "damaged batch"
        attributes, _, first = struct.unpack_from(">hiq", data, at + 21)
        (count,) = struct.unpack_from(">i", data, at + 57)
        assert attributes & 7 == 0, "this little client reads uncompressed batches"
        at += 61
        for _ in range(count):
            _, at = _read_varint(data, at)
            at += 1  # attributes
            timestamp, at = _read_varint(data, at)
            delta, at = _read_varint(data, at)
            fields = []
            for _ in range(2):
                size, at = _read_varint(data, at)
                fields.append(None if size < 0 else data[at:at + size])
                at += max(size, 0)
            headers, at = _read_varint(data, at)
            assert headers == 0, "this little client writes no headers"
            yield base + delta, first + timestamp, fields[0], fields[1]
        assert at == end
