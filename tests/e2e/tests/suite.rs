//! All integration tests of the package, in one program: it links once.

mod averages;
mod contrastive;
mod faults;
mod go_on;
mod init;
mod lora;
mod objective;
mod own_model;
mod parity;
mod rates;
mod refused;
mod resume;
mod rl;
mod sft;
mod skeleton;
mod starts;
mod vision;
