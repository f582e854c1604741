//! The rows of the table: what is measured, in which order, against what, and the bars.

use crate::busy::Beside;
use crate::meter::Sample;
use crate::ours::Cache;
use crate::peers::Case;
use crate::state::Cut;
use planaria_bench::stats::{median, spread};
use planaria_ckpt::convert::To;
use serde::Deserialize;

const SAVE_BAR: f64 = 1.15;
const LOAD_BAR: f64 = 1.15;
const RESHARD_BAR: f64 = 1.25;
const LOADED_BAR: f64 = 1.3;
const CONVERT_BAR: f64 = 1.3;

/// Rows that are compared with each other; they run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Group {
    Save,
    SaveLoaded,
    LoadCold,
    LoadWarm,
    LoadLoaded,
    Reshard,
    Convert,
}

impl Group {
    pub(crate) const ALL: [Group; 7] = [
        Group::Save,
        Group::SaveLoaded,
        Group::LoadCold,
        Group::LoadWarm,
        Group::LoadLoaded,
        Group::Reshard,
        Group::Convert,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Group::Save => "Durable save",
            Group::SaveLoaded => "Durable save beside busy processes",
            Group::LoadCold => "Load, cold cache",
            Group::LoadWarm => "Load, warm cache",
            Group::LoadLoaded => "Load, cold cache, beside busy processes",
            Group::Reshard => "Load into another layout, cold cache",
            Group::Convert => "Durable conversion, cold cache",
        }
    }

    /// The row with the limit that all others of the group are held against.
    fn limit(self) -> &'static str {
        match self {
            Group::Save | Group::SaveLoaded => "raw write",
            Group::LoadCold | Group::LoadLoaded | Group::Reshard => "raw read",
            Group::LoadWarm => "raw read, warm",
            Group::Convert => "raw read and write in turn",
        }
    }

    /// The group of the same work beside busy processes.
    fn loaded(self) -> Group {
        match self {
            Group::Save => Group::SaveLoaded,
            _ => Group::LoadLoaded,
        }
    }
}

/// What a row measures.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    RawWrite(Beside),
    RawRead(Beside),
    RawWarm,
    RawBoth,
    Save(usize, Beside),
    Load(&'static str, Cut, Cache, Beside),
    Convert(&'static str, &'static str, To),
    /// A case of the peers.
    Peer(String, Beside),
}

/// All about one contestant.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) group: Group,
    pub(crate) work: Work,
    /// The row it is compared with.
    pub(crate) against: Option<String>,
    /// The highest ratio it may have.
    pub(crate) bar: Option<f64>,
    /// With the number of the round.
    pub(crate) samples: Vec<(usize, Sample)>,
    /// It could not be measured; then it is not tried again.
    pub(crate) failed: bool,
}

impl Row {
    fn new(group: Group, name: &str, work: Work) -> Row {
        let against = (group.limit() != name).then(|| group.limit().to_string());
        Row { name: name.to_string(), group, work, against, bar: None, samples: Vec::new(), failed: false }
    }

    fn at_most(self, bar: f64) -> Row {
        Row { bar: Some(bar), ..self }
    }

    /// The same work beside busy processes, against itself without them.
    fn loaded(&self, beside: Beside) -> Row {
        let work = match self.work.clone() {
            Work::RawWrite(_) => Work::RawWrite(beside),
            Work::RawRead(_) => Work::RawRead(beside),
            Work::Save(ranks, _) => Work::Save(ranks, beside),
            Work::Load(name, cut, cache, _) => Work::Load(name, cut, cache, beside),
            Work::Peer(case, _) => Work::Peer(case, beside),
            work @ (Work::RawWarm | Work::RawBoth | Work::Convert(..)) => work,
        };
        let row = Row::new(self.group.loaded(), &format!("{}, loaded", self.name), work);
        Row { against: Some(self.name.clone()), ..row }
    }

    pub(crate) fn is_raw(&self) -> bool {
        matches!(self.work, Work::RawWrite(_) | Work::RawRead(_) | Work::RawWarm | Work::RawBoth)
    }

    pub(crate) fn is_peer(&self) -> bool {
        matches!(self.work, Work::Peer(..))
    }

    /// Whether it is measured in this round. What takes peers longest is measured in every second one.
    pub(crate) fn takes_part(&self, round: usize) -> bool {
        let long = matches!(self.group, Group::SaveLoaded | Group::LoadLoaded | Group::Convert);
        !self.failed && (round.is_multiple_of(2) || !(long && self.is_peer()))
    }

    pub(crate) fn median(&self, pick: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(|(_, sample)| pick(sample)))
    }

    pub(crate) fn seconds(&self) -> Option<f64> {
        self.median(|sample| Some(sample.seconds))
    }

    /// The ratios of samples to those of `other` in the same rounds: the middle, the smallest and the largest one.
    pub(crate) fn ratio(&self, other: &Row) -> Option<(f64, f64, f64)> {
        let ratio = |(round, sample): &(usize, Sample)| {
            let (_, other) = other.samples.iter().find(|(at, _)| at == round)?;
            Some(sample.seconds / other.seconds)
        };
        let ratios: Vec<f64> = self.samples.iter().filter_map(ratio).collect();
        let (least, most) = spread(ratios.iter().copied())?;
        Some((median(ratios)?, least, most))
    }
}

