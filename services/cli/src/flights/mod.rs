//! Real data through the whole path, and the proof that nothing was lost.

mod bar;
mod demo;
pub mod proof;
pub mod reader;
mod server;

pub use demo::{DemoArgs, run};
pub use proof::{Finding, Ledger, Proven, RecordRef, Refuted, prove};
pub use reader::{Flight, Flights, FlightsError, ROWS};
