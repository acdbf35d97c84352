//! `CoordinatorService`: decode, find the shard, hand over.

use crate::{
    ask, convert,
    link::{Link, Outgoing},
    node::Node,
    shard::{Command, Said},
    shards::route,
};
use futures::stream::{BoxStream, StreamExt};
use prost::Message;
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::coordinator::v1::{
    AskRequest, AskResponse, CheckShardsRequest, CheckShardsResponse, ConverseOpen,
    ConverseRequest, ConverseResponse, ListShardsRequest, ListShardsResponse, converse_request,
    converse_response::What, coordinator_service_server::CoordinatorService,
};
use talweg_types::check_name;
use tonic::{Request, Response, Status, Streaming};

/// A gateway opens its stream within this.
const OPEN_TIME: Duration = Duration::from_secs(10);

pub struct Service(pub Arc<Node>);

#[tonic::async_trait]
impl CoordinatorService for Service {
    type ConverseStream = BoxStream<'static, Result<ConverseResponse, Status>>;

    /// PROTOCOL_VIOLATION: the first frame does not open, or opens wrongly. What is
    /// refused later is in the answers. The stream ends when the gateway's half does,
    /// when it does not read, and when a newer one of its process takes its place.
    async fn converse(
        &self,
        request: Request<Streaming<ConverseRequest>>,
    ) -> Result<Response<Self::ConverseStream>, Status> {
        let mut said = request.into_inner();
        let open = opened(&mut said).await?;
        let node = Arc::clone(&self.0);
        let cuts = node.metrics.gateways_cut.clone();
        let (link, outgoing) = node.links.open(open.node_id, &open.process_id, cuts);
        node.metrics.gateway_streams.inc();
        let answers = answers(Arc::clone(&link), outgoing);
        tokio::spawn(listen(node, link, open.process_id.to_vec(), said));
        Ok(Response::new(answers))
    }

    /// Groups of shards that are served; those on their way up are left out.
    async fn list_shards(
        &self,
        _: Request<ListShardsRequest>,
    ) -> Result<Response<ListShardsResponse>, Status> {
        Ok(Response::new(ask::list_shards(&self.0).await))
    }

    /// NOT_COORDINATOR, LOADING, THROTTLED; and what the question's own answer may be.
    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<AskResponse>, Status> {
        let question = request.into_inner().question;
        let question = question.ok_or_else(|| Refusal::invalid("question", "none is set"))?;
        let answer = ask::ask(&self.0, question).await?;
        Ok(Response::new(AskResponse {
            answer: Some(answer),
        }))
    }

    /// UNAVAILABLE: a log could not be read again.
    async fn check_shards(
        &self,
        _: Request<CheckShardsRequest>,
    ) -> Result<Response<CheckShardsResponse>, Status> {
        Ok(Response::new(ask::check_shards(&self.0).await?))
    }
}

async fn opened(said: &mut Streaming<ConverseRequest>) -> Result<ConverseOpen, Status> {
    let violation = |why: &str| Refusal::new(ErrorCode::ProtocolViolation, why).to_status();
    let first = tokio::time::timeout(OPEN_TIME, said.message()).await;
    let first = first.map_err(|_| violation("the stream was not opened in time"))?;
    let first = first?.and_then(|first| first.event);
    let Some(converse_request::Event::Open(open)) = first else {
        return Err(violation("the first frame must open"));
    };
    if open.process_id.len() != 16 {
        return Err(violation("open.process_id must have 16 bytes"));
    }
    Ok(open)
}

fn answers(
    link: Arc<Link>,
    outgoing: Outgoing,
) -> BoxStream<'static, Result<ConverseResponse, Status>> {
    let next = |(link, mut outgoing): (Arc<Link>, Outgoing)| async move {
        let next = tokio::select! {
            biased;
            () = link.cut.cancelled() => None,
            next = outgoing.next() => next,
            () = link.ending.cancelled() => None,
        };
        next.map(|response| (Ok(response), (link, outgoing)))
    };
    futures::stream::unfold((link, outgoing), next).boxed()
}

/// Reads until either side ends it; then its members' streams are no longer known.
async fn listen(
    node: Arc<Node>,
    link: Arc<Link>,
    process: Vec<u8>,
    mut said: Streaming<ConverseRequest>,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = link.cut.cancelled() => break,
            () = link.ending.cancelled() => break,
            next = said.message() => next,
        };
        match next {
            Ok(Some(request)) => hear(&node, &link, request),
            Ok(None) => break,
            Err(status) => {
                tracing::debug!(gateway = link.gateway, %status, "a gateway's stream broke");
                break;
            }
        }
    }
    node.links.close(&process, &link);
    // Before shards are told, so that none makes a way to a link that is gone.
    link.ending.cancel();
    for shard in node.shards.all() {
        shard.tell_surely(Command::LinkGone(link.id)).await;
    }
    node.metrics.gateway_streams.dec();
}

fn hear(node: &Node, link: &Arc<Link>, request: ConverseRequest) {
    let bytes = request.encoded_len();
    let ConverseRequest {
        request_id,
        group,
        event,
    } = request;
    if let Err(refusal) = hand_over(node, link, request_id, &group, event, bytes) {
        link.answer(request_id, &group, What::Error(refusal.detail()));
    }
}

fn hand_over(
    node: &Node,
    link: &Arc<Link>,
    request_id: u64,
    group: &str,
    event: Option<converse_request::Event>,
    bytes: usize,
) -> Result<(), Refusal> {
    check_group(group)?;
    let event = event.ok_or_else(|| Refusal::invalid("event", "none is set"))?;
    let asked = convert::event(event)?;
    let shard = route(node, group)?;
    shard.tell(Command::Said(Said {
        link: Arc::clone(link),
        request_id,
        group: group.into(),
        asked,
        bytes,
    }))
}

/// Group ids follow the rules of topic names.
pub fn check_group(group: &str) -> Result<(), Refusal> {
    check_name(group).map_err(|error| {
        let why = format!("group: {error}");
        Refusal::new(ErrorCode::InvalidName, why.clone()).with_field("group", why)
    })
}
