//! The append in flight.

use super::task::{Ended, Task};
use crate::append::{Append, End};
use std::{sync::Arc, time::Instant};
use talweg_coordinator_runtime::{Encoded, Input};
use talweg_group::Group;
use talweg_kit::errors::{ErrorCode, Refusal};
use tokio_util::task::AbortOnDropHandle;

/// Its id, since when it goes on, and its end.
pub type InFlight = (u64, Instant, AbortOnDropHandle<End>);

impl Task {
    pub fn on_append(&mut self, id: u64, records: &[Encoded]) -> Option<Input<Group>> {
        let batch = match self.producer.batch(records) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(at = %self.handle.at, %error, "a batch could not be made");
                return Some(Input::NotAppended { id });
            }
        };
        let metrics = &self.node.metrics;
        metrics.append_records.inc_by(records.len() as u64);
        let append = Append {
            log: Arc::clone(&self.node.log),
            at: self.handle.at,
            epoch: self.handle.epoch,
            batch,
            metrics: metrics.clone(),
        };
        let running = AbortOnDropHandle::new(tokio::spawn(append.run()));
        self.append = Some((id, Instant::now(), running));
        None
    }

    pub fn on_append_end(&mut self, id: u64, begun: Instant, end: Option<End>) {
        let metrics = &self.node.metrics;
        metrics
            .append_seconds
            .observe(begun.elapsed().as_secs_f64());
        match end {
            Some(End::Appended(place)) => {
                metrics.appends.inc();
                self.producer.appended();
                self.keeping.rests_on(place.leader_epoch);
                let last_offset = place.last;
                self.feed(Input::Appended { id, last_offset });
            }
            Some(End::NotAppended(refusal)) => {
                tracing::warn!(at = %self.handle.at, %refusal, "an append failed; what waits is answered as not done");
                self.feed(Input::NotAppended { id });
                if needs_new_numbers(&refusal) {
                    self.ended = Some(Ended::TakeAgain);
                }
            }
            Some(End::Lost(refusal)) => {
                tracing::info!(at = %self.handle.at, epoch = self.handle.epoch.0, %refusal, "the shard is another's");
                self.ended = Some(Ended::Over);
            }
            Some(End::Unknown(refusal)) => {
                tracing::warn!(at = %self.handle.at, %refusal, "the log has lost what this shard had appended; it is taken again");
                self.ended = Some(Ended::TakeAgain);
            }
            // The task died, a defect: nobody knows what became of the append.
            None => self.ended = Some(Ended::TakeAgain),
        }
    }
}

/// After a long silence the leader may have forgotten the producer; certainly not
/// appended, so that a new one repeats nothing.
fn needs_new_numbers(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        ErrorCode::UnknownProducer | ErrorCode::OutOfOrderSequence | ErrorCode::ProducerFenced
    )
}

/// Pends while nothing is in flight.
pub async fn append_end(append: &mut Option<InFlight>) -> (u64, Instant, Option<End>) {
    let Some((id, begun, running)) = append else {
        return std::future::pending().await;
    };
    let (id, begun) = (*id, *begun);
    let end = running.await.ok();
    *append = None;
    (id, begun, end)
}
