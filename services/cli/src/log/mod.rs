//! `talweg log`: looks into the files of a log without a server, and never
//! changes them.

mod dump;
mod lookup;
mod show;

use crate::{
    args::{Globals, LogCommand},
    failure::Failure,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::dump::DumpError;

/// Runs the command.
pub fn run(globals: &Globals, command: LogCommand) -> Result<(), Failure> {
    match command {
        LogCommand::Dump(args) => dump::run(globals, &args),
        LogCommand::Lookup(args) => lookup::run(globals, &args),
    }
}

/// What the log's own errors are called everywhere else.
fn refused(error: &DumpError) -> Failure {
    let message = error.to_string();
    let new = |code| Refusal::new(code, message.clone());
    let refusal = match error {
        DumpError::Io { .. } | DumpError::NotALog(_) => {
            new(ErrorCode::InvalidArgument).with_field("path", message.clone())
        }
        DumpError::NotThere { first, end, .. } => {
            new(ErrorCode::OffsetOutOfRange).with_bounds(first.0, end.0)
        }
        DumpError::Damaged { offset, next_good } => {
            new(ErrorCode::DataDamaged).with_damage(offset.0, next_good.0)
        }
        DumpError::Undecodable { .. } => new(ErrorCode::CorruptBatch),
    };
    refusal.into()
}
