//! `talweg`: the command line. Everything is in the library.

use talweg_kit::process::exit_now;

/// Frames of a mebibyte come and go all the time: glibc gives such memory back to
/// the kernel and faults it in again, which costs up to a third of a fetch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    exit_now(talweg::run(std::env::args_os()))
}
