//! `talweg cluster balance`: a plan, or its execution with progress.

use crate::{
    admin::shape,
    args::{BalanceArgs, Globals},
    connect,
    failure::Failure,
    out,
    progress::{Estimate, bytes, clock},
    shapes,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use talweg_client::Client;
use talweg_kit::errors::Refusal;
use talweg_proto::v1;

const COLUMNS: &[&str] = &["topic", "partition", "from", "to", "bytes_total"];
/// A line of progress at most this often.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Without a controller for longer it is not waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(300);

/// Runs the command.
pub async fn run(globals: &Globals, args: BalanceArgs) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    let request = v1::BalanceClusterRequest {
        execute: args.execute,
        throttle_bytes_per_second: args.throttle,
        stop: args.stop,
    };
    match args.execute {
        true => execute(globals, &client, request).await,
        false => plan(globals, &client, request).await,
    }
}

fn answer(told: &v1::BalanceClusterResponse, executed: bool) -> Value {
    let moves: Vec<_> = told.moves.iter().map(shape).collect();
    json!({
        "executed": executed,
        "done": told.done,
        "stopped": told.stopped,
        "moves_total": told.moves_total,
        "moves_done": told.moves_done,
        "bytes_total": left(told).map(|(_, total)| total),
        "moves": moves,
    })
}

/// Bytes that are left to copy, and in all, of the moves that are told; `None` if
/// some node did not answer.
fn left(told: &v1::BalanceClusterResponse) -> Option<(u64, u64)> {
    let mut each = told.moves.iter().map(|moving| {
        let (done, total) = (moving.bytes_done?, moving.bytes_total?);
        Some((total.saturating_sub(done), total))
    });
    each.try_fold((0, 0), |(left, all), one| {
        let (more, total) = one?;
        Some((left + more, all + total))
    })
}

async fn plan(
    globals: &Globals,
    client: &Client,
    request: v1::BalanceClusterRequest,
) -> Result<(), Failure> {
    let (stop, throttle) = (request.stop, request.throttle_bytes_per_second);
    let mut told = client.admin().balance_cluster(request).await?;
    let told = told.message().await.map_err(|e| Refusal::from_status(&e))?;
    let told = told.ok_or_else(|| Refusal::internal("the server has not answered"))?;
    out::print(globals.json, &answer(&told, false), || {
        let head = match (stop, told.moves.len()) {
            (true, _) => "stopped; moves under way go on. ".to_owned(),
            (false, 0) => return "the cluster is balanced\n".to_owned(),
            (false, _) => String::new(),
        };
        let moves: Vec<_> = told.moves.iter().map(shape).collect();
        head + &summary(&told, throttle) + &shapes::table(COLUMNS, &moves)
    })
}

fn summary(told: &v1::BalanceClusterResponse, throttle: u64) -> String {
    let all = left(told).map(|(left, _)| left);
    let size = all.map_or_else(|| "an unknown number of bytes".to_owned(), bytes);
    let time = match (all, throttle) {
        (Some(all), 1..) => {
            let time = Duration::from_secs_f64(all as f64 / throttle as f64);
            format!(", {} at that limit", clock(Some(time)))
        }
        _ => String::new(),
    };
    format!("{} moves, {size} to copy{time}\n", told.moves.len())
}

