//! RocksDB: opened for small, rare, synced writes; read whole when opened.

use crate::{
    OpenError,
    format::{self, DATA_END, DATA_PREFIX, FORMAT, FORMAT_KEY, REVISION_KEY},
};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRecoveryMode, Direction, IteratorMode,
    Options, ReadOptions, WriteBatch, WriteOptions,
};
use std::path::{Path, PathBuf};
use talweg_metastore::{Event, KeyValue, Revision, mvcc::Commit};

const WRITE_BUFFER_BYTES: usize = 4 << 20;
const CACHE_BYTES: usize = 1 << 20;
const WAL_BYTES: u64 = 16 << 20;

pub(crate) struct Disk {
    db: DB,
    path: PathBuf,
}

pub(crate) struct Stored {
    pub(crate) revision: Revision,
    pub(crate) entries: Vec<KeyValue>,
}

fn options() -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
    let mut options = Options::default();
    options.create_if_missing(true);
    // The torn end of the log was never acknowledged: writes are synced.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_paranoid_checks(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_total_wal_size(WAL_BYTES);
    options.set_max_background_jobs(2);
    options.set_max_open_files(64);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    options
}

impl Disk {
    /// Opens or creates it, and checks the format.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let database = |reason: String| OpenError::Database {
            path: path.to_owned(),
            reason,
        };
        let db = DB::open(&options(), path).map_err(|e| database(e.to_string()))?;
        let disk = Self {
            db,
            path: path.to_owned(),
        };
        match disk.read(FORMAT_KEY)?.as_deref() {
            Some([FORMAT]) => {}
            Some([found, ..]) => {
                let found = *found;
                return Err(OpenError::Format {
                    path: path.to_owned(),
                    found,
                    newest: FORMAT,
                });
            }
            Some([]) => return Err(disk.damaged("its format is empty")),
            None => disk.create()?,
        }
        Ok(disk)
    }

    /// Marks an empty database as ours.
    fn create(&self) -> Result<(), OpenError> {
        if self.db.iterator(IteratorMode::Start).next().is_some() {
            return Err(self.damaged("it holds entries but no format"));
        }
        let mut batch = WriteBatch::default();
        batch.put(FORMAT_KEY, [FORMAT]);
        batch.put(REVISION_KEY, Revision::FIRST.0.to_be_bytes());
        self.write(batch).map_err(|reason| self.failed(reason))
    }

    /// The newest revision and every entry.
    pub(crate) fn load(&self) -> Result<Stored, OpenError> {
        let revision = self.read(REVISION_KEY)?.as_deref().and_then(format::number);
        let revision = Revision(revision.ok_or_else(|| self.damaged("it has no revision"))?);
        let mut bounds = ReadOptions::default();
        bounds.set_iterate_upper_bound(DATA_END);
        let from = IteratorMode::From(DATA_PREFIX, Direction::Forward);
        let mut entries = Vec::new();
        for item in self.db.iterator_opt(from, bounds) {
            let (key, value) = item.map_err(|e| self.damaged(e.as_ref()))?;
            let entry = format::decode(&key, &value)
                .filter(|entry| entry.mod_revision <= revision)
                .ok_or_else(|| {
                    self.damaged(&format!("entry {:?}", String::from_utf8_lossy(&key)))
                })?;
            entries.push(entry);
        }
        Ok(Stored { revision, entries })
    }

    /// Writes one change; it is on stable storage when this returns. After an
    /// error it may or may not be.
    pub(crate) fn commit(&self, commit: &Commit) -> Result<(), String> {
        let mut batch = WriteBatch::default();
        for event in &commit.events {
            match event {
                Event::Put(entry) => {
                    batch.put(format::data_key(&entry.key), format::encode(entry));
                }
                Event::Delete { key, .. } => batch.delete(format::data_key(key)),
            }
        }
        batch.put(REVISION_KEY, commit.revision.0.to_be_bytes());
        self.write(batch)
    }

    fn write(&self, batch: WriteBatch) -> Result<(), String> {
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.db.write_opt(batch, &synced).map_err(|e| e.to_string())
    }

    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpenError> {
        self.db.get(key).map_err(|e| self.failed(e.to_string()))
    }

    fn failed(&self, reason: String) -> OpenError {
        OpenError::Database {
            path: self.path.clone(),
            reason,
        }
    }

    fn damaged(&self, reason: &str) -> OpenError {
        OpenError::Damaged {
            path: self.path.clone(),
            reason: reason.to_owned(),
        }
    }
}
