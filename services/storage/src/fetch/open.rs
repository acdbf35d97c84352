//! The open frame of a Fetch stream.

use crate::{
    node::Node,
    resolve,
    stream::{OPEN_TIMEOUT, check_client_id, violation},
};
use talweg_kit::{
    data_stream::FrameReceiver,
    errors::{ErrorCode, Refusal},
};
use talweg_proto::v1::{FetchOpen, FetchRequest, Form, Isolation, fetch_request::Frame};
use talweg_types::limits;
use tonic::Status;

/// Waits for the open frame; `None` if the client ended the stream instead.
pub async fn receive(
    node: &Node,
    requests: &mut FrameReceiver<FetchRequest>,
) -> Result<Option<FetchOpen>, Status> {
    let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next()).await;
    let first = first.map_err(|_| Status::from(violation("the open frame did not come")))?;
    let Some(frame) = first.transpose()? else {
        return Ok(None);
    };
    match frame.frame {
        Some(Frame::Open(open)) => {
            check(node, &open)?;
            Ok(Some(open))
        }
        Some(_) => Err(violation("the first frame must be `open`").into()),
        None => Err(violation("a frame without content").into()),
    }
}

fn check(node: &Node, open: &FetchOpen) -> Result<(), Refusal> {
    check_client_id(&open.client_id)?;
    match Form::try_from(open.form) {
        Ok(Form::Batches) => {}
        Ok(Form::Unspecified | Form::Records) => {
            return Err(resolve::only_gateways(node, "The thin form"));
        }
        Err(_) => {
            return Err(Refusal::invalid(
                "open.form",
                format!("{} is unknown", open.form),
            ));
        }
    }
    if Isolation::try_from(open.isolation).is_err() {
        return Err(Refusal::invalid(
            "open.isolation",
            format!("{} is unknown", open.isolation),
        ));
    }
    let max = limits::FETCH_PARTITIONS_MAX;
    if open.partitions.len() > max {
        let message = format!(
            "{} partitions on one stream, at most {max} are allowed",
            open.partitions.len()
        );
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            "partitions",
            max as u64,
            open.partitions.len() as u64,
            "partitions",
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
    Ok(())
}