/// Until it is done or stopped, whatever controller leads it.
async fn execute(
    globals: &Globals,
    client: &Client,
    request: v1::BalanceClusterRequest,
) -> Result<(), Failure> {
    let mut lines = Lines::new();
    let mut heard = Instant::now();
    let mut total = 0;
    loop {
        let refusal = match client.admin().balance_cluster(request).await {
            Err(refusal) => refusal,
            Ok(mut stream) => loop {
                match stream.message().await {
                    Ok(Some(told)) => {
                        heard = Instant::now();
                        total = told.moves_total.max(total);
                        lines.show(&told);
                        if told.done || told.stopped {
                            return ended(globals, told, total);
                        }
                    }
                    Ok(None) => break Refusal::unavailable("the answer ended before the work did"),
                    Err(status) => break Refusal::from_status(&status),
                }
            },
        };
        if !refusal.is_retriable() || heard.elapsed() > PATIENCE {
            return Err(refusal.into());
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// All is done; or somebody has stopped it, which is no success.
fn ended(
    globals: &Globals,
    mut told: v1::BalanceClusterResponse,
    total: u32,
) -> Result<(), Failure> {
    let left = told.moves.len();
    told.moves_total = total;
    told.moves_done = total.saturating_sub(u32::try_from(left).unwrap_or(u32::MAX));
    out::print(globals.json, &answer(&told, true), || match told.stopped {
        true => stopped_text(&told),
        false => format!("the cluster is balanced; {total} moves\n"),
    })?;
    match told.stopped {
        true => Err(Failure::Reported),
        false => Ok(()),
    }
}

fn stopped_text(told: &v1::BalanceClusterResponse) -> String {
    let moves: Vec<_> = told.moves.iter().map(shape).collect();
    let head = format!(
        "the balancing was stopped, or nodes came or went as it ended: {} of {} moves done; \
         those under way go on, the others are not begun\n",
        told.moves_done, told.moves_total
    );
    head + &shapes::table(COLUMNS, &moves)
}

/// Progress on standard error.
struct Lines {
    started: Instant,
    shown: Option<Instant>,
    bytes: Estimate,
    moves: Estimate,
}

impl Lines {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            shown: None,
            bytes: Estimate::default(),
            moves: Estimate::default(),
        }
    }

    fn show(&mut self, told: &v1::BalanceClusterResponse) {
        let now = self.started.elapsed();
        let bytes_left = left(told).map(|(left, _)| left);
        let by_bytes = bytes_left.and_then(|left| self.bytes.left(now, left));
        let by_moves = self.moves.left(now, told.moves.len() as u64);
        if self.shown.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let size = bytes_left.map_or_else(|| "?".to_owned(), bytes);
        eprintln!(
            "{} of {} moves done, {size} left, {} to go",
            told.moves_done,
            told.moves_total,
            clock(by_bytes.or(by_moves)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(done: Option<u64>, total: Option<u64>) -> v1::Reassignment {
        v1::Reassignment {
            topic: "t".into(),
            bytes_done: done,
            bytes_total: total,
            ..Default::default()
        }
    }

    fn told(moves: Vec<v1::Reassignment>) -> v1::BalanceClusterResponse {
        v1::BalanceClusterResponse {
            moves_total: 2,
            moves,
            ..Default::default()
        }
    }

    #[test]
    fn bytes_are_summed_and_unknown_ones_are_not_guessed() {
        let known = told(vec![
            moving(Some(1 << 20), Some(3 << 20)),
            moving(Some(0), Some(1 << 20)),
        ]);
        assert_eq!(left(&known), Some((3 << 20, 4 << 20)));
        assert_eq!(
            summary(&known, 1 << 20),
            "2 moves, 3.0 MiB to copy, 00:03 at that limit\n"
        );
        let unknown = told(vec![moving(None, Some(5))]);
        assert_eq!(left(&unknown), None);
        assert_eq!(answer(&unknown, false)["bytes_total"], Value::Null);
        assert_eq!(
            summary(&unknown, 1),
            "1 moves, an unknown number of bytes to copy\n"
        );
    }

    #[test]
    fn the_answer_has_the_shape_that_scripts_depend_on() {
        let value = answer(&told(vec![moving(Some(0), Some(9))]), false);
        assert_eq!(
            value,
            json!({
                "executed": false, "done": false, "stopped": false, "moves_total": 2, "moves_done": 0, "bytes_total": 9,
                "moves": [{
                    "reassignment_id": null, "topic": "t", "partition": 0, "from": [], "to": [],
                    "bytes_done": 0, "bytes_total": 9, "throttle_bytes_per_second": 0,
                }],
            })
        );
    }
}
