//! Two hosts on one machine: network namespaces joined by a pair of interfaces, each of which lets so many bits through.

use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// The addresses of both hosts are in it.
pub const NETWORK: &str = "10.217.77.0/24";

/// What all names of namespaces begin with; the number of the process that made them follows.
const PREFIX: &str = "planaria-links-";

/// The hosts; they are gone when this is dropped.
#[derive(Debug)]
pub struct Bed {
    names: [String; 2],
}

/// One of the hosts.
#[derive(Clone, Debug)]
pub struct Host {
    name: String,
    /// Where the others find it.
    pub address: String,
    /// The first is 0.
    pub number: usize,
}

impl Host {
    /// A command on this host.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Numbers of the processes on this host.
    pub fn processes(&self) -> Result<Vec<i32>> {
        let told = Command::new("ip").args(["netns", "pids", &self.name]).output()?;
        Ok(String::from_utf8_lossy(&told.stdout)
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect())
    }

    /// A command on this host, which has its own name there.
    pub fn named(&self, program: &str) -> Command {
        let mut command = self.command("unshare");
        let script = format!("hostname host{}; exec \"$0\" \"$@\"", self.number);
        command.args(["--uts", "sh", "-c", &script, program]);
        command
    }
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .output()
        .with_context(|| format!("`{line}` cannot be run; install iproute2"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            bail!("`{line}` failed, which needs root: {}", String::from_utf8_lossy(&output.stderr).trim())
        }
    }
}

impl Bed {
    /// Makes both hosts. What a process left that was killed is removed first.
    pub fn make(mbit: u64) -> Result<Bed> {
        let left = Command::new("ip")
            .args(["netns", "list"])
            .output()
            .context("`ip` is missing; install iproute2")?;
        for name in String::from_utf8_lossy(&left.stdout).lines().filter_map(|line| line.split(' ').next()) {
            let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if process.is_some_and(|process| !std::path::Path::new("/proc").join(process).exists()) {
                let _ = run(&format!("ip netns del {name}"));
            }
        }
        let process = std::process::id();
        let bed = Bed { names: ["0", "1"].map(|host| format!("{PREFIX}{process}-{host}")) };
        for name in &bed.names {
            run(&format!("ip netns add {name}"))?;
        }
        let [first, second] = &bed.names;
        run(&format!("ip link add eth0 netns {first} type veth peer name eth0 netns {second}"))?;
        for host in [0, 1].map(|number| bed.host(number)) {
            let Host { name, address, .. } = host;
            run(&format!("ip -n {name} addr add {address}/24 dev eth0"))?;
            run(&format!("ip -n {name} link set lo up"))?;
            run(&format!("ip -n {name} link set eth0 up"))?;
            run(&format!(
                "tc -n {name} qdisc add dev eth0 root tbf rate {mbit}mbit burst 256kb latency 20ms"
            ))?;
        }
        Ok(bed)
    }

    /// One of both.
    pub fn host(&self, number: usize) -> Host {
        let name = self.names[number].clone();
        Host { name, address: format!("10.217.77.{}", number + 1), number }
    }

    /// A program that takes a host's address and a line, as ssh does, and runs the line on that host.
    pub fn agent(&self) -> Result<PathBuf> {
        let path = self.script();
        let case = |number: usize| {
            let Host { name, address, .. } = self.host(number);
            format!(
                "{address}) exec ip netns exec {name} unshare --uts sh -c \"hostname host{number}; $*\";;\n"
            )
        };
        let text = format!("#!/bin/sh\nhost=$1; shift\ncase $host in\n{}{}esac\n", case(0), case(1));
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
        Ok(path)
    }

    fn script(&self) -> PathBuf {
        std::env::temp_dir().join(format!("{}-agent", self.names[1]))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&format!("ip netns del {name}"));
        }
        let _ = std::fs::remove_file(self.script());
    }
}
