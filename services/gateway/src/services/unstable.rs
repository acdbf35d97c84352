//! What a later version builds: present, so that reflection shows it, and
//! answered UNIMPLEMENTED with a sentence.

use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, transaction_service_server::TransactionService};
use tonic::{Request, Response, Status};

/// `TransactionService`.
pub struct Transactions;

fn transactions() -> Status {
    Refusal::not_built("Transactions are not built in this version.").into()
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
