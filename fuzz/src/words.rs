//! What each target of short texts does with its bytes: arguments, mappings, schedules, places of faults, tables, settings of buckets.

use planaria_cuda::{Archive, ArchiveWriter, Key};
use planaria_pipeline::{Action, Costs, Schedule, ScheduleKind, picture};
use planaria_train::config::{Compute, MeshSection};
use planaria_train::drill::Fault;
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// A value that is parsed is printed so that it can be parsed again.
fn comes_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    let value: T = text.parse().ok()?;
    assert_eq!(value.to_string().parse::<T>().expect("what is printed can be parsed"), value);
    Some(value)
}

/// The arguments of the command, one a line.
pub(crate) fn arguments(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<String> = std::iter::once("planaria").chain(text.lines()).map(str::to_string).collect();
    let _ = planaria_cli::check_arguments(&words);
}

/// A mapping as the command reads it: JSON, or statements.
pub(crate) fn mapping(bytes: &[u8]) {
    let _ = planaria_cli::check_mapping(&String::from_utf8_lossy(bytes));
}

/// A schedule of a pipeline, checked and simulated; and an action, a kind of schedule.
pub(crate) fn schedule(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    comes_back::<Action>(&text);
    comes_back::<ScheduleKind>(&text);
    let Some(schedule) = comes_back::<Schedule>(&text) else { return };
    let checked = schedule.validate();
    let simulated = schedule.simulate(&Costs::unit());
    if checked.is_ok() {
        let _ = picture(&simulated.expect("what holds can be simulated"), 1.0);
    }
}

/// Where a drill strikes, the mesh of a run, and what it computes on.
pub(crate) fn places(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    comes_back::<Fault>(&text);
    comes_back::<MeshSection>(&text);
    comes_back::<Compute>(&text);
}

/// A file of compiled kernels: what is found in it is found again when it is written.
pub(crate) fn kernels(bytes: &[u8]) {
    crate::with_files(&[("kernels.bin", bytes)], |folder| {
        let path = folder.join("kernels.bin");
        let Ok(archive) = Archive::read(&path) else { return };
        let mut writer = ArchiveWriter::default();
        let cubins = |archive: &Archive| -> Vec<(Key, Vec<u8>)> {
            archive.keys().filter_map(|key| Some((key, archive.get(key)?.to_vec()))).collect()
        };
        let found = cubins(&archive);
        // Entries may overlap, so many small ones can stand for much more than the file.
        if found.iter().map(|(_, cubin)| cubin.len()).sum::<usize>() > 1 << 20 {
            return;
        }
        found.iter().for_each(|(key, cubin)| writer.add(*key, cubin.clone()));
        std::fs::write(&path, writer.bytes()).expect("a file");
        assert_eq!(cubins(&Archive::read(&path).expect("what is written can be read")), found);
    });
}

/// A table of algorithms for products, line by line.
pub(crate) fn products(bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        let Ok(Some(again)) = planaria_cuda::tuned_line(line) else { continue };
        assert_eq!(planaria_cuda::tuned_line(&again).expect("what is written can be read"), Some(again));
    }
}

/// The files of `aws configure`, and a connection string of Azure, whose secrets no error shows.
pub(crate) fn bucket(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for section in ["default", "profile b", ""] {
        let _ = planaria_store::aws_section(&text, section);
    }
    let _ = planaria_store::azure_connection(&text);
}
