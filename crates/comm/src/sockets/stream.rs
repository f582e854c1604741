//! One connection between two ranks: a Unix socket on the same machine, TCP to another one.

#[cfg(target_os = "linux")]
use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};
use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{
    io::{ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

/// How long a machine that answers nothing may keep what was sent to it before it counts as gone. A link that is cut for less than
/// that is not noticed.
const SILENCE: Duration = Duration::from_secs(30);

/// A connection to another rank.
#[derive(Debug)]
pub(super) enum Stream {
    /// To a process of this machine.
    Unix(UnixStream),
    /// To another machine.
    Tcp(TcpStream),
}

impl Stream {
    /// A connection over the network whose other end is missed when it is silent.
    pub(super) fn tcp(stream: TcpStream) -> Result<Stream> {
        stream.set_nodelay(true)?;
        watch(&stream)?;
        Ok(Stream::Tcp(stream))
    }

    pub(super) fn try_clone(&self) -> Result<Stream> {
        match self {
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
        }
    }

    /// Says that nothing more comes.
    pub(super) fn finish(&self) -> Result<()> {
        match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Says something, and hands over memory that both may use, to a process of this machine.
    #[cfg(target_os = "linux")]
    pub(super) fn hand(&mut self, words: &[u8], memory: Option<BorrowedFd<'_>>) -> Result<()> {
        let (Stream::Unix(stream), Some(memory)) = (&*self, memory) else { return self.write_all(words) };
        let memory = [memory];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&memory));
        let sent =
            retry_on_intr(|| sendmsg(stream, &[IoSlice::new(words)], &mut control, SendFlags::NOSIGNAL))?;
        self.write_all(&words[sent..])
    }

    /// Hears as much, and takes what was handed over with it.
    #[cfg(target_os = "linux")]
    pub(super) fn take(&mut self, words: &mut [u8]) -> Result<Option<OwnedFd>> {
        let Stream::Unix(stream) = &*self else { return self.read_exact(words).map(|()| None) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let came = retry_on_intr(|| {
            recvmsg(stream, &mut [IoSliceMut::new(words)], &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let handed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut memory) => memory.next(),
            _ => None,
        });
        if came.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.read_exact(&mut words[came.bytes..])?;
        Ok(handed)
    }

    /// Reads wait, at most so long.
    pub(super) fn wait(&self, patience: Option<Duration>) -> Result<()> {
        match self {
            Stream::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(patience)
            }
            Stream::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(patience)
            }
        }
    }
}

/// Has the system probe a silent connection, and give up one that does not acknowledge.
#[cfg(target_os = "linux")]
fn watch(stream: &TcpStream) -> Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE / 3)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE / 6)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?)
}

#[cfg(not(target_os = "linux"))]
fn watch(stream: &TcpStream) -> Result<()> {
    stream.set_write_timeout(Some(SILENCE))
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
