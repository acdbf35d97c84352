//! Producer ids: blocks from the controller, given out one by one and never
//! twice. A block is fetched before the last one is used up, so that streams
//! open while no controller is there.

use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use talweg_client::{Again, Client, backoff::Backoff};
use talweg_kit::errors::Refusal;
use talweg_proto::controller::v1::{
    AllocateProducerIdsRequest, controller_service_client::ControllerServiceClient,
};
use talweg_types::{ProducerId, limits};
use tokio::sync::Notify;

/// Ids left below which the next block is fetched.
const LOW: i64 = limits::PRODUCER_ID_BLOCK / 2;
/// Ids held at most: what is left of a block and a whole one.
const BLOCKS: usize = 2;

/// Gives out producer ids. Cheap to clone.
#[derive(Clone, Default)]
pub struct ProducerIds {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// (first, one past the last) of each block, oldest first.
    blocks: Mutex<Vec<(i64, i64)>>,
    low: Notify,
    filled: Notify,
}

impl ProducerIds {
    /// The next id; `None` while there is none and the controller cannot be asked.
    pub fn try_next(&self) -> Option<ProducerId> {
        let mut blocks = self.shared.blocks.lock();
        let (first, end) = blocks.first_mut()?;
        let id = *first;
        *first += 1;
        if first == end {
            blocks.remove(0);
        }
        if left(&blocks) < LOW {
            self.shared.low.notify_one();
        }
        Some(ProducerId(id))
    }

    /// The next id; waits for the controller as long as `limit`.
    pub async fn next(&self, limit: Duration) -> Result<ProducerId, Refusal> {
        let waiting = async {
            loop {
                let filled = self.shared.filled.notified();
                if let Some(id) = self.try_next() {
                    return id;
                }
                self.shared.low.notify_one();
                filled.await;
            }
        };
        tokio::time::timeout(limit, waiting)
            .await
            .map_err(|_| none_left())
    }

    /// Adds a block.
    fn fill(&self, first: i64, count: i64) {
        self.shared
            .blocks
            .lock()
            .push((first, first.saturating_add(count)));
        self.shared.filled.notify_waiters();
    }

    fn wants_more(&self) -> bool {
        let blocks = self.shared.blocks.lock();
        blocks.len() < BLOCKS && left(&blocks) < LOW
    }

    /// Keeps blocks in store; never ends.
    pub async fn keep_filled(self, controller: Client) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            if !self.wants_more() {
                self.shared.low.notified().await;
                continue;
            }
            match allocate(&controller).await {
                Ok((first, count)) => {
                    backoff.reset();
                    self.fill(first, count);
                }
                Err(refusal) => {
                    tracing::warn!(%refusal, "no producer ids from the controller");
                    tokio::time::sleep(backoff.pause(refusal.retry_after_ms)).await;
                }
            }
        }
    }
}

/// What a producer is told who cannot have an id.
pub fn none_left() -> Refusal {
    Refusal::unavailable("no producer id is left and the controller cannot be asked")
        .retry_after(500)
}

fn left(blocks: &[(i64, i64)]) -> i64 {
    blocks.iter().map(|(first, end)| end - first).sum()
}

async fn allocate(controller: &Client) -> Result<(i64, i64), Refusal> {
    let count = u32::try_from(limits::PRODUCER_ID_BLOCK).unwrap_or(u32::MAX);
    // A block that nobody uses harms nobody.
    let block = controller
        .call(
            Again::Safe,
            AllocateProducerIdsRequest { count },
            |channel, request| async move {
                ControllerServiceClient::new(channel)
                    .allocate_producer_ids(request)
                    .await
            },
        )
        .await?;
    let (first, count) = (block.first, i64::from(block.count));
    let end = first.saturating_add(count);
    if first < 0 || count == 0 || end > limits::DERIVED_PRODUCER_ID_BASE {
        return Err(Refusal::internal(format!(
            "the controller gave the id block {first}+{count}"
        )));
    }
    Ok((first, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ids_are_given_once_and_more_are_wanted_in_time() {
        let ids = ProducerIds::default();
        assert!(ids.try_next().is_none());
        assert!(
            ids.next(Duration::from_millis(5)).await.is_err(),
            "nobody fills"
        );
        ids.fill(100, 2);
        ids.fill(500, 1_000);
        let given: Vec<i64> = (0..4)
            .filter_map(|_| ids.try_next())
            .map(|id| id.0)
            .collect();
        assert_eq!(given, [100, 101, 500, 501]);
        assert!(!ids.wants_more());
        for _ in 0..499 {
            ids.try_next().expect("an id");
        }
        assert!(ids.wants_more(), "half a block is left");
    }
}
