//! What one rank of many would do in a save or a load, without doing it: no array, no other rank, no storage.

use crate::catalog::Catalog;
use crate::error::Result;
use crate::files::FileMap;
use crate::known::Known;
use crate::load;
use crate::naming::{self, Files};
use crate::options::{LoadOptions, SaveOptions};
use crate::outgoing;
use crate::schedule::{Division, Here, Schedule};
use crate::traffic::Traffic;
use crate::union::{Together, Union};
use std::collections::BTreeMap;

/// One rank's part of a save or a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outline {
    /// Files of tensors, over all ranks.
    pub files: usize,
    /// Bytes of all files.
    pub total: u64,
    /// Parts of files that this rank reads or writes.
    pub units: usize,
    /// Bytes of them.
    pub moved: u64,
    /// Boxes that it copies, sends or receives.
    pub boxes: usize,
    /// Bytes that it sends to other ranks.
    pub sent: u64,
    /// Bytes that it receives from them.
    pub received: u64,
}

impl Outline {
    /// What `rank` of `ranks` would do to save a state that all know.
    pub fn of_save(known: &Known, options: &SaveOptions, rank: usize, ranks: usize) -> Result<Outline> {
        let SavedFiles { tensors, files } = SavedFiles::of(known, options)?;
        let held = tensors.into_iter().map(|tensor| tensor.held).collect();
        Ok(Outline::of(&Schedule::save(files.map(), held, Division::Units, Here { rank, ranks })))
    }

    /// What `rank` of `ranks` would do to load, as `wanted`, what was saved.
    pub fn of_load(
        saved: &SavedFiles,
        wanted: (&Known, &LoadOptions),
        rank: usize,
        ranks: usize,
    ) -> Result<Outline> {
        let catalog = Catalog::of_saved(&saved.tensors, &saved.files);
        let readers = load::known_readers(&catalog, wanted.0, wanted.1)?;
        Ok(Outline::of(&load::plan(&catalog, readers, Here { rank, ranks })))
    }

    /// Goes through everything that would be copied or sent.
    fn of(schedule: &Schedule) -> Outline {
        let (files, total) = (schedule.files.sizes.len(), schedule.files.sizes.iter().sum());
        let mut outline = Outline { files, total, ..Outline::default() };
        for (number, unit) in schedule.units.iter().enumerate().filter(|(n, _)| schedule.is_mine(*n)) {
            outline.units += 1;
            outline.moved += unit.runs.iter().map(|run| run.end - run.start).sum::<u64>();
            if !schedule.units[number].shared {
                unit.runs.iter().for_each(|run| schedule.legs_in(unit, run, &mut |_| outline.boxes += 1));
            }
        }
        for round in &schedule.rounds {
            let traffic = Traffic::of(schedule, round);
            outline.boxes +=
                traffic.own.iter().map(|job| job.legs.len()).sum::<usize>() + traffic.others.len();
            outline.sent += traffic.sent as u64;
            outline.received += traffic.received as u64;
        }
        outline
    }
}

/// The tensors of a save and their places in files: what a load reads in the manifest.
#[derive(Debug)]
pub struct SavedFiles {
    tensors: Vec<Together>,
    files: Files,
}

impl SavedFiles {
    /// What a save of a state that all know would write.
    pub fn of(known: &Known, options: &SaveOptions) -> Result<SavedFiles> {
        let mut union = Union::new(known.together(), BTreeMap::new(), &BTreeMap::new())?;
        let derive = outgoing::select(&mut union.tensors, options)?;
        let files = naming::whole(&union.tensors, options, derive)?;
        Ok(SavedFiles { tensors: union.tensors, files })
    }
}

impl Files {
    /// Where the bytes of the tensors lie.
    pub(crate) fn map(&self) -> FileMap {
        let sizes = self.files.iter().map(|file| file.layout.file_len()).collect();
        FileMap::new(sizes, self.tiles.clone())
    }
}
