//! What a record says about the machine: enough to compare figures, nothing that names a host.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The machine and the versions a run was made with.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model name, with family and model numbers.
    pub cpu: String,
    /// Instruction sets that matter for the kernels.
    pub features: Vec<String>,
    /// Logical CPUs.
    pub cores: usize,
    /// Memory in GiB.
    pub memory_gib: u64,
    /// Version of the operating system's kernel.
    pub kernel: String,
    /// Version of the compiler.
    pub rustc: String,
    /// Version of torch, if it ran.
    pub torch: Option<String>,
    /// Day of the run, UTC.
    pub date: String,
    /// How many threads wanted a processor in the minute before.
    pub load: String,
    /// Priority of this process, which its children inherit; 0 is the usual one.
    pub nice: i64,
}

impl Machine {
    /// This machine, with the torch of `python`.
    pub fn here(python: Option<&str>) -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name| cpu_field(&info, name).unwrap_or("unknown");
        let flags: Vec<&str> = field("flags").split(' ').collect();
        let interesting = ["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd"];
        let version = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: format!("{} (family {} model {})", field("model name"), field("cpu family"), field("model")),
            features: interesting.iter().filter(|f| flags.contains(f)).map(|f| (*f).to_owned()).collect(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_kib().unwrap_or(0) / (1 << 20),
            kernel: release.trim().split('-').next().unwrap_or_default().to_owned(),
            rustc: version("rustc", &["--version"]).unwrap_or_else(|| "unknown".into()),
            torch: python
                .and_then(|python| version(python, &["-c", "import torch; print(torch.__version__)"])),
            date: today(),
            load: fs::read_to_string("/proc/loadavg")
                .unwrap_or_default()
                .split(' ')
                .next()
                .unwrap_or("")
                .into(),
            nice: nice().unwrap_or(0),
        }
    }

    /// A name for the folder of a run: the day and the CPU.
    pub fn run_name(&self) -> String {
        let plain = self.cpu.replace("(R)", "").replace("(TM)", "").replace("Processor", "").to_lowercase();
        let words: Vec<_> =
            plain.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        format!("{}-{}", self.date, words.join("-"))
    }
}

/// The first value of a field of the CPU list.
fn cpu_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| {
        line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    info.lines().find_map(value)
}

fn memory_kib() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()
}

fn nice() -> Option<i64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Fields are counted behind the name, which may hold spaces.
    stat.rsplit(')').next()?.split_whitespace().nth(16)?.parse().ok()
}

fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a count of days since 1970, walking years and months.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(59), (1970, 3, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_772), (2026, 11, 15));
    }

    #[test]
    fn fields_of_the_cpu_list_are_read_whole() {
        let info = "model\t\t: 207\nmodel name\t: X 9\n\nmodel name\t: Y\n";
        assert_eq!((cpu_field(info, "model"), cpu_field(info, "model name")), (Some("207"), Some("X 9")));
    }

    #[test]
    fn run_names_are_plain() {
        let mut machine = Machine::here(None);
        machine.cpu = "Intel(R) Xeon(R) Processor (family 6 model 207)".into();
        machine.date = "2026-11-15".into();
        assert_eq!(machine.run_name(), "2026-11-15-intel-xeon-family-6-model-207");
    }
}
