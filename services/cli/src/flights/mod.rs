//! Real data through the whole path, and the proof that nothing was lost.

pub mod proof;
pub mod reader;

pub use proof::{Finding, Ledger, Proven, RecordRef, prove};
pub use reader::{Flight, Flights, FlightsError, ROWS};
