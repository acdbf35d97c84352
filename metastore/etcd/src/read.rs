//! Range reads, in pages that fit a message, all at one revision.

use crate::{
    EtcdMetastore,
    fault::Fault,
    link::{Repeat, kv},
    namespace::{revision, to_etcd},
};
use etcd_client::{GetOptions, GetResponse, WatchOptions};
use talweg_metastore::{KeyRange, KeyValue, MetastoreError, Ranged, Revision};

/// Entries of the first page: even with etcd's largest values its answer fits.
const FIRST_PAGE: usize = 128;
const LARGEST_PAGE: usize = 4096;
/// What a page should come to.
const PAGE_BYTES: usize = 1 << 20;
/// A read of the latest revision starts again when it is compacted between two
/// pages; after so many times something compacts faster than anyone can read.
const RESTARTS: usize = 3;

impl EtcdMetastore {
    pub(crate) async fn read(
        &self,
        range: KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError> {
        // Revision 0 means "the latest" to etcd; to us it lies before the first.
        let asked = at.map(|at| at.max(Revision::FIRST));
        let mut restarts = 0;
        loop {
            match self.read_pages(&range, asked, limit).await {
                Err(Fault::Compacted) if at.is_none() && restarts < RESTARTS => restarts += 1,
                Err(fault) => return Err(self.explain(fault, asked).await),
                Ok(ranged) => return Ok(ranged),
            }
        }
    }

    async fn read_pages(
        &self,
        range: &KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, Fault> {
        if range.is_empty() {
            // etcd takes some crossed ranges for "everything from here on".
            let answer = self.read_page(&KeyRange::key(b"-"), at, 1).await?;
            return Ok(ranged(&answer, Vec::new(), false));
        }
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut page = FIRST_PAGE;
        let first = self.read_page(range, at, page.min(limit)).await?;
        let newest = header_revision(&first);
        let at = at.unwrap_or(newest);
        let (mut answer, mut entries) = (first, Vec::new());
        loop {
            let more = answer.more();
            let taken = self.take_entries(&mut answer, &mut entries);
            let last = entries.last().map(|entry: &KeyValue| entry.key.clone());
            let (true, Some(last)) = (more && entries.len() < limit, last) else {
                return Ok(Ranged {
                    revision: newest,
                    entries,
                    more,
                });
            };
            page = next_page(page, taken);
            let rest = limit - entries.len();
            answer = self
                .read_page(&range.after(&last), Some(at), page.min(rest))
                .await?;
        }
    }

    /// Moves a page's entries; returns their bytes.
    fn take_entries(&self, answer: &mut GetResponse, entries: &mut Vec<KeyValue>) -> usize {
        let before = entries.len();
        let kvs = answer.take_kvs();
        entries.extend(kvs.into_iter().filter_map(|kv| self.namespace.entry(kv)));
        entries[before..]
            .iter()
            .map(|entry| entry.key.len() + entry.value.len())
            .sum()
    }

    async fn read_page(
        &self,
        range: &KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<GetResponse, Fault> {
        let (start, end) = self.namespace.range(range);
        let options = GetOptions::new()
            .with_range(end)
            .with_limit(i64::try_from(limit).unwrap_or(i64::MAX))
            .with_revision(at.map_or(0, to_etcd));
        let call = |client| {
            let (start, options) = (start.clone(), options.clone());
            async move { kv(&client).get(start, Some(options)).await }
        };
        self.link.call(Repeat::Free, call).await
    }

    /// Whether history at `at` is still there.
    pub(crate) async fn check_kept(&self, at: Revision) -> Result<(), MetastoreError> {
        match self.read_page(&KeyRange::key(b"-"), Some(at), 1).await {
            Ok(_) | Err(Fault::Future) => Ok(()),
            Err(fault) => Err(self.explain(fault, Some(at)).await),
        }
    }

    /// The error for the fault of a call about revision `asked`. etcd says that
    /// a revision is compacted or in the future, but not what would be right;
    /// that is looked up.
    pub(crate) async fn explain(&self, fault: Fault, asked: Option<Revision>) -> MetastoreError {
        let asked = asked.unwrap_or_default();
        let explained = match fault {
            Fault::Compacted => self.oldest().await,
            Fault::Future => self
                .newest()
                .await
                .map(|newest| MetastoreError::FutureRevision { asked, newest }),
            other => Err(other),
        };
        explained.unwrap_or_else(Fault::of_read)
    }

    async fn newest(&self) -> Result<Revision, Fault> {
        let answer = self.read_page(&KeyRange::key(b"-"), None, 1).await?;
        Ok(header_revision(&answer))
    }

    /// `Compacted` with the oldest revision, which only a watch from before it
    /// is told.
    async fn oldest(&self) -> Result<MetastoreError, Fault> {
        let key = self.namespace.key(b"-");
        let call = |client: etcd_client::Client| {
            let (key, options) = (key.clone(), WatchOptions::new().with_start_revision(1));
            async move {
                let mut watch = client.watch_client().watch(key, Some(options)).await?;
                while let Some(answer) = watch.message().await? {
                    if answer.compact_revision() > 0 {
                        return Ok(revision(answer.compact_revision()));
                    }
                }
                Err(etcd_client::Error::WatchError("ended early".into()))
            }
        };
        let oldest = self.link.call(Repeat::Free, call).await?;
        Ok(MetastoreError::Compacted { oldest })
    }
}

fn ranged(answer: &GetResponse, entries: Vec<KeyValue>, more: bool) -> Ranged {
    Ranged {
        revision: header_revision(answer),
        entries,
        more,
    }
}

fn header_revision(answer: &GetResponse) -> Revision {
    revision(answer.header().map_or(0, |header| header.revision()))
}

/// Twice as many while pages stay small, fewer once one was large.
fn next_page(page: usize, bytes: usize) -> usize {
    if bytes > PAGE_BYTES {
        let fitting = page.saturating_mul(PAGE_BYTES) / bytes;
        return fitting.clamp(1, LARGEST_PAGE);
    }
    if bytes > PAGE_BYTES / 2 {
        return page;
    }
    (page * 2).min(LARGEST_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_while_small_and_shrink_once_large() {
        assert_eq!(next_page(128, 1000), 256);
        assert_eq!(next_page(4096, 0), LARGEST_PAGE);
        assert_eq!(next_page(1024, PAGE_BYTES), 1024);
        assert_eq!(next_page(1024, PAGE_BYTES * 4), 256);
        assert_eq!(next_page(128, PAGE_BYTES * 1000), 1);
    }
}
