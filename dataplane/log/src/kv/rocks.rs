//! [`IndexKv`] over RocksDB: one database, one column family, no write-ahead
//! log. The index is a cache of what the log says, so a crash may forget the
//! newest writes; memtables reach disk in order, so what is left is always the
//! state after some earlier write, never a mix. A database that cannot be opened
//! is put aside and an empty one takes its place; one that another process holds
//! is an error and stays untouched.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, ErrorKind, LogLevel, Options,
    ReadOptions, WriteBatch, WriteOptions,
};

use super::{IndexKv, KvError, KvOp};

#[cfg(test)]
mod tests;

/// What one index store may take of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RocksKvConfig {
    /// Blocks of the database kept in memory, index and filter blocks included.
    pub block_cache_bytes: usize,
    /// Memtables: written but not yet in files.
    pub write_buffer_bytes: usize,
    /// Descriptors of the database's files.
    pub max_open_files: u16,
}

impl Default for RocksKvConfig {
    fn default() -> Self {
        Self {
            block_cache_bytes: 32 << 20,
            write_buffer_bytes: 16 << 20,
            max_open_files: 128,
        }
    }
}

/// The index store of a storage node.
pub struct RocksKv {
    db: DB,
    cache: Cache,
    /// The last field, so that it goes when the database has been closed.
    open: Arc<()>,
}

impl RocksKv {
    /// Opens the database in `folder`, which is made when missing. Whatever is
    /// there and cannot be opened is moved to [`set_aside_path`], in the place of
    /// what was put aside before, and an empty database is made.
    ///
    /// # Errors
    /// Another process (or another value in this one) holds the database; or
    /// neither the old nor an empty database could be opened.
    pub fn open(folder: &Path, config: RocksKvConfig) -> Result<Self, KvError> {
        // A file of that name, a folder we may not enter, a damaged manifest: all
        // the same to us, the log has everything. Only a held lock means that the
        // database is well and somebody's.
        match Self::open_as_is(folder, config) {
            Ok(kv) => Ok(kv),
            Err(error) if is_lock_error(&error) => Err(failed("opening", folder, error)),
            Err(error) => {
                let aside = set_aside_path(folder);
                tracing::warn!(
                    folder = %folder.display(),
                    aside = %aside.display(),
                    %error,
                    "the index cannot be opened; it is set aside and will be rebuilt from the log"
                );
                set_aside(folder, &aside).map_err(|e| failed("setting aside", folder, e))?;
                Self::open_as_is(folder, config).map_err(|e| failed("making", folder, e))
            }
        }
    }

    fn open_as_is(folder: &Path, config: RocksKvConfig) -> Result<Self, rocksdb::Error> {
        let cache = Cache::new_lru_cache(config.block_cache_bytes);
        let db = DB::open(&options(config, &cache), folder)?;
        let open = Arc::new(());
        Ok(Self { db, cache, open })
    }

    /// Has no strong reference any more once the database is closed and another
    /// may open it. A count of references to this value falls to nothing before
    /// that: while the database still closes.
    pub fn while_open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    /// Writes what is in memory to files, so that a clean stop finds its index
    /// where it left it. Nothing depends on it.
    pub fn flush(&self) -> Result<(), KvError> {
        self.db.flush().map_err(error)
    }

    /// Bytes of memory held: memtables, blocks and table readers.
    pub fn memory_bytes(&self) -> u64 {
        let property = |name| self.db.property_int_value(name).ok().flatten().unwrap_or(0);
        property("rocksdb.cur-size-all-mem-tables")
            + property("rocksdb.estimate-table-readers-mem")
            + self.cache.get_usage() as u64
    }

    fn iterator(&self, options: ReadOptions) -> DBRawIterator<'_> {
        self.db.raw_iterator_opt(options)
    }
}

impl IndexKv for RocksKv {
    fn write(&self, ops: Vec<KvOp>) -> Result<(), KvError> {
        let mut batch = WriteBatch::default();
        for op in &ops {
            match op {
                KvOp::Put(key, value) => batch.put(key, value),
                KvOp::Delete(key) => batch.delete(key),
                // RocksDB refuses a range that ends before it begins; here it is empty.
                KvOp::DeleteRange(low, high) if low < high => batch.delete_range(low, high),
                KvOp::DeleteRange(..) => {}
            }
        }
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.write_opt(batch, &options).map_err(error)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let found = self.db.get_pinned(key).map_err(error)?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn last_in(&self, low: &[u8], high: &[u8]) -> Result<Option<(Bytes, Bytes)>, KvError> {
        if low > high {
            return Ok(None);
        }
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(low);
        let mut entries = self.iterator(options);
        entries.seek_for_prev(high);
        match entries.item() {
            Some(item) => Ok(Some(owned(item))),
            // The end and an error look the same until asked.
            None => entries.status().map(|()| None).map_err(error),
        }
    }

    fn scan(&self, low: &[u8], high: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        let mut found = Vec::new();
        if low >= high || limit == 0 {
            return Ok(found);
        }
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(high);
        let mut entries = self.iterator(options);
        entries.seek(low);
        while let Some(item) = entries.item() {
            found.push(owned(item));
            if found.len() == limit {
                return Ok(found);
            }
            entries.next();
        }
        entries.status().map_err(error)?;
        Ok(found)
    }
}

/// Where a database that could not be opened is kept for a person to look at.
pub fn set_aside_path(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".damaged");
    PathBuf::from(name)
}

/// Moves `folder` to `aside`. Only one is kept: the one put aside before goes.
fn set_aside(folder: &Path, aside: &Path) -> io::Result<()> {
    remove_any(aside)?;
    match std::fs::rename(folder, aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_any(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    }
}

fn options(config: RocksKvConfig, cache: &Cache) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    // Otherwise they live outside the budget, for every open file.
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_bloom_filter(10.0, false);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    // Whether the library was built with a codec is not ours to decide.
    options.set_compression_type(DBCompressionType::None);
    options.set_db_write_buffer_size(config.write_buffer_bytes);
    options.set_write_buffer_size((config.write_buffer_bytes / 2).max(64 << 10));
    options.set_max_open_files(i32::from(config.max_open_files));
    options.set_max_background_jobs(2);
    // RocksDB's own log, kept small: what matters comes back as an error.
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options
}

/// RocksDB has no error kind for a held lock, only these two beginnings: held by
/// another process, and held by this one.
fn is_lock_error(error: &rocksdb::Error) -> bool {
    let text = error.as_ref();
    error.kind() == ErrorKind::IOError
        && (text.starts_with("IO error: While lock file")
            || text.starts_with("IO error: lock hold"))
}

fn owned((key, value): (&[u8], &[u8])) -> (Bytes, Bytes) {
    (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))
}

fn error(error: rocksdb::Error) -> KvError {
    KvError(error.into_string())
}

fn failed(doing: &str, folder: &Path, error: impl std::fmt::Display) -> KvError {
    KvError(format!("{doing} {}: {error}", folder.display()))
}
