//! `talweg produce`: lines in, acknowledgements out.
//!
//! One thin Produce stream, pipelined: a thread reads lines, groups of records
//! go to the producer as its credit allows, and a thread tells the outcomes in
//! the order of the lines. Nothing piles up between them.

mod lines;
mod report;
mod source;

use crate::{
    args::{Globals, ProduceArgs},
    connect,
    failure::Failure,
};
use report::{Report, Tally};
use source::{Group, LineInfo};
use std::{
    io::{self, BufWriter},
    path::Path,
    time::Instant,
};
use talweg_client::{Client, Outcome, ProducerConfig, RecordProducer, produce::Receipts};
use talweg_kit::{
    errors::{ErrorCode, Refusal},
    shutdown,
};
use tokio::sync::mpsc;

/// Groups that are sent and not yet told.
const UNTOLD_MAX: usize = 64;

/// What has been sent and waits for its outcomes, or was never sent.
enum Sent {
    Records(Vec<LineInfo>, Receipts),
    Refused(Vec<(u64, Refusal)>),
}

/// Runs the command.
pub async fn run(globals: &Globals, args: ProduceArgs) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    let named = args.file.as_deref().unwrap_or(Path::new("standard input"));
    let input = source::open(&args).map_err(|error| Failure::file(named, &error))?;
    check_topic(&client, &args).await?;
    let groups = source::start(input, &args).map_err(|error| Failure::local("threads", &error))?;
    let config = ProducerConfig {
        acks: args.acks,
        compression: args.compression,
        ..ProducerConfig::default()
    };
    let producer = RecordProducer::open(&client, config);
    let (sent, outcomes) = mpsc::channel(UNTOLD_MAX);
    let json = globals.json;
    let begun = Instant::now();
    let telling = tokio::task::spawn_blocking(move || tell(json, begun, outcomes));
    let input = send_all(&producer, &args.topic, groups, &sent).await;
    drop(sent);
    let tally = telling
        .await
        .map_err(|error| Refusal::internal(error.to_string()))?;
    // What went wrong with the input is told after what became of the rest.
    input?;
    if tally?.is_success() {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

/// What is wrong with every record is said once, before any input is read.
async fn check_topic(client: &Client, args: &ProduceArgs) -> Result<(), Failure> {
    let described = client.topics().describe(&args.topic).await?;
    let count = described.topic.map_or(0, |topic| topic.partitions);
    match args.partition {
        Some(partition) if partition >= count => {
            let message = format!(
                "topic {:?} has {count} partitions; there is no partition {partition}",
                args.topic
            );
            Err(Refusal::new(ErrorCode::UnknownPartition, message).into())
        }
        _ => Ok(()),
    }
}

/// Sends until the input ends or the user has had enough; what was sent is
/// answered in either case.
async fn send_all(
    producer: &RecordProducer,
    topic: &str,
    mut groups: source::Groups,
    sent: &mpsc::Sender<Sent>,
) -> Result<(), Failure> {
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    loop {
        let group = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            group = groups.recv() => group,
        };
        let Some(group) = group else {
            return Ok(());
        };
        let group = group.map_err(|error| Failure::local("the input cannot be read", &error))?;
        if !send(producer, topic, group, sent).await? {
            return Ok(());
        }
    }
}

/// False: nobody tells outcomes any more.
async fn send(
    producer: &RecordProducer,
    topic: &str,
    group: Group,
    sent: &mpsc::Sender<Sent>,
) -> Result<bool, Failure> {
    if !group.refused.is_empty() && sent.send(Sent::Refused(group.refused)).await.is_err() {
        return Ok(false);
    }
    if group.records.is_empty() {
        return Ok(true);
    }
    let receipts = producer.send(topic, group.records).await?;
    Ok(sent
        .send(Sent::Records(group.lines, receipts))
        .await
        .is_ok())
}

/// Tells outcomes on a thread of its own, because standard output may block.
fn tell(json: bool, begun: Instant, mut sent: mpsc::Receiver<Sent>) -> Result<Tally, Failure> {
    let runtime = tokio::runtime::Handle::current();
    let mut report = Report::new(json, BufWriter::new(io::stdout()), io::stderr());
    let told: io::Result<()> = (|| {
        while let Some(group) = sent.blocking_recv() {
            match group {
                Sent::Refused(lines) => lines
                    .iter()
                    .try_for_each(|(line, why)| report.refused(*line, why))?,
                Sent::Records(lines, receipts) => {
                    let outcomes: Vec<Outcome> = runtime.block_on(receipts);
                    for (info, outcome) in lines.into_iter().zip(outcomes) {
                        report.outcome(info, outcome)?;
                    }
                }
            }
            report.flush()?;
        }
        report.summary(begun.elapsed())
    })();
    told.map_err(|error| Failure::output(&error))?;
    Ok(report.tally)
}
