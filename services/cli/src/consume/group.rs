//! `talweg consume TOPIC --group G`: a member of a group that prints and commits.
//!
//! Credit is granted again as records are printed. What was printed is committed
//! before its partition is given up, and before the command ends.

use super::format::RecordFormat;
use crate::{
    args::{CommitMode, ConsumeArgs, Globals, Start},
    connect,
    failure::{Failure, error_line},
    out,
};
use bytes::Bytes;
use std::{collections::BTreeMap, time::Duration};
use talweg_client::{SubscribeEvent, Subscriber, payload::fetched_record_bytes};
use talweg_kit::{errors::Refusal, shutdown};
use talweg_proto::v1::{self, subscribe_response::Frame};

/// Payload on its way to us.
const CREDIT_BYTES: i64 = 16 * 1024 * 1024;
const CREDIT_RECORDS: i64 = 50_000;
/// For the answer to the last commit, and for the goodbye.
const ENDING: Duration = Duration::from_secs(10);

/// A partition by topic id and number.
type Place = (Bytes, u32);

/// A partition in our hands.
struct Owned {
    /// The next offset to print.
    next: i64,
    committed: i64,
    /// The end that it had at the first position that was told.
    end: Option<i64>,
}

struct Member {
    args: ConsumeArgs,
    mode: CommitMode,
    json: bool,
    subscriber: Subscriber,
    owned: BTreeMap<Place, Owned>,
    /// Something was assigned.
    assigned: bool,
    left: Option<u64>,
    /// The last commit that was not answered yet.
    waits_for: Option<u64>,
    format: RecordFormat,
    failed: bool,
}

/// Runs the command.
pub async fn run(globals: &Globals, args: ConsumeArgs, group: String) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    let reset_policy = match args.from {
        Start::Earliest => v1::ResetPolicy::Earliest,
        Start::Latest => v1::ResetPolicy::Latest,
        Start::Offset(_) | Start::Time(_) => {
            let message = "--from with --group is earliest or latest, for partitions without a committed offset; talweg group reset moves those";
            return Err(Failure::Usage(message.into()));
        }
    };
    // A group waits for topics that come later; a name that is mistyped never comes.
    client.topics().describe(&args.topic).await?;
    let open = v1::SubscribeOpen {
        group,
        topics: vec![args.topic.clone()],
        client_id: client.config().client_id.clone(),
        rack: args.rack.clone(),
        reset_policy: reset_policy.into(),
        form: v1::Form::Records.into(),
        credit: Some(v1::Credit {
            bytes: CREDIT_BYTES,
            records: CREDIT_RECORDS,
        }),
        ..Default::default()
    };
    let mut member = Member {
        mode: args.commit,
        json: globals.json,
        subscriber: Subscriber::open(&client, open).await?,
        owned: BTreeMap::new(),
        assigned: false,
        left: args.max,
        waits_for: None,
        format: RecordFormat::new(&args),
        failed: false,
        args,
    };
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    while !member.is_over() {
        tokio::select! {
            biased;
            // The user has had enough, which is a good end.
            () = stop.cancelled() => break,
            event = member.subscriber.next() => match event? {
                SubscribeEvent::Closed => break,
                event => member.on_event(event).await?,
            },
        }
    }
    member.end().await
}

impl Member {
    fn is_over(&self) -> bool {
        let at_end = |owned: &Owned| owned.end.is_some_and(|end| owned.next >= end);
        self.left == Some(0)
            || self.args.until_end && self.assigned && self.owned.values().all(at_end)
    }

    async fn on_event(&mut self, event: SubscribeEvent) -> Result<(), Failure> {
        match event {
            // What is ours is told anew, with its positions.
            SubscribeEvent::Resumed(_) => {
                self.owned.clear();
                self.assigned = false;
                self.waits_for = None;
                Ok(())
            }
            SubscribeEvent::Frame(frame) => self.on_frame(frame).await,
            SubscribeEvent::Closed => Ok(()),
        }
    }

