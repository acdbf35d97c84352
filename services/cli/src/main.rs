//! `talweg`.

fn main() {}
