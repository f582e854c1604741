//! Benchmarks against peers: the cases, the way a sample is taken, and the driver that keeps several workers
//! alive and lets them run in turn.

pub mod bed;
pub mod cache;
pub mod cases;
pub mod contest;
pub mod inputs;
pub mod machine;
pub mod measure;
pub mod peer;
pub mod record;
pub mod report;
pub mod stats;
pub mod table;
pub mod worker;
