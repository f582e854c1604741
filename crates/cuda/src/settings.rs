//! What the environment asks for.

use std::sync::OnceLock;

/// `PLANARIA_CUDA=checked`: wait after each launch, poison fresh memory, put guard bytes around blocks.
pub(crate) fn checked() -> bool {
    static CHECKED: OnceLock<bool> = OnceLock::new();
    *CHECKED.get_or_init(|| std::env::var_os("PLANARIA_CUDA").is_some_and(|v| v == "checked"))
}
