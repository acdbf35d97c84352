//! `flights-demo`.

fn main() {}
