//! The files of a result divided: over ranks, and over runs of which the first was killed.

use super::journal::{Journal, Part, parts};
use super::sums::Sums;
use super::{Conversion, Observer};
use crate::error::{Error, Result, Trouble};
use crate::formats::write::NewFile;
use crate::hosts::Hosts;
use crate::output::{OutputFolder, Prepared};
use crate::talk;
use planaria_comm::{Comm, CommExt};
use planaria_store::{Local, Sharing, Store, join};
use std::ops::Range;
use std::sync::Arc;

/// Ranges of files that are still to be written, by file.
pub(super) type Todo = Vec<Vec<Range<u64>>>;

/// Who works on a result, and what of it was done before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Division<'a> {
    /// Ranks that divide the files; none: this process alone.
    pub(super) world: Option<&'a dyn Comm>,
    /// The place of the result as the caller gave it; none: that of the files.
    pub(super) target: Option<&'a str>,
    /// Where finished parts are written down.
    pub(super) journal: Option<&'a Journal>,
    /// Files are cut into parts, which any rank may write; otherwise each is one rank's.
    pub(super) cuts: bool,
}

/// Ranks that write a result together.
#[derive(Clone, Copy, Debug)]
pub struct Ranks<'a> {
    /// All of them.
    pub world: &'a dyn Comm,
    /// Where they are.
    pub hosts: &'a Hosts,
}

impl Conversion<'_> {
    /// Writes everything to its place, where it appears whole or not at all; how many bytes were there already. Several ranks
    /// divide the files and their boxes, and every one calls this with the same conversion. Where `identity` is given, a
    /// process that is killed leaves what it finished to the next that comes with the same one: it must say everything that
    /// the bytes depend on. Collective.
    pub fn write_to(
        &self,
        folder: &OutputFolder,
        identity: Option<&str>,
        observer: &dyn Observer,
        ranks: Option<Ranks<'_>>,
    ) -> Result<u64> {
        self.write_then(folder, identity, observer, ranks, |_, _| Ok(()))
    }

    /// The same; before the result appears, the first rank adds what `then` writes into it. A local folder is that of the first rank's
    /// host, which serves it to ranks that do not have it. Collective.
    pub fn write_then<E: From<Error>>(
        &self,
        folder: &OutputFolder,
        identity: Option<&str>,
        observer: &dyn Observer,
        ranks: Option<Ranks<'_>>,
        then: impl FnOnce(&dyn Store, &str) -> Result<(), E>,
    ) -> Result<u64, E> {
        let world = ranks.map(|ranks| ranks.world);
        let mut prepared: Option<Prepared> = None;
        let target = folder.shown();
        let alone = Division { world, target: Some(&target), ..Division::default() };
        let path = alone.first(|| {
            let made =
                folder.prepare_as(identity).map_err(|error| self.without_room(error, Some(&target)))?;
            let made = prepared.insert(made);
            Ok(made.path().map(|path| path.display().to_string()))
        })?;
        let served = match (ranks, &path) {
            (Some(Ranks { world, hosts }), Some(path)) => Some(hosts.of_first(world, path.as_ref())?),
            _ => None,
        };
        let (store, at): (Arc<dyn Store>, &str) = match (&path, folder) {
            (Some(path), _) => {
                let own = || Arc::new(Local::new(path)) as Arc<dyn Store>;
                let store = served.as_ref().map_or_else(own, |served| served.folders.store.clone());
                (store, Prepared::RESULT)
            }
            (None, OutputFolder::Remote { store, .. }) => (store.clone(), ""),
            (None, OutputFolder::Local { path, .. }) => (Arc::new(Local::new(path)), ""),
        };
        let rank = world.map_or(0, Comm::rank);
        // All ranks cut alike, also those that note nothing. Objects are written by one process each.
        let cuts = path.is_some() && (world.is_some() || identity.is_some());
        let noted = identity.is_some() && served.as_ref().is_none_or(|served| served.seen);
        let journal = path.filter(|_| noted).map(|path| Journal::open(path.as_ref(), rank));
        let journal = journal.transpose()?;
        let division = Division { world, target: Some(&target), journal: journal.as_ref(), cuts };
        let done = self.run_divided(&*store, at, observer, &division);
        match (done, prepared) {
            (Ok(before), Some(prepared)) => {
                then(&*store, at)?;
                Ok(prepared.publish().map(|()| before)?)
            }
            (Err(error), Some(prepared)) => {
                // Ranks that lose each other are started again.
                if error.trouble() == Trouble::Ranks && identity.is_some() {
                    prepared.leave();
                }
                Err(error.into())
            }
            (done, None) => Ok(done?),
        }
    }
}

