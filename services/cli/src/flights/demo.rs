//! The demo: a real `talweg dev`, all flights in, all flights out, and the proof.

use super::{
    bar::Bar,
    proof::{Ledger, Proven, RecordRef, prove},
    reader::{Flight, Flights, ROWS},
    server::DevServer,
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use talweg_client::{
    Client, ClientConfig, FetchStart, Fetcher, FetcherConfig, Outcome, ProducerConfig,
    RecordProducer, StartAt,
    fetch::{Data, FetchEvent},
    produce::Receipts,
};
use talweg_kit::shutdown;
use talweg_proto::v1;
use tokio::sync::mpsc;

const TOPIC: &str = "flights";
const PARTITIONS: u32 = 12;
/// Records handed over together, and such groups without an answer.
const GROUP: usize = 1_000;
const GROUPS_AHEAD: usize = 16;
/// Reading stops if nothing comes for this long.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// What the demo needs.
#[derive(clap::Parser, Clone, Debug)]
#[command(
    name = "flights-demo",
    about = "Streams 336,776 flights through Talweg and proves that none was lost"
)]
pub struct DemoArgs {
    /// The `talweg` program [default: beside this one].
    #[arg(long, value_name = "PATH")]
    pub talweg: Option<PathBuf>,
    /// The flights.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "integration/data/flights.csv.gz"
    )]
    pub flights: PathBuf,
}

/// Runs the demo; an error means that it did not hold what it promises. The
/// server is stopped and its data removed in every case.
pub async fn run(args: DemoArgs) -> Result<()> {
    let stop = shutdown::on_signals()?;
    let talweg = match args.talweg {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("talweg"),
    };
    let mut server = DevServer::start(&talweg)?;
    println!(
        "talweg dev is ready on {} after {} ms",
        server.grpc(),
        server.started_in().as_millis()
    );
    let done = tokio::select! {
        biased;
        () = stop.cancelled() => Err(anyhow::anyhow!("stopped by a signal")),
        done = story(server.grpc(), &args.flights) => done,
    };
    let stopped = server.stop();
    match done {
        Ok(proven) => {
            println!("stopped talweg dev in {} ms", stopped?.as_millis());
            println!(
                "PROOF: every one of {} rows is present once, in the order of its key ({} keys), digest {}",
                proven.rows, proven.keys, proven.digest
            );
            Ok(())
        }
        Err(error) => Err(error.context(server.log_tail())),
    }
}

async fn story(grpc: &str, flights: &Path) -> Result<Proven> {
    let config = ClientConfig {
        client_id: "flights-demo".into(),
        ..ClientConfig::default()
    };
    let client = Client::connect([format!("http://{grpc}")], config)?;
    let request = v1::CreateTopicRequest {
        name: TOPIC.into(),
        partitions: Some(PARTITIONS as i32),
        ..Default::default()
    };
    client.topics().create(request).await?;
    println!("created topic {TOPIC:?} with {PARTITIONS} partitions");

    let begun = Instant::now();
    let sent = send(&client, flights).await.context("sending")?;
    tell_rate("sent", &sent, begun.elapsed());
    let begun = Instant::now();
    let read = read(&client).await.context("reading")?;
    tell_rate("read", &read, begun.elapsed());
    let counts: BTreeMap<u32, u64> = read.partitions().collect();
    println!("records in each partition: {}", join(&counts));
    ensure!(
        sent.rows() == ROWS,
        "the file has {} rows, {ROWS} were expected",
        sent.rows()
    );
    match prove(&sent, &read) {
        Ok(proven) => Ok(proven),
        Err(refuted) => {
            refuted
                .findings
                .iter()
                .for_each(|finding| eprintln!("  {finding}"));
            bail!(
                "the proof failed with {} finding(s); digest of what was sent {}, of what was read {}",
                refuted.total,
                refuted.sent_digest,
                refuted.read_digest
            )
        }
    }
}

fn tell_rate(what: &str, ledger: &Ledger, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    println!(
        "{what} {} records, {:.1} MB of keys and values in {seconds:.2} s: {:.0} records/s",
        ledger.rows(),
        ledger.bytes() as f64 / 1e6,
        ledger.rows() as f64 / seconds
    );
}

