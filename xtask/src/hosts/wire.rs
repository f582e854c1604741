//! A wire between the bridge and a host that threads of this process carry, frame by frame, late and with losses: for kernels without
//! netem. Everything above the frames is the kernel's own.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Where devices are made whose frames a process has.
const TUN: &str = "/dev/net/tun";

/// `TUNSETIFF`, which makes a device with a name.
const SET: Opcode = opcode::write::<i32>(b'T', 202);

/// Whole frames with nothing before them: `IFF_TAP | IFF_NO_PI`.
const KIND: u16 = 0x1002;

/// A `struct ifreq`, which asks the kernel for a device: its name, and its kind behind that.
#[repr(align(8))]
struct Request([u8; 40]);

/// What a link does to frames, each way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) delay: Duration,
    /// Of a million frames so many are lost.
    pub(super) lost: u64,
}

/// Two devices and what is between them. They are gone when they are removed, or this process ends.
#[derive(Debug)]
pub(super) struct Wire {
    lost: Arc<AtomicU64>,
}

impl Wire {
    /// Makes two devices of these names and carries frames between them from now on; which are lost follows from the seed.
    pub(super) fn lay(names: [&str; 2], weather: Weather, seed: u64) -> Result<Wire> {
        let [here, there] = [device(names[0])?, device(names[1])?].map(Arc::new);
        let lost = Arc::new(AtomicU64::new(0));
        let ways = [(here.clone(), there.clone(), seed << 1), (there, here, (seed << 1) | 1)];
        for (from, to, seed) in ways {
            let (late, due) = channel();
            let lost = lost.clone();
            spawn(move || take(&from, weather, Random(seed), &late, &lost));
            spawn(move || give(&to, &due));
        }
        Ok(Wire { lost })
    }

    /// Frames that were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

fn device(name: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(TUN).with_context(|| format!("open {TUN}"))?;
    let mut request = Request([0; 40]);
    request.0[..name.len()].copy_from_slice(name.as_bytes());
    request.0[16..18].copy_from_slice(&KIND.to_ne_bytes());
    #[allow(unsafe_code)]
    // SAFETY: the kernel reads and writes an ifreq, which is 40 bytes long and as aligned as `Request` is, and keeps no address of it.
    unsafe { ioctl(&file, Updater::<SET, Request>::new(&mut request)) }
        .with_context(|| format!("make the device '{name}'"))?;
    Ok(file)
}

/// Takes frames off a device until it is removed.
fn take(
    mut from: &File,
    weather: Weather,
    mut random: Random,
    late: &Sender<(Instant, Vec<u8>)>,
    lost: &AtomicU64,
) {
    let mut frame = vec![0; 1 << 16];
    while let Ok(len) = from.read(&mut frame) {
        if random.below(1_000_000) < weather.lost {
            lost.fetch_add(1, Ordering::Relaxed);
        } else if late.send((Instant::now() + weather.delay, frame[..len].to_vec())).is_err() {
            return;
        }
    }
}

/// Puts frames into a device when they are due, in order.
fn give(mut to: &File, due: &Receiver<(Instant, Vec<u8>)>) {
    for (at, frame) in due {
        sleep(at.saturating_duration_since(Instant::now()));
        // A link that is cut loses what is on it.
        let _ = to.write(&frame);
    }
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
