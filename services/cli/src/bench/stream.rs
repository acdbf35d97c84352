//! Baseline for fetch: a bare gRPC stream of frames from one process to
//! another over loopback, with tonic's own codec and our connection settings.
//! No log, no credit, no partitions.

use super::{
    cpu::{CpuMeter, CpuUse},
    report::Report,
};
use crate::{
    args::{ProcessPid, StreamBench, StreamServe},
    failure::Failure,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, future::try_join_all, stream};
use serde_json::json;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    pin::Pin,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use talweg_kit::{
    errors::Refusal,
    net::{self, ChannelOptions, ServerOptions},
};
use talweg_proto::v1::{
    self,
    fetch_request::Frame as Ask,
    fetch_response::Frame,
    fetch_service_client::FetchServiceClient,
    fetch_service_server::{FetchService, FetchServiceServer},
};
use tonic::{Request, Response, Status, Streaming, service::Routes};

/// What the serving process prints in front of its address.
const READY: &str = "ready ";

/// Reads streams from a serving process of its own.
pub async fn run(args: &StreamBench) -> Result<Report, Failure> {
    let mut server = Server::start(args.frame_bytes)
        .map_err(|error| Failure::local("the serving process", &error))?;
    let url = format!("http://{}", server.addr);
    let pid = ProcessPid {
        name: "stream-serve".into(),
        pid: server.child.id(),
    };
    let meter = CpuMeter::start(&[pid]);
    let begun = Instant::now();
    let streams = (0..args.streams).map(|_| read(&url, args.bytes));
    let bytes = try_join_all(streams).await?.into_iter().sum();
    let elapsed = begun.elapsed();
    let cpu: CpuUse = meter.stop();
    server.stop();
    Ok(Report {
        name: "stream",
        records: None,
        bytes,
        elapsed,
        latencies: vec![],
        cpu: Some(cpu),
        more: vec![
            ("streams", json!(args.streams)),
            ("frame_bytes", json!(args.frame_bytes)),
        ],
    })
}

/// Reads `bytes` of payload on a connection of its own.
async fn read(url: &str, bytes: u64) -> Result<u64, Failure> {
    let options = ChannelOptions {
        timeout: None,
        ..ChannelOptions::default()
    };
    let channel =
        net::channel(url, &options).map_err(|error| Refusal::invalid("url", error.to_string()))?;
    let refused = |status: Status| Failure::from(Refusal::from_status(&status));
    let credit = v1::Credit {
        bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        records: 0,
    };
    let open = v1::FetchOpen {
        credit: Some(credit),
        ..v1::FetchOpen::default()
    };
    // The request stays open: a half-close would be one more thing that differs from a real fetch.
    let requests = stream::iter([v1::FetchRequest {
        frame: Some(Ask::Open(open)),
    }])
    .chain(stream::pending());
    let mut frames = FetchServiceClient::new(channel)
        .fetch(requests)
        .await
        .map_err(refused)?
        .into_inner();
    let mut received = 0;
    while received < bytes {
        match frames.message().await.map_err(refused)? {
            Some(v1::FetchResponse {
                frame: Some(Frame::Batches(batches)),
            }) => received += batches.batches.len() as u64,
            Some(_) => {}
            None => return Err(Refusal::internal("the stream ended early").into()),
        }
    }
    Ok(received)
}

/// The serving process; it ends with its standard input.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start(frame_bytes: u32) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([
                "bench",
                "stream-serve",
                "--frame-bytes",
                &frame_bytes.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim().strip_prefix(READY) {
            Some(addr) => Ok(Self {
                addr: addr.to_owned(),
                child,
            }),
            None => {
                child.kill()?;
                child.wait()?;
                Err(io::Error::other("it did not become ready"))
            }
        }
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        // It is gone, or we could not have measured it.
        drop(self.child.wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves frames until standard input ends.
pub async fn serve(args: &StreamServe) -> Result<(), Failure> {
    let local = |error: io::Error| Failure::local("serving", &error);
    let listener = net::bind("127.0.0.1:0").await.map_err(local)?;
    let frame = Bytes::from(vec![7; args.frame_bytes as usize]);
    let routes = Routes::new(FetchServiceServer::new(Bare { frame }));
    let server = net::serve(listener, routes, ServerOptions::default()).map_err(local)?;
    crate::out::write(format!("{READY}{}\n", server.addr()).as_bytes())?;
    io::stdout().flush().map_err(local)?;
    let parent = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
    parent
        .await
        .map_err(|error| Refusal::internal(error.to_string()))?
        .map_err(local)?;
    server.stop(Duration::ZERO).await;
    Ok(())
}

/// Sends one frame again and again.
struct Bare {
    frame: Bytes,
}

#[tonic::async_trait]
impl FetchService for Bare {
    type FetchStream = Pin<Box<dyn Stream<Item = Result<v1::FetchResponse, Status>> + Send>>;

    /// The open frame's credit says how many bytes.
    async fn fetch(
        &self,
        request: Request<Streaming<v1::FetchRequest>>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let mut requests = request.into_inner();
        let bytes = match requests.message().await?.and_then(|request| request.frame) {
            Some(Ask::Open(open)) => open.credit.unwrap_or_default().bytes.unsigned_abs(),
            _ => return Err(Status::invalid_argument("the first frame must open")),
        };
        let batches = v1::FetchedBatches {
            batches: self.frame.clone(),
            ..v1::FetchedBatches::default()
        };
        let frame = v1::FetchResponse {
            frame: Some(Frame::Batches(batches)),
        };
        let count = bytes.div_ceil(self.frame.len() as u64);
        // The requests are held to the end, so that it is not we who half-close.
        let frames = stream::unfold((count, requests), move |(left, requests)| {
            let next = (left > 0).then(|| (Ok(frame.clone()), (left - 1, requests)));
            async move { next }
        });
        Ok(Response::new(Box::pin(frames)))
    }
}
