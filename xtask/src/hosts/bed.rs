//! The test bed: network namespaces joined by a bridge, each with its own host name, loopback, folders and, unless it is told otherwise, no
//! file that another one has. All of it lives in namespaces of the process that made it and goes with that process, however it ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::wire::{Weather, Wire};

/// Everything is below this, which is memory of the bed's own.
pub(super) const BED: &str = "/run/bed";

/// The folder that jobs run in. Each host has its own here; with a shared file system all have this one.
pub(super) const WORK: &str = "/run/bed/work";

/// The address of the bridge, where servers for all hosts listen.
pub(super) const BRIDGE: &str = "10.77.0.254";

/// Starts a command on a host: `with` leaves all of them one folder.
const START: &str = "#!/bin/sh\nhost=$1; shift\nexec ip netns exec \"$host\" unshare --mount --uts /run/bed/inside own \"$host\" \"$@\"\n";
const WITH: &str = "#!/bin/sh\nhost=$1; shift\nexec ip netns exec \"$host\" unshare --mount --uts /run/bed/inside shared \"$host\" \"$@\"\n";

/// What a host sees: its own folders under the names that all of them have, and none of the others.
const INSIDE: &str = "#!/bin/sh\nset -e\nkind=$1; host=$2; shift 2\necho \"$host\" > /proc/sys/kernel/hostname\n\
    if [ $kind = own ]; then mount --bind /run/bed/hosts/$host /run/bed/work; fi\n\
    mount --bind /run/bed/shm/$host /dev/shm\nmount -t tmpfs tmpfs /run/bed/hosts\nmount -t tmpfs tmpfs /run/bed/shm\n\
    mount -t tmpfs tmpfs /run/bed/tmp\ncd /run/bed/work\nTMPDIR=/run/bed/tmp exec \"$@\"\n";

/// Hosts, and the program that they run.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) planaria: PathBuf,
    pub(super) hosts: Vec<String>,
    /// Hosts whose wires this process carries.
    wires: RefCell<BTreeMap<String, Wire>>,
}

impl Bed {
    /// Makes the hosts `node1`, `node2` and so on. Needs namespaces of its own around it.
    pub(super) fn make(planaria: &Path, count: usize) -> Result<Bed> {
        let hosts: Vec<String> = (1..=count).map(|number| format!("node{number}")).collect();
        call("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
        for folder in ["work", "tmp", "hosts", "shm"] {
            fs::create_dir_all(Path::new(BED).join(folder))?;
        }
        for (name, text) in [("start", START), ("with", WITH), ("inside", INSIDE)] {
            let file = Path::new(BED).join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        let name = |(number, host): (usize, &String)| format!("10.77.0.{} {host}\n", number + 1);
        let names: String = hosts.iter().enumerate().map(name).collect();
        let list = Path::new(BED).join("names");
        fs::write(&list, format!("127.0.0.1 localhost\n{BRIDGE} bridge\n{names}"))?;
        call("mount", &["--bind", &list.display().to_string(), "/etc/hosts"])?;
        ip("link set lo up")?;
        ip("link add bridge0 type bridge")?;
        ip(&format!("addr add {BRIDGE}/24 dev bridge0"))?;
        ip("link set bridge0 up")?;
        let bed = Bed { planaria: planaria.to_path_buf(), hosts, wires: RefCell::default() };
        for host in &bed.hosts {
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {host} link set lo up"))?;
            bed.pair(host)?;
        }
        bed.clear()?;
        Ok(bed)
    }

    /// Joins a host to the bridge by the kernel's own wire.
    fn pair(&self, host: &str) -> Result<()> {
        ip(&format!("link add to-{host} type veth peer name eth0 netns {host}"))?;
        self.join(host)
    }

    /// Gives the two ends of a host's wire, `to-HOST` here and `eth0` there, what they need. The host keeps its address on the wire, so
    /// that others find it at once when the wire is another one.
    fn join(&self, host: &str) -> Result<()> {
        let number = self.number(host) + 1;
        ip(&format!("link set to-{host} master bridge0 up"))?;
        ip(&format!("-n {host} link set eth0 address 02:00:0a:4d:00:{number:02x}"))?;
        ip(&format!("-n {host} addr add 10.77.0.{number}/24 dev eth0"))?;
        ip(&format!("-n {host} link set eth0 up"))
    }

    fn number(&self, host: &str) -> usize {
        self.hosts.iter().position(|known| known == host).unwrap_or(0)
    }

    /// Empties all folders and mends all links.
    pub(super) fn clear(&self) -> Result<()> {
        for host in &self.hosts {
            self.mend(host)?;
            // It is one where the disk was made small.
            let folder = self.folder(host).display().to_string();
            while Command::new("umount").arg(&folder).output().is_ok_and(|told| told.status.success()) {}
        }
        for folder in ["work", "hosts", "shm"] {
            let folder = Path::new(BED).join(folder);
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
            fs::create_dir(&folder)?;
        }
        for host in &self.hosts {
            fs::create_dir(self.folder(host))?;
            fs::create_dir(Path::new(BED).join("shm").join(host))?;
        }
        Ok(())
    }

    /// The folder of a host, as nobody on the bed sees it but this process.
    pub(super) fn folder(&self, host: &str) -> PathBuf {
        Path::new(BED).join("hosts").join(host)
    }

    /// Puts a file into the folder of every host, and into the one that they may share.
    pub(super) fn give(&self, name: &str, text: &str) -> Result<()> {
        let mut folders = self.hosts.iter().map(|host| self.folder(host)).chain([WORK.into()]);
        folders.try_for_each(|folder| Ok(fs::write(folder.join(name), text)?))
    }

    /// What `planaria launch --start` is given.
    pub(super) fn start(shared: bool) -> &'static str {
        if shared { "/run/bed/with {host}" } else { "/run/bed/start {host}" }
    }

    /// A command on a host.
    pub(super) fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = Command::new("/run/bed/start");
        command.arg(host).args(words).current_dir(WORK);
        command
    }

