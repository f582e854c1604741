//! What goes over the wire: every message begins with an envelope that says which call it belongs to. Short
//! contents travel inside it.

use super::carrier::engine_error;
use crate::error::Result;

/// First byte of an envelope; another release may use another.
const VERSION: u8 = 2;

/// Contents up to this many bytes travel in the envelope.
pub(super) const INLINE: usize = 8192;

/// Bytes of an envelope before its text.
const FIXED: usize = 40;

/// Bits of a channel below the number of the call: the step, or the leg and the number of a chunk.
const BELOW: u32 = 27;

/// What a chunk of a collective over hosts is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    /// A rank's contribution, to who folds on its host.
    Own = 2,
    /// What some hosts have folded, to the next.
    Part,
    /// What is done, to another host.
    Done,
    /// What is done, to a rank that it is for.
    Spread,
}

/// Which stream of a rank's messages one belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    /// The group.
    pub(super) group: u64,
    /// Step of a collective, or tag of a message.
    pub(super) channel: u64,
}

impl Line {
    /// Step `phase` of a group's collective number `sequence`.
    pub(super) fn collective(group: u64, sequence: u64, phase: u8) -> Line {
        Line { group, channel: (sequence << BELOW) | u64::from(phase) }
    }

    /// A leg of a chunk of a group's collective number `sequence`.
    pub(super) fn chunk(group: u64, sequence: u64, leg: Leg, index: usize) -> Line {
        Line { group, channel: (sequence << BELOW) | (index as u64) << 3 | leg as u64 }
    }

    /// Messages of a group with a tag.
    pub(super) fn message(group: u64, tag: u32) -> Line {
        Line { group, channel: (1 << 63) | u64::from(tag) }
    }
}

/// Bytes of contents in a message with this tag: a long one has nothing else, an envelope those that are short.
pub(crate) fn contents(tag: u32, bytes: &[u8]) -> usize {
    let told = bytes.get(24..32).and_then(|told| told.try_into().ok()).map_or(0, u64::from_le_bytes);
    match (tag, usize::try_from(told)) {
        (0, Ok(length)) if length <= INLINE => length,
        (0, _) => 0,
        _ => bytes.len(),
    }
}

/// What kind of message this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Data,
    /// The sender gives up; the text says why.
    Abort,
}

/// The beginning of every message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Envelope {
    pub(super) kind: MessageKind,
    pub(super) line: Line,
    /// The sender's call, so that a receiver who made another one can say so.
    pub(super) text: String,
    /// Bytes of contents.
    pub(super) length: usize,
    /// The tag that long contents travel under.
    pub(super) tag: u32,
}

impl Envelope {
    /// The envelope, with the contents if they are short.
    pub(super) fn write(&self, contents: &[u8]) -> Vec<u8> {
        let inline = self.length <= INLINE;
        let mut out = Vec::with_capacity(FIXED + self.text.len() + if inline { self.length } else { 0 });
        out.extend([VERSION, u8::from(self.kind == MessageKind::Abort), 0, 0]);
        out.extend((self.text.len() as u32).to_le_bytes());
        out.extend(self.line.group.to_le_bytes());
        out.extend(self.line.channel.to_le_bytes());
        out.extend((self.length as u64).to_le_bytes());
        out.extend(self.tag.to_le_bytes());
        out.resize(FIXED, 0);
        out.extend(self.text.as_bytes());
        if inline {
            out.extend(contents);
        }
        out
    }

    /// Reads an envelope; gives its contents too when they travelled inside.
    pub(super) fn read(bytes: &[u8]) -> Result<(Envelope, Option<&[u8]>)> {
        let refuse = || engine_error("a message of another program or release");
        let (head, rest) = bytes.split_at_checked(FIXED).ok_or_else(refuse)?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).map_err(|_| refuse());
        if head[0] != VERSION || head[1] > 1 {
            return Err(refuse());
        }
        let text = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (text, contents) = rest.split_at_checked(text).ok_or_else(refuse)?;
        let length = usize::try_from(number(24)?).ok().filter(|&n| isize::try_from(n).is_ok());
        let envelope = Envelope {
            kind: if head[1] == 1 { MessageKind::Abort } else { MessageKind::Data },
            line: Line { group: number(8)?, channel: number(16)? },
            text: String::from_utf8_lossy(text).into_owned(),
            length: length.ok_or_else(refuse)?,
            tag: u32::from_le_bytes([head[32], head[33], head[34], head[35]]),
        };
        let inline = envelope.length <= INLINE;
        match inline && contents.len() != envelope.length || !inline && !contents.is_empty() {
            true => Err(refuse()),
            false => Ok((envelope, inline.then_some(contents))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_round_trip_and_damage_is_refused() {
        for length in [0, 5, INLINE, INLINE + 1] {
            let line = Line::collective(u64::MAX, 77, 1);
            let (text, kind) = ("all_reduce".to_string(), MessageKind::Data);
            let envelope = Envelope { kind, line, text, length, tag: 70_000 };
            let contents = vec![3u8; length];
            let bytes = envelope.write(&contents);
            let inline = (length <= INLINE).then_some(contents.as_slice());
            assert_eq!(Envelope::read(&bytes), Ok((envelope, inline)));
            for cut in 0..bytes.len().min(60) {
                assert!(Envelope::read(&bytes[..cut]).is_err());
            }
            assert!(Envelope::read(&[bytes.as_slice(), &[0]].concat()).is_err());
        }
    }

    proptest::proptest! {
        /// Envelopes with some bytes changed, and bytes that are none: refused, or read as what another envelope says.
        #[test]
        fn damaged_envelopes_are_refused_or_read_alike(
            text in ".{0,40}",
            length in 0..64usize,
            changed in proptest::collection::vec((0..200usize, proptest::num::u8::ANY), 0..6),
            cut in 0..200usize,
        ) {
            let line = Line { group: 3, channel: 5 };
            let envelope = Envelope { kind: MessageKind::Data, line, text, length, tag: 7 };
            let mut bytes = envelope.write(&vec![1; length]);
            changed.iter().for_each(|(at, value)| if let Some(byte) = bytes.get_mut(*at) { *byte = *value });
            let end = bytes.len() - cut % (bytes.len() / 2);
            if let Ok((read, contents)) = Envelope::read(&bytes[..end]) {
                let again = read.write(contents.unwrap_or_default());
                proptest::prop_assert_eq!(Envelope::read(&again), Ok((read, contents)));
            }
            let _ = super::contents(0, &bytes[..end]);
        }
    }

    #[test]
    fn lines_of_calls_and_messages_are_apart() {
        assert_ne!(Line::collective(1, 4, 0), Line::collective(1, 3, 1));
        assert_ne!(Line::collective(1, 2, 0), Line::message(1, 4));
        assert_ne!(Line::collective(1, 4, 1), Line::chunk(1, 4, Leg::Own, 0));
        assert_ne!(Line::chunk(1, 4, Leg::Part, 7), Line::chunk(1, 4, Leg::Part, 6));
        assert_ne!(Line::chunk(1, 3, Leg::Spread, 1 << 12), Line::chunk(1, 4, Leg::Spread, 0));
    }
}
