//! What lies in a log, as JSON.

use crate::text;
use serde_json::{Map, Value, json};
use talweg_batch::{BatchHeader, Record};
use talweg_log::{
    dump::{SegmentFile, SidecarFound, SidecarView, SparseEntry},
    sidecar::partition::EpochStart,
};

/// A segment file.
pub fn segment(segment: &SegmentFile) -> Value {
    json!({
        "path": segment.path.display().to_string(),
        "base_offset": segment.base.0,
        "bytes": segment.bytes,
    })
}

/// A batch's header and place.
pub fn batch(header: &BatchHeader, position: u64) -> Map<String, Value> {
    let codec = header
        .compression()
        .map_or_else(|error| error.to_string(), |codec| codec.to_string());
    let value = json!({
        "position": position,
        "bytes": header.total_bytes(),
        "base_offset": header.base_offset.0,
        "last_offset": header.last_offset().0,
        "leader_epoch": header.leader_epoch.0,
        "records": header.record_count,
        "compression": codec,
        "control": header.is_control(),
        "transactional": header.is_transactional(),
        "crc": header.crc,
        "first_timestamp": header.first_timestamp.0,
        "max_timestamp": header.max_timestamp.0,
        "producer_id": header.producer_id.0,
        "producer_epoch": header.producer_epoch.0,
        "base_sequence": header.base_sequence.0,
    });
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// A record of a batch.
pub fn record(header: &BatchHeader, record: &Record) -> Value {
    let mut object = Map::new();
    object.insert(
        "offset".into(),
        header
            .base_offset
            .plus(i64::from(record.offset_delta))
            .0
            .into(),
    );
    object.insert("timestamp".into(), record.timestamp.0.into());
    text::set_bytes(&mut object, "key", record.key.as_deref());
    text::set_bytes(&mut object, "value", record.value.as_deref());
    let header = |(name, value): &(bytes::Bytes, Option<bytes::Bytes>)| {
        text::header(&String::from_utf8_lossy(name), value.as_deref())
    };
    object.insert(
        "headers".into(),
        record.headers.iter().map(header).collect::<Vec<_>>().into(),
    );
    object.into()
}

/// An entry of the sparse index.
pub fn entry(entry: &SparseEntry) -> Value {
    json!({ "offset": entry.offset.0, "position": entry.position })
}

/// Where a leader epoch begins.
pub fn epoch(start: &EpochStart) -> Value {
    json!({ "epoch": start.epoch.0, "start_offset": start.start.0 })
}

/// A file beside the segments.
pub fn sidecar(found: &SidecarFound) -> Value {
    let content = match &found.content {
        Err(error) => return json!({ "file": found.name, "unreadable": error.to_string() }),
        Ok(content) => content,
    };
    let mut value = match content {
        SidecarView::Partition(file) => json!({
            "topic_id": file.tp.topic_id.to_string(),
            "partition": file.tp.partition.0,
            "log_start_offset": file.log_start.0,
            "flushed_end_offset": file.flushed_end.0,
            "high_watermark": file.high_watermark.0,
            "highest_epoch": file.highest_epoch.0,
            "last_append_ms": file.last_append.0,
            "epochs": file.epochs.iter().map(epoch).collect::<Vec<_>>(),
        }),
        SidecarView::Seal(file) => json!({
            "base_offset": file.base.0,
            "end_offset": file.end.0,
            "bytes": file.bytes,
            "first_append_ms": file.first_append.0,
            "last_append_ms": file.last_append.0,
            "max_timestamp": file.max_timestamp.0,
            "damaged_ranges": file.damage.len(),
            "blocks": file.blocks.len(),
        }),
        SidecarView::Sessions(file) => json!({
            "offset": file.offset.0,
            "producers": file.sessions.len(),
            "idempotency_keys": file.keys.len(),
        }),
    };
    value["file"] = found.name.clone().into();
    value
}
