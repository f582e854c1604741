//! Zstandard: one frame after the other, each compared with its checksum.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, Read};

/// What the frames of a file hold.
pub(super) struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    /// Inside a frame.
    open: bool,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(source: R) -> Frames<R> {
        Frames { source, decoder: FrameDecoder::new(), open: false }
    }

    /// Goes to the next frame; false at the end of the file.
    fn enter(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(damaged("it ends inside a frame"));
                    }
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested, max }) => {
                    return Err(damaged(&format!("it needs a window of {requested} bytes, more than {max}")));
                }
                Err(FrameDecoderError::DictNotProvided { .. }) => {
                    return Err(damaged("it was compressed with a dictionary"));
                }
                Err(_) => return Err(damaged("a frame does not begin as it should")),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.open && !self.enter()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                let end = self.decoder.decode_blocks(&mut self.source, one);
                end.map_err(|_| damaged("a block cannot be decoded, or it ends inside a frame"))?;
            }
            let got = self.decoder.read(out)?;
            if got > 0 || out.is_empty() {
                return Ok(got);
            }
            let written = self.decoder.get_checksum_from_data();
            if written.is_some() && written != self.decoder.get_calculated_checksum() {
                return Err(damaged("the checksum of a frame does not match"));
            }
            self.open = false;
        }
    }
}
