//! One story a test, on a group with a log.

mod bench;
mod delivery;
mod figures;
mod forget;
mod http;
mod loading;
mod membership;
mod moves;
mod offsets;
