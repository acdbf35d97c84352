//! What comes on the streams, and how records end.

use super::*;

impl Task {
    pub(super) fn on_event(&mut self, event: Event) {
        let Some(at) = self.links.iter().position(|link| link.id == event.link) else {
            return;
        };
        match event.what {
            Ok(Some(frame)) => self.on_frame(at, frame),
            // A frame of a newer server.
            Ok(None) => {}
            Err(status) => self.on_ended(at, status),
        }
    }

    pub(super) fn on_frame(&mut self, at: usize, frame: Frame) {
        let link = &mut self.links[at];
        match frame {
            Frame::Opened(opened) => {
                link.opened = true;
                let credit = opened.credit.unwrap_or_default();
                link.give(credit.bytes.max(0), credit.records.max(0));
                self.backoff.reset();
            }
            Frame::RecordsAck(ack) => self.on_ack(at, &ack),
            Frame::Refusal(refusal) => {
                let why = Refusal::from_detail(refusal.error.unwrap_or_default());
                for sequence in refusal.sequences {
                    self.settle(at, sequence, || Outcome::refused(why.clone()));
                }
            }
            Frame::Credit(credit) => self.on_credit(at, credit),
            Frame::Drain(_) => {
                link.drain();
                let server = link.server.clone();
                if self.is_current(at) {
                    self.current = false;
                    self.client.avoid(&server);
                    self.dial_at = Instant::now();
                }
            }
            Frame::BatchAck(_) | Frame::Heartbeat(_) | Frame::Throttle(_) | Frame::Closing(_) => {}
        }
    }

    /// Credit-only frames answer the oldest records of an acks=0 stream.
    pub(super) fn on_credit(&mut self, at: usize, credit: v1::Credit) {
        let link = &mut self.links[at];
        link.give(credit.bytes, credit.records);
        let mut left = credit.records;
        while left > 0 && link.unanswered.take(link.unanswered.oldest()).is_some() {
            left -= 1;
        }
    }

    pub(super) fn on_ack(&mut self, at: usize, ack: &v1::RecordsAck) {
        for (nth, sequence) in ack.sequences.iter().enumerate() {
            let known = ack.base_offset >= 0;
            self.settle(at, *sequence, || {
                Outcome::Done(Delivered {
                    partition: PartitionIndex(ack.partition),
                    offset: known.then(|| Offset(ack.base_offset).plus(nth as i64)),
                    timestamp: TimestampMs(ack.timestamp_ms),
                    durability: ack.durability.unwrap_or_default(),
                    duplicate: ack.duplicate,
                })
            });
        }
    }

    pub(super) fn settle(&mut self, at: usize, sequence: u64, outcome: impl FnOnce() -> Outcome) {
        let link = &mut self.links[at];
        if let Some(place) = link.unanswered.take(sequence) {
            link.give(place.bytes, 1);
            self.answer(place, outcome());
        }
    }

    pub(super) fn answer(&mut self, place: Place, outcome: Outcome) {
        let Some(job) = self.jobs.get_mut(&place.job) else {
            return;
        };
        let slot = &mut job.outcomes[place.index];
        if slot.is_none() {
            *slot = Some(outcome);
            job.left -= 1;
        }
        if job.left == 0
            && let Some(job) = self.jobs.remove(&place.job)
        {
            // Whoever dropped the receipts does not want to know.
            drop(job.reply.send(job.outcomes.into_iter().flatten().collect()));
        }
    }

    pub(super) fn is_current(&self, at: usize) -> bool {
        self.current && at + 1 == self.links.len()
    }

    pub(super) fn on_ended(&mut self, at: usize, status: Option<Status>) {
        let was_current = self.is_current(at);
        let mut link = self.links.remove(at);
        for place in link.unanswered.take_all() {
            self.answer(
                place,
                Outcome::Unknown(Refusal::new(
                    ErrorCode::OutcomeUnknown,
                    "the stream to the gateway broke before it answered",
                )),
            );
        }
        if !was_current {
            return;
        }
        self.current = false;
        self.client.avoid(&link.server);
        let refusal = status.map(|status| Refusal::from_status(&status));
        self.dial_at = Instant::now()
            + self
                .backoff
                .pause(refusal.as_ref().map_or(0, |r| r.retry_after_ms));
        if let Some(refusal) = refusal.filter(|refusal| !refusal.is_retriable()) {
            self.fail_waiting(&refusal);
        }
    }
}
