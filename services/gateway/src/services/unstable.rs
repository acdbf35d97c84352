//! What a later version builds: present, so that reflection shows it, and
//! answered UNIMPLEMENTED with a sentence.

use futures::stream::BoxStream;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    self, group_service_server::GroupService, subscribe_service_server::SubscribeService,
    transaction_service_server::TransactionService,
};
use tonic::{Request, Response, Status, Streaming};

/// `GroupService`.
pub struct Groups;
/// `SubscribeService`.
pub struct Subscribe;
/// `TransactionService`.
pub struct Transactions;

fn groups() -> Status {
    Refusal::not_built("Consumer groups are not built in this version; read with Fetch.").into()
}

fn transactions() -> Status {
    Refusal::not_built("Transactions are not built in this version.").into()
}

#[tonic::async_trait]
impl GroupService for Groups {
    async fn list_groups(
        &self,
        _: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        Err(groups())
    }

    async fn describe_group(
        &self,
        _: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        Err(groups())
    }

    async fn delete_group(
        &self,
        _: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        Err(groups())
    }
}

#[tonic::async_trait]
impl SubscribeService for Subscribe {
    type SubscribeStream = BoxStream<'static, Result<v1::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        _: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(groups())
    }
}

#[tonic::async_trait]
impl TransactionService for Transactions {
    async fn begin_transaction(
        &self,
        _: Request<v1::BeginTransactionRequest>,
    ) -> Result<Response<v1::BeginTransactionResponse>, Status> {
        Err(transactions())
    }

    async fn add_offsets(
        &self,
        _: Request<v1::AddOffsetsRequest>,
    ) -> Result<Response<v1::AddOffsetsResponse>, Status> {
        Err(transactions())
    }

    async fn end_transaction(
        &self,
        _: Request<v1::EndTransactionRequest>,
    ) -> Result<Response<v1::EndTransactionResponse>, Status> {
        Err(transactions())
    }

    async fn describe_transaction(
        &self,
        _: Request<v1::DescribeTransactionRequest>,
    ) -> Result<Response<v1::DescribeTransactionResponse>, Status> {
        Err(transactions())
    }

    async fn list_transactions(
        &self,
        _: Request<v1::ListTransactionsRequest>,
    ) -> Result<Response<v1::ListTransactionsResponse>, Status> {
        Err(transactions())
    }
}
