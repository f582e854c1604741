//! The secret that an agent and its clients share.

use super::frame::TOKEN_BYTES;
use crate::error::{Error, Result};

/// The variable of the environment that holds it.
pub const PEER_TOKEN: &str = "PLANARIA_PEER_TOKEN";

/// The shared secret of the environment, for agents and their clients; empty when there is none.
pub fn peer_token() -> Result<String> {
    match std::env::var(PEER_TOKEN) {
        Ok(token) => Ok(token),
        Err(std::env::VarError::NotPresent) => Ok(String::new()),
        Err(_) => Err(bad("is not text")),
    }
}

fn bad(what: &str) -> Error {
    let (name, op) = (PEER_TOKEN.to_string(), "use the token in");
    let message = format!("it {what}; set it to some random letters and digits, the same on both sides");
    Error::Io { name, op, kind: std::io::ErrorKind::InvalidInput, message }
}

/// A token that takes the same time to compare with any other.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token {
    bytes: [u8; TOKEN_BYTES],
    len: usize,
}

impl Token {
    pub(super) fn new(text: &str) -> Result<Token> {
        padded(text.as_bytes())
            .ok_or_else(|| bad(&format!("has {} bytes, at most {TOKEN_BYTES}", text.len())))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether these are its bytes; all places are compared, whatever they hold.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let Some(given) = padded(given) else { return false };
        let start = (self.len ^ given.len) as u64;
        let pairs = self.bytes.iter().zip(&given.bytes);
        let different = pairs.fold(start, |all, (a, b)| std::hint::black_box(all | u64::from(a ^ b)));
        std::hint::black_box(different) == 0
    }
}

fn padded(text: &[u8]) -> Option<Token> {
    let mut bytes = [0; TOKEN_BYTES];
    bytes.get_mut(..text.len())?.copy_from_slice(text);
    Some(Token { bytes, len: text.len() })
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_the_same() {
        let token = Token::new("secret").unwrap();
        assert!(token.is(b"secret") && Token::new("").unwrap().is(b""));
        for other in [&b""[..], b"secre", b"secret\0", b"Secret", b"secrets", &[0; 300]] {
            assert!(!token.is(other), "{other:?}");
        }
        assert!(Token::new(&"x".repeat(257)).is_err());
        assert_eq!(format!("{token:?}"), "Token");
    }
}
