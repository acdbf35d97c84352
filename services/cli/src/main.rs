//! `talweg`: the command line. Everything is in the library.

use talweg_kit::process::exit_now;

fn main() {
    exit_now(talweg::run(std::env::args_os()))
}