fn join(counts: &BTreeMap<u32, u64>) -> String {
    counts
        .iter()
        .map(|(partition, count)| format!("{partition}: {count}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Streams all rows; the ledger holds what the file has, not what was acknowledged.
async fn send(client: &Client, path: &Path) -> Result<Ledger> {
    let producer = RecordProducer::open(client, ProducerConfig::default());
    let (waiting, receipts) = mpsc::channel(GROUPS_AHEAD);
    let collecting = tokio::spawn(collect(receipts));
    let mut ledger = Ledger::default();
    let mut group = Vec::with_capacity(GROUP);
    for flight in Flights::open(path).with_context(|| path.display().to_string())? {
        let flight = flight?;
        ledger.sent(RecordRef {
            key: flight.key.as_deref(),
            value: Some(&flight.value),
            timestamp_ms: flight.timestamp_ms,
        });
        group.push(record(flight));
        if group.len() == GROUP {
            let records = std::mem::replace(&mut group, Vec::with_capacity(GROUP));
            if waiting
                .send(producer.send(TOPIC, records).await?)
                .await
                .is_err()
            {
                break;
            }
        }
    }
    if !group.is_empty() {
        // If nobody listens any more, the collector says why.
        drop(waiting.send(producer.send(TOPIC, group).await?).await);
    }
    drop(waiting);
    collecting.await??;
    Ok(ledger)
}

fn record(flight: Flight) -> v1::Record {
    v1::Record {
        key: flight.key,
        value: Some(flight.value),
        timestamp_ms: Some(flight.timestamp_ms),
        ..v1::Record::default()
    }
}

/// Every record must be acknowledged.
async fn collect(mut receipts: mpsc::Receiver<Receipts>) -> Result<()> {
    let bar = Bar::new("sending", ROWS);
    while let Some(receipts) = receipts.recv().await {
        for outcome in receipts.await {
            match outcome {
                Outcome::Done(_) => bar.add(1),
                Outcome::Refused(refusal) | Outcome::Unknown(refusal) => return Err(refusal.into()),
            }
        }
    }
    bar.finish();
    Ok(())
}

/// Reads every partition to the end that it has when reading begins.
async fn read(client: &Client) -> Result<Ledger> {
    let starts = (0..PARTITIONS).map(|partition| FetchStart {
        topic: TOPIC.into(),
        partition,
        start: StartAt::Earliest,
    });
    let config = FetcherConfig {
        form: v1::Form::Records,
        ..FetcherConfig::default()
    };
    let mut fetcher = Fetcher::open(client, config, starts.collect()).await?;
    let mut ledger = Ledger::default();
    let mut left: BTreeMap<u32, Option<i64>> =
        (0..PARTITIONS).map(|partition| (partition, None)).collect();
    let bar = Bar::new("reading", ROWS);
    while !left.is_empty() {
        let event = tokio::time::timeout(READ_PATIENCE, fetcher.next())
            .await
            .context("nothing came")?;
        let position = match event {
            FetchEvent::Started(position) | FetchEvent::Position(position) => position,
            FetchEvent::Stopped { partition, refusal } => {
                return Err(anyhow::Error::from(refusal)
                    .context(format!("partition {}", partition.partition)));
            }
            FetchEvent::Data(data) => {
                let Data::Records(records) = &data.data else {
                    bail!("batches came where records were asked for")
                };
                for record in records {
                    note(&mut ledger, data.partition.partition.0, record);
                }
                bar.add(records.len() as u64);
                data.position
            }
        };
        if let Some(end) = left.get_mut(&position.partition)
            && position.next_offset >= *end.get_or_insert(position.high_watermark)
        {
            left.remove(&position.partition);
        }
    }
    bar.finish();
    Ok(ledger)
}

fn note(ledger: &mut Ledger, partition: u32, record: &v1::FetchedRecord) {
    let row = RecordRef {
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        timestamp_ms: record.timestamp_ms,
    };
    ledger.read(partition, record.offset, row);
}
