//! One record per partition every 100 ms, while every process is restarted in
//! turn and leaders are killed: how many were acknowledged within 5 s, and how
//! many at the first try. A figure, not a promise: run by `make soak`.
//!
//! `TALWEG_MINUTES`: how long, 20 unless given.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use talweg_harness::{
    Process, Stack,
    raw::{connect, create_topic, in_sync},
};
use talweg_proto::v1::{
    Acks, ProduceOpen, ProduceRequest, ProduceResponse, Record, RecordsFrame, produce_request,
    produce_response::Frame, produce_service_client::ProduceServiceClient,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

const PARTITIONS: u32 = 12;
const EVERY: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_secs(5);
/// Between two faults, once all are in sync again.
const QUIET: Duration = Duration::from_secs(5);
/// Before the other gateway is tried.
const RETRY: Duration = Duration::from_millis(20);

type Stream = (mpsc::Sender<ProduceRequest>, Streaming<ProduceResponse>);

/// What became of the probes.
#[derive(Default, Clone, Copy, Debug)]
struct Probes {
    sent: u64,
    in_time: u64,
    at_first_try: u64,
    worst: Duration,
}

/// The prober of one partition.
struct Prober {
    partition: u32,
    gateways: Vec<String>,
    turn: usize,
    stream: Option<Stream>,
    sequence: u64,
}

impl Prober {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Probes {
        let mut probes = Probes::default();
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            sleep_until(due).await;
            let (done, tries) = self.probe(due + DEADLINE).await;
            let took = due.elapsed();
            probes.sent += 1;
            probes.in_time += u64::from(done);
            probes.at_first_try += u64::from(done && tries == 1);
            probes.worst = probes.worst.max(took);
            // What was due meanwhile is sent late and judged by when it was due.
            due += EVERY;
        }
        probes
    }

    async fn probe(&mut self, deadline: Instant) -> (bool, u32) {
        let mut tries = 0;
        while Instant::now() < deadline {
            tries += 1;
            if let Ok(Some(())) = timeout_at(deadline, self.attempt()).await {
                return (true, tries);
            }
            self.stream = None;
            self.turn += 1;
            tokio::time::sleep(RETRY).await;
        }
        (false, tries)
    }

    /// Sends one record and waits for its acknowledgement.
    async fn attempt(&mut self) -> Option<()> {
        if self.stream.is_none() {
            self.stream = Some(self.open().await?);
            self.sequence = 0;
        }
        let (requests, responses) = self.stream.as_mut()?;
        let record = Record {
            partition: Some(self.partition),
            value: Some(b"probe".to_vec().into()),
            ..Default::default()
        };
        let frame = produce_request::Frame::Records(RecordsFrame {
            topic: "t".into(),
            first_sequence: self.sequence,
            records: vec![record],
            ..Default::default()
        });
        self.sequence += 1;
        let request = ProduceRequest { frame: Some(frame) };
        requests.send(request).await.ok()?;
        let mut leave = false;
        loop {
            match responses.message().await.ok()??.frame? {
                Frame::RecordsAck(_) => break,
                // It answers what it has taken; the next record goes elsewhere.
                Frame::Drain(_) => leave = true,
                Frame::Refusal(_) | Frame::Closing(_) => return None,
                _ => {}
            }
        }
        if leave {
            self.stream = None;
            self.turn += 1;
        }
        Some(())
    }

    async fn open(&self) -> Option<Stream> {
        let url = self.gateways[self.turn % self.gateways.len()].clone();
        let endpoint = Endpoint::from_shared(url).ok()?;
        let endpoint = endpoint.connect_timeout(Duration::from_millis(500));
        let channel = endpoint.connect().await.ok()?;
        let (requests, rx) = mpsc::channel(4);
        let open = ProduceOpen {
            acks: Acks::All.into(),
            delivery_timeout_ms: 5_000,
            ..Default::default()
        };
        let open = produce_request::Frame::Open(open);
        requests
            .send(ProduceRequest { frame: Some(open) })
            .await
            .ok()?;
        let mut client = ProduceServiceClient::new(channel);
        let mut responses = client
            .produce(ReceiverStream::new(rx))
            .await
            .ok()?
            .into_inner();
        matches!(responses.message().await.ok()??.frame?, Frame::Opened(_))
            .then_some((requests, responses))
    }
}

/// Asked anew each time: the gateway may have been restarted.
async fn all_in_sync(stack: &Stack) -> Vec<u32> {
    let channel = Channel::from_shared(stack.gateway(0)).expect("url");
    let partitions = in_sync(&channel.connect_lazy(), "t", 3).await;
    partitions.iter().map(|p| p.leader).collect()
}

fn restart(process: &mut Process) {
    tokio::task::block_in_place(|| {
        process.stop(Duration::from_secs(30));
        process.start(Duration::from_secs(30));
    });
}

fn kill(process: &mut Process) {
    process.kill9();
    tokio::task::block_in_place(|| process.start(Duration::from_secs(30)));
}

/// Fault number `round`: each process is restarted in turn, and after each a
/// leader is killed.
async fn fault(stack: &mut Stack, round: usize) {
    let leaders = all_in_sync(stack).await;
    if round % 2 == 1 {
        let leader = leaders[round % leaders.len()] as usize - 1;
        return kill(&mut stack.storages[leader]);
    }
    match round / 2 % 7 {
        i @ 0..=2 => restart(&mut stack.storages[i]),
        i @ 3..=4 => restart(&mut stack.gateways[i - 3]),
        5 => restart(&mut stack.controller),
        _ => restart(&mut stack.standbys[0]),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "twenty minutes; make soak"]
async fn nearly_every_probe_is_acknowledged_in_time() {
    let minutes = std::env::var("TALWEG_MINUTES").map_or(20.0, |text| {
        text.parse::<f64>().expect("TALWEG_MINUTES is a number")
    });
    let mut stack = Stack::builder()
        .storages(3)
        .gateways(2)
        .controllers_on_etcd(2)
        .start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    all_in_sync(&stack).await;
    let stop = Arc::new(AtomicBool::new(false));
    let probers: Vec<_> = (0..PARTITIONS)
        .map(|partition| {
            let prober = Prober {
                partition,
                gateways: vec![stack.gateway(0), stack.gateway(1)],
                turn: partition as usize,
                stream: None,
                sequence: 0,
            };
            tokio::spawn(prober.run(Arc::clone(&stop)))
        })
        .collect();
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut round = 0;
    while Instant::now() < end {
        fault(&mut stack, round).await;
        all_in_sync(&stack).await;
        tokio::time::sleep(QUIET).await;
        round += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let mut all = Probes::default();
    for prober in probers {
        let probes = prober.await.expect("the prober ended well");
        all.sent += probes.sent;
        all.in_time += probes.in_time;
        all.at_first_try += probes.at_first_try;
        all.worst = all.worst.max(probes.worst);
    }
    let share = |part: u64| 100.0 * part as f64 / all.sent as f64;
    println!(
        "{round} restarts and kills, {} probes: {:.4} % within 5 s, {:.4} % at the first try, worst {:?}",
        all.sent,
        share(all.in_time),
        share(all.at_first_try),
        all.worst
    );
    assert!(share(all.in_time) >= 99.99, "{all:?}");
}