    async fn on_frame(&mut self, frame: Frame) -> Result<(), Failure> {
        match frame {
            Frame::Assigned(assigned) => {
                self.assigned = true;
                assigned
                    .partitions
                    .iter()
                    .for_each(|position| self.on_assigned(position));
            }
            Frame::Records(records) => self.on_records(records).await?,
            Frame::Positions(positions) => {
                positions
                    .positions
                    .iter()
                    .for_each(|position| self.on_position(position));
            }
            Frame::Revoking(revoking) => self.on_revoking(revoking.partitions).await,
            Frame::Committed(committed) => self.on_committed(&committed),
            Frame::Gap(gap) => {
                let message = format!(
                    "partition {}: {} records from {} to {} are gone: {}",
                    gap.partition, gap.records_lost, gap.from_offset, gap.to_offset, gap.reason
                );
                eprintln!("warning: {message}");
            }
            Frame::PartitionError(stopped) => {
                let refusal = Refusal::from_detail(stopped.error.unwrap_or_default());
                let refusal = Refusal::new(
                    refusal.code,
                    format!("partition {}: {}", stopped.partition, refusal.message),
                );
                self.tell(&refusal);
                // What passes is read on by the gateway.
                if !refusal.is_retriable() {
                    self.owned.remove(&(stopped.topic_id, stopped.partition));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The others go on.
    fn tell(&mut self, refusal: &Refusal) {
        self.failed = true;
        eprintln!("{}", error_line(refusal, self.json));
    }

    fn on_assigned(&mut self, position: &v1::PartitionPosition) {
        // -1: by the reset policy; a position follows.
        let owned = Owned {
            next: position.next_offset,
            committed: position.next_offset,
            end: None,
        };
        let place = (position.topic_id.clone(), position.partition);
        self.owned.insert(place, owned);
    }

    fn on_position(&mut self, position: &v1::PartitionPosition) {
        let place = (position.topic_id.clone(), position.partition);
        if let Some(owned) = self.owned.get_mut(&place) {
            if owned.next < 0 {
                owned.committed = position.next_offset;
            }
            owned.end.get_or_insert(position.high_watermark);
            owned.next = owned.next.max(position.next_offset);
        }
    }

    async fn on_records(&mut self, frame: v1::FetchedRecords) -> Result<(), Failure> {
        let position = frame.position.unwrap_or_default();
        let place = (position.topic_id.clone(), position.partition);
        let bytes: usize = frame.records.iter().map(fetched_record_bytes).sum();
        let count = frame.records.len();
        let (mut line, mut whole) = (Vec::new(), true);
        for record in frame.records {
            let Some(owned) = self.owned.get_mut(&place) else {
                break;
            };
            let end = *owned.end.get_or_insert(position.high_watermark);
            if self.left == Some(0) || self.args.until_end && record.offset >= end {
                whole = false;
                break;
            }
            self.left = self.left.map(|left| left - 1);
            owned.next = record.offset.saturating_add(1);
            self.format.write(position.partition, &record, &mut line);
            if self.mode == CommitMode::Each {
                out::write(&line)?;
                line.clear();
                self.commit().await;
            }
        }
        out::write(&line)?;
        // What was not printed is not passed.
        if whole {
            self.on_position(&position);
        }
        if self.mode == CommitMode::Batch {
            self.commit().await;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.subscriber.grant(bytes, count).await;
        Ok(())
    }

    /// Everything printed and not committed.
    async fn commit(&mut self) {
        let due = self
            .owned
            .iter_mut()
            .filter(|(_, owned)| owned.next > owned.committed);
        let next: Vec<_> = due
            .map(|((topic_id, partition), owned)| {
                owned.committed = owned.next;
                v1::SubscribePosition {
                    topic_id: topic_id.clone(),
                    partition: *partition,
                    offset: owned.next,
                    ..Default::default()
                }
            })
            .collect();
        if !next.is_empty() {
            self.waits_for = Some(self.subscriber.commit(next).await);
        }
    }

    async fn on_revoking(&mut self, partitions: Vec<v1::SubscribePosition>) {
        if self.mode != CommitMode::None {
            self.commit().await;
        }
        for partition in &partitions {
            self.owned
                .remove(&(partition.topic_id.clone(), partition.partition));
        }
        // Frames keep their order: the commit is before the partitions go.
        self.subscriber.revoked(partitions).await;
    }

    fn on_committed(&mut self, committed: &v1::SubscribeCommitted) {
        if self.waits_for == Some(committed.commit_id) {
            self.waits_for = None;
        }
        if let Some(error) = &committed.error {
            self.tell(&Refusal::from_detail(error.clone()));
        }
    }

    /// Commits what was printed, leaves, and waits for both.
    async fn end(mut self) -> Result<(), Failure> {
        if self.mode != CommitMode::None {
            self.commit().await;
        }
        let late = |what: &str| Refusal::unavailable(format!("{what} was not confirmed in time"));
        let settle = async {
            while self.waits_for.is_some() {
                match self.subscriber.next().await? {
                    SubscribeEvent::Closed => break,
                    SubscribeEvent::Frame(Frame::Committed(committed)) => {
                        self.on_committed(&committed)
                    }
                    SubscribeEvent::Frame(_) => {}
                    SubscribeEvent::Resumed(_) => return Err(late("the last commit")),
                }
            }
            self.subscriber.leave().await;
            while self.subscriber.next().await? != SubscribeEvent::Closed {}
            Ok(())
        };
        tokio::time::timeout(ENDING, settle)
            .await
            .map_err(|_| late("the goodbye"))??;
        match self.failed {
            true => Err(Failure::Reported),
            false => Ok(()),
        }
    }
}
