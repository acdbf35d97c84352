//! How far a group is behind: once, or again and again.

use super::groups::{asked, odd};
use crate::{
    groups::{ask, check_group},
    node::Node,
    streams::begun,
};
use futures::stream::BoxStream;
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::Refusal;
use talweg_proto::{
    coordinator::v1::{ask_request::Question, ask_response::Answer},
    v1,
};
use talweg_types::limits;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::MissedTickBehavior,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

pub async fn lag(node: &Node, request: v1::GetLagRequest) -> Result<v1::GetLagResponse, Refusal> {
    if !request.topic.is_empty() {
        node.view.get().resolve(&request.topic, &[])?;
    }
    let group = request.group.clone();
    asked!(node, group, GetLag(request.clone()))
}

/// Ends when the client goes, a question is refused, or the process stops.
pub fn watch(
    node: Arc<Node>,
    request: v1::WatchLagRequest,
    permit: OwnedSemaphorePermit,
) -> Result<BoxStream<'static, Result<v1::WatchLagResponse, Status>>, Refusal> {
    check_group(&request.group)?;
    let (low, high) = limits::WATCH_LAG_MS_RANGE;
    let pause = request.interval_ms;
    if !(low..=high).contains(&pause) {
        let why = format!("{pause} is not between {low} and {high}");
        return Err(Refusal::invalid("interval_ms", why));
    }
    let (answers, stream) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut stops = node.watch_drain();
        let mut ticks = tokio::time::interval(Duration::from_millis(pause.into()));
        // A slow coordinator is not asked faster afterwards.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = begun(&mut stops) => return,
                () = answers.closed() => return,
            }
            let ask = v1::GetLagRequest {
                group: request.group.clone(),
                topic: request.topic.clone(),
            };
            let answer = lag(&node, ask).await.map(|it| v1::WatchLagResponse {
                lags: it.lags,
                state: it.state,
            });
            let last = answer.is_err();
            let sent = answers.send(answer.map_err(Status::from)).await;
            if last || sent.is_err() {
                return;
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(stream)))
}
