//! `talweg`: the command line. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    talweg::run(std::env::args_os())
}
