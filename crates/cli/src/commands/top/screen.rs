//! The whole terminal for a while: a screen of its own and keys without a line's end. Both are given back, however it ends.

use anyhow::Result;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Another screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A screen to draw on.
pub(super) struct Screen {
    /// How standard input was; absent where it is no terminal, and has no keys.
    before: Option<Termios>,
}

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
    Order,
}

impl Screen {
    pub(super) fn open() -> Result<Screen> {
        let stdin = std::io::stdin();
        let before = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        if let Some(before) = &before {
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // A read ends after a tenth of a second, with or without a key.
            keys.special_codes[SpecialCodeIndex::VMIN] = 0;
            keys.special_codes[SpecialCodeIndex::VTIME] = 1;
            tcsetattr(&stdin, OptionalActions::Now, &keys)?;
        }
        say(ENTER);
        Ok(Screen { before })
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let known = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        known.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// The next key, if one comes within this time.
    pub(super) fn key(&self, within: Duration) -> Option<Key> {
        let pause = within.min(Duration::from_millis(100));
        if self.before.is_none() {
            std::thread::sleep(pause);
            return None;
        }
        let mut bytes = [0; 8];
        // A signal ends the wait, and is looked at elsewhere.
        match rustix::io::read(std::io::stdin(), &mut bytes) {
            Ok(read) => key(&bytes[..read]),
            Err(_) => {
                std::thread::sleep(pause);
                None
            }
        }
    }
}

fn key(bytes: &[u8]) -> Option<Key> {
    match bytes {
        b"q" | b"Q" | [0x03 | 0x04, ..] => Some(Key::Quit),
        b"j" | b"\x1b[B" => Some(Key::Down),
        b"k" | b"\x1b[A" => Some(Key::Up),
        b"s" => Some(Key::Order),
        _ => None,
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        say(LEAVE);
        if let Some(before) = &self.before {
            // A terminal that is gone needs nothing back.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn say(code: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(code.as_bytes()).and_then(|()| out.flush());
}
