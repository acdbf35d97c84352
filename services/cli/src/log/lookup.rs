//! `talweg log lookup`: the way to an offset.

use super::{refused, show};
use crate::{
    args::{Globals, LookupArgs},
    failure::Failure,
    out,
};
use serde_json::{Value, json};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::{
    dump::{LogFiles, Lookup},
    kv::{IndexKv, RocksKv, rocks::RocksKvConfig},
};
use talweg_types::Offset;

/// Runs the command.
pub fn run(globals: &Globals, args: &LookupArgs) -> Result<(), Failure> {
    let files = LogFiles::open(&args.path).map_err(|error| refused(&error))?;
    let store = args.index.as_ref().map(|folder| {
        if !folder.join("CURRENT").exists() {
            let message = format!("{} is not the folder of an index store", folder.display());
            return Err(Refusal::new(ErrorCode::InvalidArgument, message));
        }
        RocksKv::open(folder, RocksKvConfig::default())
            .map_err(|error| Refusal::new(ErrorCode::Unavailable, error.to_string()))
    });
    let store = store.transpose()?;
    let asked = store.as_ref().map(|store| store as &dyn IndexKv);
    let found = files
        .lookup(Offset(args.offset), args.interval, asked)
        .map_err(|error| refused(&error))?;
    out::print(globals.json, &json(&found, args.interval), || {
        text(&found, args.interval)
    })
}

fn json(found: &Lookup, interval: u32) -> Value {
    json!({
        "offset": found.offset.0,
        "segment": show::segment(&found.segment),
        "segments_compared": found.segments_compared,
        "index_entry": show::entry(&found.entry),
        "index_entries": found.entries.iter().map(show::entry).collect::<Vec<_>>(),
        "from_index_store": found.from_store,
        "index_interval_bytes": interval,
        "batch": {
            "base_offset": found.batch_base.0,
            "position": found.batch_position,
            "bytes": found.batch_bytes,
        },
        "scanned_bytes": found.scanned_bytes,
        "scanned_batches": found.scanned_batches,
        "scanned_records": found.scanned_records,
    })
}

fn text(found: &Lookup, interval: u32) -> String {
    let source = if found.from_store {
        "the index store"
    } else {
        "a scan of the segment"
    };
    format!(
        "offset {} lies in {} after {} comparison(s)\n\
         index entry from {source}, one every {interval} bytes: offset {} at byte {}\n\
         batch at offset {}, byte {}, {} bytes long\n\
         scanned behind the entry: {} batch(es), {} record(s), {} bytes\n",
        found.offset,
        found.segment.path.display(),
        found.segments_compared,
        found.entry.offset,
        found.entry.position,
        found.batch_base,
        found.batch_position,
        found.batch_bytes,
        found.scanned_batches,
        found.scanned_records,
        found.scanned_bytes,
    )
}
