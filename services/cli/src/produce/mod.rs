pub mod lines;