/// The rows of the disk itself and of ours.
fn own(busy: Beside) -> Vec<Row> {
    let idle = Beside::Nothing;
    let save = |name, ranks| Row::new(Group::Save, name, Work::Save(ranks, idle)).at_most(SAVE_BAR);
    let load = |group, name, from, cut, cache| Row::new(group, name, Work::Load(from, cut, cache, idle));
    let cold = |name, from, cut| load(Group::LoadCold, name, from, cut, Cache::Cold).at_most(LOAD_BAR);
    let warm = |name, from, cut| load(Group::LoadWarm, name, from, cut, Cache::Warm);
    let other = |name, from, cut| load(Group::Reshard, name, from, cut, Cache::Cold).at_most(RESHARD_BAR);
    let convert = |name, from, into, to| {
        Row::new(Group::Convert, name, Work::Convert(from, into, to)).at_most(CONVERT_BAR)
    };
    let raw_write = Row::new(Group::Save, "raw write", Work::RawWrite(idle));
    let raw_read = Row::new(Group::LoadCold, "raw read", Work::RawRead(idle));
    let saves = [save("save, 1 rank", 1), save("save, 2 ranks", 2), save("save, 4 ranks", 4)];
    let loads = [
        cold("load cold, 1 rank", "ours-1", Cut::Rows(1)),
        cold("load cold, 2 ranks", "ours-2", Cut::Rows(2)),
        cold("load cold, 4 ranks", "ours-4", Cut::Rows(4)),
    ];
    let mut rows = vec![
        raw_write.loaded(busy),
        saves[0].loaded(busy).at_most(LOADED_BAR),
        saves[2].loaded(busy).at_most(LOADED_BAR),
        raw_read.loaded(busy),
        loads[0].loaded(busy),
        loads[2].loaded(busy),
        Row::new(Group::LoadWarm, "raw read, warm", Work::RawWarm),
        warm("load warm, 1 rank", "ours-1", Cut::Rows(1)),
        warm("load warm, 2 ranks", "ours-2", Cut::Rows(2)),
        warm("load warm, 4 ranks", "ours-4", Cut::Rows(4)),
        other("reshard 4 -> 2", "ours-4", Cut::Rows(2)),
        other("reshard 2 -> 3", "ours-2", Cut::Rows(3)),
        other("reshard 4 rows -> 2 columns", "ours-4", Cut::Columns(2)),
        Row::new(Group::Convert, "raw read and write in turn", Work::RawBoth),
        convert("convert to DCP", "ours-1", "dcp", To::TorchDcp),
        convert("convert DCP to Hugging Face", "dcp", "hf", To::HuggingFace),
    ];
    rows.extend([raw_write, raw_read].into_iter().chain(saves).chain(loads));
    rows
}

/// All rows in the order of their groups, and in each group the disk, ours, the peers.
pub(crate) fn all(cases: &[Case], busy: Beside) -> Vec<Row> {
    let mut rows = own(busy);
    for case in cases {
        let row = Row::new(case.group, &case.name, Work::Peer(case.name.clone(), Beside::Nothing));
        if case.loaded {
            rows.push(row.loaded(busy));
        }
        rows.push(row);
    }
    let group = |row: &Row| Group::ALL.iter().position(|group| *group == row.group);
    rows.sort_by_key(|row| (group(row), row.is_peer(), !row.is_raw()));
    rows
}

/// Keeps rows whose name holds one of `parts`, and those they are held against; all when there are no parts.
pub(crate) fn choose(rows: Vec<Row>, parts: &[String]) -> Vec<Row> {
    let named = |row: &Row| parts.is_empty() || parts.iter().any(|part| row.name.contains(part.as_str()));
    let mut wanted: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| named(row)) {
        let mut next = Some(row);
        while let Some(row) = next {
            wanted.push(row.name.clone());
            next = row.against.as_ref().and_then(|name| rows.iter().find(|row| row.name == *name));
        }
    }
    rows.into_iter().filter(|row| wanted.contains(&row.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases() -> Vec<Case> {
        vec![
            Case { name: "X save".into(), group: Group::Save, loaded: true },
            Case { name: "X load".into(), group: Group::LoadCold, loaded: false },
        ]
    }

    #[test]
    fn every_row_but_the_raw_ones_is_held_against_another() {
        let rows = all(&cases(), Beside::Busy(1));
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        for row in &rows {
            match &row.against {
                Some(against) => assert!(names.contains(&against.as_str()), "{}: {against}", row.name),
                None => assert!(row.is_raw(), "{}", row.name),
            }
            assert!(!(row.is_peer() && row.bar.is_some()), "{} has a bar", row.name);
        }
        assert_eq!(rows.iter().filter(|row| row.name == "X save, loaded").count(), 1);
    }

    #[test]
    fn ratios_are_of_the_same_rounds() {
        let mut rows = choose(all(&cases(), Beside::Busy(1)), &["X save, loaded".to_string()]);
        let taken = |row: &Row| (0..4).filter(|round| row.takes_part(*round)).collect::<Vec<_>>();
        assert_eq!((taken(&rows[1]), taken(&rows[2])), (vec![0, 1, 2, 3], vec![0, 2]));
        let sample = |seconds| Sample { seconds, ..Sample::default() };
        rows[1].samples = vec![(0, sample(1.0)), (1, sample(9.0)), (2, sample(2.0))];
        rows[2].samples = vec![(0, sample(2.0)), (2, sample(8.0))];
        assert_eq!(rows[2].ratio(&rows[1]), Some((3.0, 2.0, 4.0)));
    }

    #[test]
    fn a_chosen_row_brings_what_it_is_held_against() {
        let rows = choose(all(&cases(), Beside::Busy(1)), &["X save, loaded".to_string()]);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["raw write", "X save", "X save, loaded"]);
    }
}
