//! All integration tests of the package, in one program: it links once.

mod archives;
mod common;
mod convert;
mod damage;
mod defects;
mod defects_flex;
mod faults;
mod follow;
mod foreign;
mod formats;
mod hostile;
mod mapping;
mod options;
mod reshard;
mod ring;
mod split;
mod values;
