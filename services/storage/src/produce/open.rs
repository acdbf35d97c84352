//! The open frame of a Produce stream.

use crate::{
    node::Node,
    resolve,
    stream::{OPEN_TIMEOUT, check_client_id, violation},
};
use std::time::Duration;
use talweg_kit::{
    data_stream::FrameReceiver,
    errors::{ErrorCode, Refusal},
};
use talweg_proto::v1::{self, Compression, ProduceOpen, ProduceRequest, produce_request::Frame};
use talweg_types::{Acks, limits};
use tonic::Status;

/// What a stream was opened with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// None: each topic's default.
    pub acks: Option<Acks>,
    pub delivery_timeout: Duration,
}

/// Waits for the open frame; `None` if the client ended the stream instead.
pub async fn receive(
    node: &Node,
    requests: &mut FrameReceiver<ProduceRequest>,
) -> Result<Option<Opening>, Status> {
    let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next()).await;
    let first = first.map_err(|_| Status::from(violation("the open frame did not come")))?;
    let Some(frame) = first.transpose()? else {
        return Ok(None);
    };
    match frame.frame {
        Some(Frame::Open(open)) => Ok(Some(check(node, &open)?)),
        Some(_) => Err(violation("the first frame must be `open`").into()),
        None => Err(violation("a frame without content").into()),
    }
}

fn check(node: &Node, open: &ProduceOpen) -> Result<Opening, Refusal> {
    check_client_id(&open.client_id)?;
    let acks = match v1::Acks::try_from(open.acks) {
        Ok(v1::Acks::Unspecified) => None,
        Ok(v1::Acks::None) => Some(Acks::Zero),
        Ok(v1::Acks::Leader) => Some(Acks::One),
        Ok(v1::Acks::All) => Some(Acks::All),
        Err(_) => {
            return Err(Refusal::invalid(
                "open.acks",
                format!("{} is unknown", open.acks),
            ));
        }
    };
    if Compression::try_from(open.compression).is_err() {
        return Err(Refusal::invalid(
            "open.compression",
            format!("{} is unknown", open.compression),
        ));
    }
    let (low, high) = limits::DELIVERY_TIMEOUT_MS_RANGE;
    let delivery_timeout = match u64::from(open.delivery_timeout_ms) {
        0 => limits::DELIVERY_TIMEOUT_MS_DEFAULT,
        ms if (low..=high).contains(&ms) => ms,
        ms => {
            let reason = format!("{ms} is outside [{low}, {high}]");
            return Err(Refusal::invalid("open.delivery_timeout_ms", reason));
        }
    };
    if open.linger_ms.is_some_and(|ms| ms > 1_000) {
        return Err(Refusal::invalid("open.linger_ms", "is above 1000"));
    }
    if !open.transactional_id.is_empty() {
        return Err(Refusal::not_built(
            "Transactions are not built in this version.",
        ));
    }
    if !open.resume_token.is_empty() {
        return Err(Refusal::new(
            ErrorCode::InvalidResumeToken,
            "storage nodes give out no resume tokens; open anew",
        ));
    }
    if node.draining().is_some() {
        return Err(resolve::draining());
    }
    Ok(Opening {
        acks,
        delivery_timeout: Duration::from_millis(delivery_timeout),
    })
}
