//! Bad values found by kernels, reported when the host next waits.
//!
//! A kernel does no harm with a bad id or index: it writes nothing, and puts position and value into its slot, the
//! lowest position first. A slot is four 64-bit words on the device, all ones when unused: a lock, position, value.

use std::fmt;

/// Words of a slot.
pub(crate) const SLOT_WORDS: usize = 4;
/// Launches that may be unchecked at one time.
pub(crate) const SLOTS: usize = 256;

/// What a slot is about, for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateNote {
    /// The operation.
    pub op: &'static str,
    /// A number of the caller's own, to tell kinds of errors apart.
    pub kind: u8,
    /// Values from 0 up to but without this are right.
    pub size: usize,
    /// A dim, where that matters.
    pub dim: usize,
    /// Which entry of an expression, where that matters.
    pub entry: usize,
}

/// A value that a kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// What was checked.
    pub note: LateNote,
    /// Where the value stands, in row-major order.
    pub position: usize,
    /// The value.
    pub value: i64,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadValue { note, position, value } = self;
        write!(f, "{}: value {value} at position {position} is out of range for size {}", note.op, note.size)
    }
}

/// The address a kernel reports to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u64);

/// Which slots of a lane are in use.
#[derive(Default)]
pub(crate) struct Late {
    /// The slots' address once the first one was needed.
    pub(crate) table: Option<u64>,
    pub(crate) notes: Vec<LateNote>,
}

impl Late {
    /// The first bad value in launch order, from the slots as they were read back.
    pub(crate) fn first(&self, words: &[u64]) -> Option<BadValue> {
        let of = |(note, slot): (&LateNote, &[u64])| {
            let found = slot[1] != u64::MAX;
            found.then(|| BadValue { note: *note, position: slot[1] as usize, value: slot[2] as i64 })
        };
        self.notes.iter().zip(words.chunks_exact(SLOT_WORDS)).find_map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_launch_with_a_bad_value_is_reported() {
        let note = |op| LateNote { op, kind: 0, size: 10, dim: 0, entry: 0 };
        let late = Late { table: None, notes: vec![note("a"), note("b"), note("c")] };
        let mut words = vec![u64::MAX; 3 * SLOT_WORDS];
        assert_eq!(late.first(&words), None);
        words[2 * SLOT_WORDS + 1] = 7;
        words[2 * SLOT_WORDS + 2] = 12;
        words[SLOT_WORDS + 1] = 3;
        words[SLOT_WORDS + 2] = (-4i64) as u64;
        let bad = late.first(&words).unwrap();
        assert_eq!((bad.note.op, bad.position, bad.value), ("b", 3, -4));
        assert_eq!(bad.to_string(), "b: value -4 at position 3 is out of range for size 10");
    }
}
