//! Golden runners.
