//! The command line.
pub mod args;
pub mod bench;
pub mod consume;
pub mod failure;
pub mod flights;
pub mod produce;
pub mod shapes;
pub mod text;
