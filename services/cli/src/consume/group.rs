//! `talweg consume TOPIC --group G`: a member of a group that prints and commits.
//!
//! Credit is granted again as records are printed. What was printed is committed
//! before its partition is given up, and before the command ends.

use super::{
    format::RecordFormat,
    holding::{Holding, Place},
};
use crate::{
    args::{CommitMode, ConsumeArgs, Globals, Start},
    connect,
    failure::{Failure, error_line},
    out,
};
use std::time::Duration;
use talweg_client::{Client, SubscribeEvent, Subscriber, payload::fetched_record_bytes};
use talweg_kit::{errors::Refusal, shutdown};
use talweg_proto::v1::{self, subscribe_response::Frame};

/// Payload on its way to us.
const CREDIT_BYTES: i64 = 16 * 1024 * 1024;
const CREDIT_RECORDS: i64 = 50_000;
/// For the answer to the last commit, and for the goodbye.
const ENDING: Duration = Duration::from_secs(10);

/// A member that holds nothing asks this often whether that is all it gets.
const LOOK_EVERY: Duration = Duration::from_millis(500);

struct Member {
    group: String,
    mode: CommitMode,
    json: bool,
    subscriber: Subscriber,
    holding: Holding,
    left: Option<u64>,
    /// The last commit that was not answered yet.
    waits_for: Option<u64>,
    format: RecordFormat,
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
        group: group.clone(),
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
        holding: Holding::new(args.until_end),
        left: args.max,
        waits_for: None,
        format: RecordFormat::new(&args),
        group,
    };
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !member.is_over() {
        tokio::select! {
            biased;
            // The user has had enough, which is a good end.
            () = stop.cancelled() => break,
            event = member.subscriber.next() => match event? {
                SubscribeEvent::Closed => break,
                event => member.on_event(event).await?,
            },
            _ = look.tick(), if member.holding.waits_for_a_share() => member.look(&client).await?,
        }
    }
    member.end().await
}

impl Member {
    fn is_over(&self) -> bool {
        self.left == Some(0) || self.holding.is_over()
    }

    /// Whether the group is settled and leaves this member without a partition: then
    /// there is nothing to read to its end, and nothing to wait for.
    async fn look(&mut self, client: &Client) -> Result<(), Failure> {
        let request = v1::DescribeGroupRequest {
            group: self.group.clone(),
        };
        let described = match client.groups().describe_group(request).await {
            Ok(described) => described,
            Err(refusal) if refusal.is_retriable() => return Ok(()),
            Err(refusal) => return Err(refusal.into()),
        };
        if self
            .holding
            .on_described(&described, &self.subscriber.opened().member_id)
        {
            eprintln!(
                "the other members of group {:?} hold all partitions: there is nothing to read here",
                self.group
            );
        }
        Ok(())
    }

    async fn on_event(&mut self, event: SubscribeEvent) -> Result<(), Failure> {
        match event {
            // What is ours is told anew, with its positions.
            SubscribeEvent::Resumed(_) => {
                self.holding.resumed();
                self.waits_for = None;
                Ok(())
            }
            SubscribeEvent::Frame(frame) => self.on_frame(frame).await,
            SubscribeEvent::Closed => Ok(()),
        }
    }

    async fn on_frame(&mut self, frame: Frame) -> Result<(), Failure> {
        match frame {
            Frame::Assigned(assigned) => self.holding.assigned(&assigned.partitions),
            Frame::Records(records) => self.on_records(records).await?,
            Frame::Positions(positions) => {
                positions
                    .positions
                    .iter()
                    .for_each(|position| self.holding.on_position(position));
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
            Frame::PartitionError(stopped) => self.on_stopped(stopped),
            _ => {}
        }
        Ok(())
    }

    /// The others go on.
    fn on_stopped(&mut self, stopped: v1::FetchPartitionError) {
        let mut refusal = Refusal::from_detail(stopped.error.unwrap_or_default());
        // Without a topic it is about the member as a whole.
        if !stopped.topic_id.is_empty() {
            refusal.message = format!("partition {}: {}", stopped.partition, refusal.message);
        }
        let passes = refusal.is_retriable();
        self.holding
            .on_error((stopped.topic_id, stopped.partition), passes);
        // What passes is read on by the gateway.
        match passes {
            true => eprintln!("warning: {}; tried again", refusal.message),
            false => eprintln!("{}", error_line(&refusal, self.json)),
        }
    }

    async fn on_records(&mut self, frame: v1::FetchedRecords) -> Result<(), Failure> {
        let position = frame.position.unwrap_or_default();
        let place: Place = (position.topic_id.clone(), position.partition);
        let bytes: usize = frame.records.iter().map(fetched_record_bytes).sum();
        let count = frame.records.len();
        let (mut line, mut whole) = (Vec::new(), true);
        for record in frame.records {
            let full = self.left == Some(0);
            if full
                || !self
                    .holding
                    .take(&place, record.offset, position.high_watermark)
            {
                whole = false;
                break;
            }
            self.left = self.left.map(|left| left - 1);
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
            self.holding.on_position(&position);
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
        let next = self.holding.uncommitted();
        if !next.is_empty() {
            self.waits_for = Some(self.subscriber.commit(next).await);
        }
    }

    async fn on_revoking(&mut self, partitions: Vec<v1::SubscribePosition>) {
        if self.mode != CommitMode::None {
            self.commit().await;
        }
        for partition in &partitions {
            self.holding
                .given_up(&(partition.topic_id.clone(), partition.partition));
        }
        // Frames keep their order: the commit is before the partitions go.
        self.subscriber.revoked(partitions).await;
    }

    fn on_committed(&mut self, committed: &v1::SubscribeCommitted) {
        if self.waits_for == Some(committed.commit_id) {
            self.waits_for = None;
        }
        if let Some(error) = &committed.error {
            self.holding.failed = true;
            let refusal = Refusal::from_detail(error.clone());
            eprintln!("{}", error_line(&refusal, self.json));
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
        match self.holding.has_failed() {
            true => Err(Failure::Reported),
            false => Ok(()),
        }
    }
}
