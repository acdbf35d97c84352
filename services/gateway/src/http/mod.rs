//! HTTP and JSON on the gateway: a client of the gateway's own gRPC contract,
//! so that both surfaces check, number and route alike. `docs/formats/http.md`
//! lists requests and answers; `openapi.json` is served as it is.

mod body;
mod fetch;
mod groups;
mod numbered;
mod produce;
mod record;
mod reply;
mod topics;

use crate::node::Node;
use axum::{
    Router,
    http::{Method, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use reply::Failure;
use std::sync::Arc;
use talweg_client::{
    BatchProducer, Client, ErrorCode, ProducerConfig, RecordProducer, Refusal, view::SharedView,
};
use talweg_types::Acks;

/// The API's description, kept by hand and held to the routes by a test.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Bodies above this are refused before they are read: a record of the largest
/// size as escaped JSON text or base64 fits.
const BODY_BYTES_MAX: usize = 20 * 1024 * 1024;

/// What handlers share. Cheap to clone.
#[derive(Clone)]
pub struct HttpState {
    client: Client,
    view: SharedView,
    node: Arc<Node>,
    records: [RecordProducer; 4],
    batches: [BatchProducer; 4],
}

/// The four kinds of acks that a call may name; `None` is the topic's default.
const ACKS: [Option<Acks>; 4] = [None, Some(Acks::Zero), Some(Acks::One), Some(Acks::All)];

impl HttpState {
    /// `client` talks to the own gRPC address of `node`.
    ///
    /// # Errors
    /// A producer could not be opened.
    pub(crate) async fn new(client: Client, node: Arc<Node>) -> Result<Self, Refusal> {
        let config = |acks| ProducerConfig {
            acks,
            ..Default::default()
        };
        let records = ACKS.map(|acks| RecordProducer::open(&client, config(acks)));
        let [none, zero, one, all] = ACKS.map(|acks| BatchProducer::open(&client, config(acks)));
        let batches = [none.await?, zero.await?, one.await?, all.await?];
        Ok(Self {
            client,
            view: node.view.clone(),
            node,
            records,
            batches,
        })
    }

    fn records(&self, acks: Option<Acks>) -> &RecordProducer {
        &self.records[place(acks)]
    }

    fn batches(&self, acks: Option<Acks>) -> &BatchProducer {
        &self.batches[place(acks)]
    }
}

fn place(acks: Option<Acks>) -> usize {
    match acks {
        None => 0,
        Some(Acks::Zero) => 1,
        Some(Acks::One) => 2,
        Some(Acks::All) => 3,
    }
}

/// All routes of the API but health and metrics (`talweg_kit::health::router`).
pub fn router(state: HttpState) -> Router {
    Router::new()
        .route("/v1/topics", get(topics::list).post(topics::create))
        .route(
            "/v1/topics/{topic}",
            get(topics::describe)
                .patch(topics::alter)
                .delete(topics::delete),
        )
        .route("/v1/topics/{topic}/records", post(produce::records))
        .route("/v1/topics/{topic}/produce", post(produce::produce))
        .route(
            "/v1/topics/{topic}/partitions/{partition}/records",
            get(fetch::records),
        )
        .route("/v1/topics/{topic}/consume", get(groups::consume))
        .route("/v1/topics/{topic}/commit", post(groups::commit_topic))
        .route("/v1/topics/{topic}/seek", post(groups::seek))
        .route("/v1/groups/{group}/records", get(groups::records))
        .route("/v1/groups/{group}/offsets", post(groups::commit_group))
        .route("/v1/groups/{group}/lag", get(groups::lag))
        .route("/openapi.json", get(openapi))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn unknown_path(uri: Uri) -> Failure {
    let refusal = Refusal::new(
        ErrorCode::InvalidArgument,
        format!(
            "there is nothing at {}; /openapi.json lists what there is",
            uri.path()
        ),
    );
    Failure::with_status(404, refusal)
}

async fn wrong_method(method: Method, uri: Uri) -> Failure {
    let refusal = Refusal::new(
        ErrorCode::InvalidArgument,
        format!(
            "{} does not take {method}; /openapi.json says what it takes",
            uri.path()
        ),
    );
    Failure::with_status(405, refusal)
}

#[cfg(test)]
mod tests;
