//! How a mapping text is read: strictly or as old files need, and where layouts come from.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// What to do about things that are harmless once and a mistake the next time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// A placeholder without a match, a dropped or declared name that does not exist, an idle `axis`, a wrong
    /// `src_dtype` and a concatenation of element types that casts made different are errors.
    #[default]
    Strict,
    /// They are warnings, the last unless a target needs it, and the first name with placeholders alone
    /// decides which tensors a statement is repeated for: files written for the reference work as they are.
    Lenient,
}

/// Where the number of tensor-parallel parts of a fused weight comes from, unless the statement names a
/// layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degrees {
    /// From the catalogs: the parts of the fused dim, followed through renames, transposes and casts.
    #[default]
    Known,
    /// Counted as the reference does: shards along any dim, by name, and one behind a transpose.
    Guessed,
}

/// How a mapping text is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Strict unless asked otherwise.
    pub strictness: Strictness,
    /// Known unless asked otherwise.
    pub degrees: Degrees,
    /// Parts of named layouts; they come before declarations in the text.
    pub layouts: BTreeMap<String, usize>,
    /// Parts of fused weights on the left side of statements that name no `src_layout`.
    pub left_parts: Option<NonZeroUsize>,
    /// Parts of fused weights on the right side of statements that name no `dst_layout`.
    pub right_parts: Option<NonZeroUsize>,
}

impl Options {
    /// Everything as files written for the reference expect it.
    pub fn compatible() -> Options {
        Options { strictness: Strictness::Lenient, degrees: Degrees::Guessed, ..Options::default() }
    }
}