    /// Cuts the link of a host: nothing arrives, nobody is told.
    pub(super) fn cut(&self, host: &str) -> Result<()> {
        ip(&format!("link set to-{host} down"))
    }

    /// Makes the link of a host as it was.
    pub(super) fn mend(&self, host: &str) -> Result<()> {
        if self.wires.borrow_mut().remove(host).is_some() {
            ip(&format!("link del to-{host}"))?;
            ip(&format!("-n {host} link del eth0"))?;
            self.pair(host)?;
        }
        ip(&format!("link set to-{host} up"))?;
        let ends = [
            ("tc", format!("qdisc del dev to-{host} root")),
            ("tc", format!("-n {host} qdisc del dev eth0 root")),
        ];
        for (tool, words) in ends {
            // There is none to remove where it was not shaped.
            let _ = Command::new(tool).args(words.split(' ')).output();
        }
        Ok(())
    }

    /// Holds the link of a host to a rate, both ways.
    pub(super) fn slow(&self, host: &str, rate: &str) -> Result<()> {
        let shape = format!("root tbf rate {rate} burst 16kb latency 200ms");
        call("tc", &format!("qdisc add dev to-{host} {shape}").split(' ').collect::<Vec<_>>())?;
        call("tc", &format!("-n {host} qdisc add dev eth0 {shape}").split(' ').collect::<Vec<_>>())
    }

    /// Gives the link of a host delay and loss, both ways: by the kernel where it has netem, otherwise by a wire that this process
    /// carries. Which of them it was.
    pub(super) fn disturb(&self, host: &str, weather: Weather) -> Result<&'static str> {
        let (delay, lost) = (weather.delay.as_micros(), weather.lost as f64 / 10_000.0);
        let netem = format!("root netem delay {delay}us loss {lost}%");
        let mut tried = Command::new("tc");
        tried.args(format!("qdisc add dev to-{host} {netem}").split(' '));
        if tried.output()?.status.success() {
            call("tc", &format!("-n {host} qdisc add dev eth0 {netem}").split(' ').collect::<Vec<_>>())?;
            return Ok("netem");
        }
        ip(&format!("link del to-{host}"))?;
        let (here, there) = (format!("to-{host}"), format!("at-{host}"));
        let wire = Wire::lay([&here, &there], weather, self.number(host) as u64 + 1)?;
        ip(&format!("link set {there} netns {host} name eth0"))?;
        self.join(host)?;
        self.wires.borrow_mut().insert(host.into(), wire);
        Ok("a wire of our own")
    }

    /// Frames that the disturbed link of a host has lost.
    pub(super) fn lost(&self, host: &str) -> Result<u64> {
        if let Some(wire) = self.wires.borrow().get(host) {
            return Ok(wire.lost());
        }
        let told = Command::new("tc").args(["-s", "qdisc", "show", "dev", &format!("to-{host}")]).output()?;
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let dropped = told.split_once("dropped ").and_then(|(_, rest)| rest.split(',').next());
        Ok(dropped.unwrap_or_default().parse()?)
    }

    /// Kills every process of a host, which says no goodbye: its link is cut before.
    pub(super) fn kill(&self, host: &str) -> Result<()> {
        self.cut(host)?;
        let told = Command::new("ip").args(["netns", "pids", host]).output()?;
        let processes = String::from_utf8_lossy(&told.stdout).into_owned();
        if processes.trim().is_empty() {
            bail!("no process runs on '{host}'");
        }
        call("kill", &["-KILL"].into_iter().chain(processes.split_whitespace()).collect::<Vec<_>>())
    }

    /// Makes the disk of a host one of this many bytes, with what is on it.
    pub(super) fn shrink(&self, host: &str, bytes: u64) -> Result<()> {
        let folder = self.folder(host);
        let files: Vec<_> = fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).collect();
        let kept: Vec<(PathBuf, Vec<u8>)> = files
            .into_iter()
            .map(|path| fs::read(&path).map(|bytes| (path, bytes)))
            .collect::<Result<_, _>>()?;
        self.resize(host, bytes, "")?;
        kept.into_iter().try_for_each(|(path, bytes)| Ok(fs::write(path, bytes)?))
    }

    /// Gives the small disk of a host more room; nothing on it changes.
    pub(super) fn grow(&self, host: &str, bytes: u64) -> Result<()> {
        self.resize(host, bytes, "remount,")
    }

    fn resize(&self, host: &str, bytes: u64, how: &str) -> Result<()> {
        let folder = self.folder(host).display().to_string();
        call("mount", &["-t", "tmpfs", "-o", &format!("{how}size={bytes}"), "tmpfs", &folder])
    }

    /// Bytes of frames that a host has sent over its link.
    pub(super) fn sent(&self, host: &str) -> Result<u64> {
        let told = self.on(host, &["cat", "/sys/class/net/eth0/statistics/tx_bytes"]).output()?;
        Ok(String::from_utf8_lossy(&told.stdout).trim().parse()?)
    }
}

fn ip(words: &str) -> Result<()> {
    call("ip", &words.split(' ').collect::<Vec<_>>())
}

fn call(program: &str, words: &[&str]) -> Result<()> {
    let told =
        Command::new(program).args(words).output().with_context(|| format!("cannot start {program}"))?;
    if told.status.success() {
        return Ok(());
    }
    bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&told.stderr).trim())
}
