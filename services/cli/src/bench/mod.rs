pub mod cpu;
pub mod payload;
pub mod raw;
pub mod report;
