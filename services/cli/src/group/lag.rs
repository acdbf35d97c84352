//! `talweg group lag`, once or as a live table.

use super::shapes;
use crate::{
    args::{Globals, LagArgs},
    failure::Failure,
    out,
    shapes::table,
};
use serde_json::Value;
use std::{io::IsTerminal, time::Duration};
use talweg_client::{Client, backoff::Backoff};
use talweg_kit::{errors::Refusal, shutdown};
use talweg_proto::v1;
use tonic::Streaming;

const COLUMNS: &[&str] = &[
    "topic",
    "partition",
    "member",
    "committed_offset",
    "log_end_offset",
    "lag_records",
    "lag_bytes",
    "lag_seconds",
    "trend",
    "seconds_to_drain",
    "seconds_to_loss",
];
/// Streams in a row that broke before they said anything.
const TROUBLE_MAX: u32 = 10;
/// Clears a terminal and goes to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub async fn run(globals: &Globals, client: &Client, args: LagArgs) -> Result<(), Failure> {
    if args.watch {
        return watch(globals, client, &args).await;
    }
    let request = v1::GetLagRequest {
        group: args.group.clone(),
        topic: args.topic.clone().unwrap_or_default(),
    };
    let answer = client.groups().get_lag(request).await?;
    let value = shapes::lags(&args.group, &answer.state, &answer.lags);
    out::print(globals.json, &value, || text(&value))
}

fn text(value: &Value) -> String {
    let rows = value["lags"].as_array().map_or(&[][..], Vec::as_slice);
    let word = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    format!(
        "group {}: {}\n{}",
        word("group"),
        word("state"),
        table(COLUMNS, rows)
    )
}

/// Until the user has had enough; a stream that breaks is opened again.
async fn watch(globals: &Globals, client: &Client, args: &LagArgs) -> Result<(), Failure> {
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut trouble = 0;
    loop {
        let broken = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            broken = watch_once(globals, client, args, &mut trouble) => broken?,
        };
        trouble += 1;
        if !broken.is_retriable() || trouble >= TROUBLE_MAX {
            return Err(broken.into());
        }
        tokio::time::sleep(backoff.pause(broken.retry_after_ms)).await;
    }
}

/// Shows looks until the stream breaks; why it broke.
async fn watch_once(
    globals: &Globals,
    client: &Client,
    args: &LagArgs,
    trouble: &mut u32,
) -> Result<Refusal, Failure> {
    let request = v1::WatchLagRequest {
        group: args.group.clone(),
        topic: args.topic.clone().unwrap_or_default(),
        interval_ms: args.interval,
    };
    let mut looks: Streaming<v1::WatchLagResponse> = match client.groups().watch_lag(request).await
    {
        Ok(looks) => looks,
        Err(refusal) => return Ok(refusal),
    };
    let clear = if std::io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    loop {
        match looks.message().await {
            Ok(Some(look)) => {
                *trouble = 0;
                let value = shapes::lags(&args.group, &look.state, &look.lags);
                out::print(globals.json, &value, || format!("{clear}{}", text(&value)))?;
            }
            Ok(None) => return Ok(Refusal::unavailable("the server closed the stream")),
            Err(status) => return Ok(Refusal::from_status(&status)),
        }
    }
}