impl Division<'_> {
    /// This rank, and how many there are.
    pub(super) fn place(&self) -> (usize, usize) {
        self.world.map_or((0, 1), |world| (world.rank(), world.size()))
    }

    /// What the first rank does, and all hear of.
    pub(super) fn first<T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match self.world {
            None => work(),
            Some(world) => talk::from_first(world, work),
        }
    }

    /// What every other rank tells. Collective.
    pub(super) fn all_tell(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let Some(world) = self.world else { return Ok(Vec::new()) };
        let mut all = talk::all_gather(world, mine)?;
        all.remove(world.rank());
        Ok(all)
    }

    /// What this rank has to write, and how many bytes nobody has to.
    pub(super) fn todo(
        &self,
        (store, folder): (&dyn Store, &str),
        files: &[NewFile],
        sums: &[Sums],
        observer: &dyn Observer,
    ) -> Result<(Todo, u64)> {
        self.journal.into_iter().for_each(|journal| journal.begin(files));
        let kept = self.first(|| self.kept((store, folder), files, sums, observer))?;
        let is_kept = |file: usize, range: &Range<u64>| {
            kept.iter().any(|part| part.file == file && part.range == *range)
        };
        let all = files.iter().enumerate().flat_map(|(number, file)| {
            let whole = (!self.cuts).then_some(0..file.len);
            let cut = self.cuts.then(|| parts(file));
            whole.into_iter().chain(cut.into_iter().flatten()).map(move |range| (number, range))
        });
        let left: Vec<(usize, Range<u64>)> = all.filter(|(file, range)| !is_kept(*file, range)).collect();
        let total: u64 = left.iter().map(|(_, range)| range.end - range.start).sum();
        let (rank, size) = self.place();
        // One stretch for each rank, so that few tensors are looked at by two.
        let bound = |rank: usize| (u128::from(total) * rank as u128 / size as u128) as u64;
        let mut todo: Todo = vec![Vec::new(); files.len()];
        let mut at = 0;
        for (file, range) in left {
            if (bound(rank)..bound(rank + 1)).contains(&at) {
                match todo[file].last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => todo[file].push(range.clone()),
                }
            }
            at += range.end - range.start;
        }
        Ok((todo, kept.iter().map(|part| part.range.end - part.range.start).sum()))
    }

    /// Parts that an earlier run finished and that are still what they were.
    fn kept(
        &self,
        (store, folder): (&dyn Store, &str),
        files: &[NewFile],
        sums: &[Sums],
        observer: &dyn Observer,
    ) -> Result<Vec<Part>> {
        let found = self.journal.map_or(&[][..], |journal| &journal.found);
        let mut kept: Vec<Part> = Vec::new();
        if found.is_empty() {
            return Ok(kept);
        }
        for (number, file) in files.iter().enumerate() {
            let name = join(folder, &file.name);
            let Ok(reader) = store.reader(&name) else { continue };
            for range in parts(file) {
                let mut told = found.iter().filter(|part| part.file == number && part.range == range);
                let Some((part, bytes)) = told.find_map(|part| Some((part, part.again(&*reader)?))) else {
                    continue;
                };
                sums[number].add(range.start, &bytes);
                kept.push(part.clone());
                if !observer.moved(range.end - range.start) {
                    return Err(Error::Stopped);
                }
            }
            if kept.last().is_some_and(|part| part.file == number) {
                store.writer(&name, file.len, Sharing::Processes)?.finish()?;
            }
        }
        Ok(kept)
    }

    /// The sums of the blocks of all files, once all ranks have written what is theirs.
    pub(super) fn gathered(&self, written: Result<Vec<Sums>>) -> Result<Vec<Vec<u32>>> {
        let Some(world) = self.world else { return Ok(written?.into_iter().map(Sums::blocks).collect()) };
        let sums = talk::agree(world, written)?;
        let mine: Vec<Vec<(u64, u64, u32)>> = sums.iter().map(Sums::told).collect();
        for told in talk::all_gather(world, mine)? {
            sums.iter().zip(told).for_each(|(sums, told)| sums.hear(told));
        }
        Ok(sums.into_iter().map(Sums::blocks).collect())
    }
}
