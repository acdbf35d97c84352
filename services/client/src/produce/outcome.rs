//! How a record or batch ended, and the receipts that tell it.

use crate::delivery;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use talweg_kit::errors::{Effect, ErrorCode, Refusal};
use talweg_proto::v1;
use talweg_types::{Offset, PartitionIndex, TimestampMs};
use tokio::sync::oneshot;

/// Where a record (or the first of a batch) is.
#[derive(Clone, PartialEq, Debug)]
pub struct Delivered {
    pub partition: PartitionIndex,
    /// `None`: acks 0, or a repeat too old for its offset to be remembered.
    pub offset: Option<Offset>,
    /// Append time; `TimestampMs::NONE` with acks 0.
    pub timestamp: TimestampMs,
    pub durability: v1::Durability,
    /// It had been appended before.
    pub duplicate: bool,
}

/// How a record or batch ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It is in the log.
    Done(Delivered),
    /// It is not in the log.
    Refused(Refusal),
    /// It may be in the log.
    Unknown(Refusal),
}

impl Outcome {
    /// By the effect that the refusal states.
    pub fn refused(refusal: Refusal) -> Self {
        match refusal.effect() {
            Effect::NotDone => Self::Refused(refusal),
            Effect::Done | Effect::Unknown | Effect::Unspecified => Self::Unknown(refusal),
        }
    }

    /// The place in the log, or the refusal.
    pub fn into_result(self) -> Result<Delivered, Refusal> {
        match self {
            Self::Done(delivered) => Ok(delivered),
            Self::Refused(refusal) | Self::Unknown(refusal) => Err(refusal),
        }
    }

    pub(super) fn of(partition: PartitionIndex, outcome: delivery::Outcome) -> Self {
        match outcome {
            delivery::Outcome::Done(done) => Self::Done(Delivered {
                partition,
                offset: done.base_offset.map(Offset),
                timestamp: TimestampMs(done.timestamp_ms),
                durability: done.durability,
                duplicate: done.duplicate,
            }),
            delivery::Outcome::Refused(refusal) => Self::refused(refusal),
        }
    }

    fn abandoned() -> Self {
        Self::Unknown(Refusal::new(
            ErrorCode::OutcomeUnknown,
            "the producer was closed before the answer came",
        ))
    }
}

/// Resolves to the outcome of each record of one call, in order.
#[derive(Debug)]
pub struct Receipts {
    pub(super) outcomes: oneshot::Receiver<Vec<Outcome>>,
    pub(super) records: usize,
}

impl Future for Receipts {
    type Output = Vec<Outcome>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let records = self.records;
        Pin::new(&mut self.outcomes)
            .poll(cx)
            .map(|it| it.unwrap_or_else(|_| vec![Outcome::abandoned(); records]))
    }
}

/// Resolves to the outcome of one batch.
#[derive(Debug)]
pub struct Delivery(pub(super) oneshot::Receiver<Outcome>);

impl Future for Delivery {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|it| it.unwrap_or_else(|_| Outcome::abandoned()))
    }
}
