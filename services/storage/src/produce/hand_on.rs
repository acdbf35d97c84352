//! From a frame that may come to batches in a loop's mailbox.
//!
//! Checked on the stream's task where that is quick, else on a worker; handed on
//! at once where the mailbox has room, else when it has. Either way a stream has
//! one frame on this way, so that nothing overtakes.

use super::{
    accept::{self, Checked, Parts, Target},
    pending::{Amount, Fate},
    stream::{Ended, ProduceStream},
};
use crate::{
    partition::{AppendRequest, Command, Reservation},
    resolve,
};
use bytes::Bytes;
use std::{future::Future, pin::Pin, sync::Arc};
use talweg_batch::CheckedBatch;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::Acks;
use tokio::time::Instant;

/// A frame that is checked and waits for room.
pub(super) struct Prepared {
    target: Target,
    checked: Checked,
    /// None: the delivery time-out passed before there was room.
    reservation: Option<Reservation>,
}

pub(super) type Preparing = Pin<Box<dyn Future<Output = Result<Prepared, Refusal>> + Send>>;

impl ProduceStream {
    pub(super) fn check_credit(&self, parts: &Parts) -> Result<(), Refusal> {
        if self.pending.fits(parts.amount) {
            return Ok(());
        }
        let (granted, outstanding) = (self.pending.granted(), self.pending.outstanding());
        let message = format!(
            "{} bytes and {} records are unanswered, {} and {} more do not fit the grant",
            outstanding.bytes, outstanding.records, parts.amount.bytes, parts.amount.records
        );
        let refusal = Refusal::new(ErrorCode::CreditExceeded, message);
        Err(if outstanding.bytes + parts.amount.bytes > granted.bytes {
            refusal.with_limit(
                "credit",
                granted.bytes,
                outstanding.bytes + parts.amount.bytes,
                "bytes",
            )
        } else {
            refusal.with_limit(
                "credit",
                granted.records,
                outstanding.records + parts.amount.records,
                "records",
            )
        })
    }

    /// Checks and hands on, at once if neither takes time.
    pub(super) async fn prepare(&mut self, parts: Parts, target: Target) -> Result<(), Ended> {
        let bytes = parts.batches.iter().map(Bytes::len).sum();
        let owner = self.node.loop_of(&target.handle).clone();
        let slow = accept::is_slow(&parts.batches);
        if !slow && let Some(reservation) = owner.try_reserve(bytes) {
            let checked = accept::check(parts.first_sequence, parts.batches, &target.topic);
            return self
                .hand_on(Prepared {
                    target,
                    checked,
                    reservation: Some(reservation),
                })
                .await;
        }
        self.preparing_sequences =
            parts.first_sequence..parts.first_sequence + parts.batches.len() as u64;
        let timeout = self.opening.delivery_timeout;
        self.preparing = Some(Box::pin(async move {
            let topic = Arc::clone(&target.topic);
            let check = move || accept::check(parts.first_sequence, parts.batches, &topic);
            let checked = tokio::task::spawn_blocking(check).await;
            let checked =
                checked.map_err(|_| Refusal::internal("the check of a batch broke off"))?;
            let reservation = match tokio::time::timeout(timeout, owner.reserve(bytes)).await {
                Ok(Ok(reservation)) => Some(reservation),
                Ok(Err(_)) => return Err(resolve::draining()),
                Err(_) => None,
            };
            Ok(Prepared {
                target,
                checked,
                reservation,
            })
        }));
        Ok(())
    }

    pub(super) async fn on_prepared(
        &mut self,
        prepared: Result<Prepared, Refusal>,
    ) -> Result<(), Ended> {
        self.preparing = None;
        match prepared {
            Ok(prepared) => self.hand_on(prepared).await,
            Err(refusal) => {
                let sequences = self.preparing_sequences.clone();
                self.refuse(None, sequences, &refusal).await
            }
        }
    }

    async fn hand_on(&mut self, prepared: Prepared) -> Result<(), Ended> {
        let Prepared {
            target,
            checked,
            reservation,
        } = prepared;
        let tp = target.handle.tp;
        let mut batches: Vec<(u64, CheckedBatch)> = Vec::with_capacity(checked.len());
        for (sequence, result) in checked {
            match result {
                Ok(batch) => batches.push((sequence, batch)),
                Err(refusal) => {
                    self.refuse(Some(tp), sequence..sequence + 1, &refusal)
                        .await?
                }
            }
        }
        let Some(first) = batches.first().map(|(sequence, _)| *sequence) else {
            return Ok(());
        };
        let last = batches.last().map_or(first, |(sequence, _)| *sequence);
        let Some(reservation) = reservation else {
            let refusal = Refusal::new(
                ErrorCode::DeliveryTimeoutNotSent,
                "there was no room within the delivery time-out",
            );
            return self.refuse(Some(tp), first..last + 1, &refusal).await;
        };
        let amounts = batches.iter().map(|(sequence, batch)| {
            let records = u64::try_from(batch.header.record_count).unwrap_or(0);
            (
                *sequence,
                Amount {
                    bytes: batch.bytes.len() as u64,
                    records,
                },
            )
        });
        let silent = target.acks == Acks::Zero;
        let deadline = Instant::now() + self.opening.delivery_timeout;
        let slot = self.pending.push(tp, amounts, silent, deadline);
        let numbered = batches
            .iter()
            .filter(|(_, batch)| batch.header.has_producer());
        self.base_sequences
            .extend(numbered.map(|(sequence, batch)| (*sequence, batch.header.base_sequence.0)));
        let request = AppendRequest {
            tp,
            expected_epoch: target.expected_epoch,
            acks: target.acks,
            batches,
            stream: Arc::clone(&self.completions),
            slot,
            reservation,
        };
        if self
            .node
            .loop_of(&target.handle)
            .send(Command::Append(request))
            .is_err()
        {
            for sequence in first..=last {
                self.pending
                    .decide(slot, sequence, Fate::Refused(resolve::draining()));
            }
            self.answer([slot].into_iter()).await?;
        }
        Ok(())
    }
}
