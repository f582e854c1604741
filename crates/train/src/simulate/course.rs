//! The course of a run as discrete events: steps, saves that are due, writes that end, failures. When a snapshot is due, where it goes, whether
//! training waits for it and what a restart takes is asked of the trainer's own rules.

use super::costs::RecoveryCost;
use super::failures::{Failure, Failures, Stream};
use crate::config::TierKind;
use crate::trainer::line::{Held, Waiting};
use crate::trainer::place::{OWN, Pace, Place, newest, quick_first};
use planaria_ckpt::Retain;
use std::ops::Deref;

/// A place with its times for the whole state.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) place: Place,
    pub(super) save: f64,
    pub(super) load: f64,
    pub(super) drag: f64,
}

impl Deref for Priced {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Priced {
    /// Whether what is there is gone with a machine.
    fn is_lost_with_a_machine(&self) -> bool {
        matches!(self.kind, Some(TierKind::Memory | TierKind::Local))
    }
}

/// What a course is made from.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Seconds of a step beside which nothing is saved.
    pub(super) step: f64,
    pub(super) places: Vec<Priced>,
    pub(super) pace: Pace,
    pub(super) recovery: RecoveryCost,
    /// The run's last step.
    pub(super) last: u64,
    /// Whether the last step is saved.
    pub(super) final_save: bool,
    /// When to stop looking.
    pub(super) end: f64,
}

/// What happens in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Training,
    Again,
    Waiting,
    Recovering,
    Saving(usize),
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    pub(super) doing: Doing,
    pub(super) start: f64,
    pub(super) end: f64,
}

/// What became of a run. Work, saves, repetition and recovery make up all of its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) seconds: f64,
    /// Steps whose results are there at the end.
    pub(super) steps: u64,
    /// Steps done, those done again included.
    pub(super) executed: u64,
    pub(super) failures: u64,
    pub(super) machines: u64,
    pub(super) dropped: u64,
    /// Committed, by place.
    pub(super) saved: Vec<u64>,
    /// Seconds of work whose results are there at the end.
    pub(super) work: f64,
    /// Seconds that saves took from training.
    pub(super) saves: f64,
    /// Seconds of work that was lost.
    pub(super) again: f64,
    /// Seconds from failures to the first step after.
    pub(super) recovery: f64,
    pub(super) stretches: Vec<Stretch>,
    /// More happens than was looked at.
    pub(super) is_cut_off: bool,
}

impl Told {
    /// Part of the time that was work which counts.
    pub(super) fn goodput(&self) -> f64 {
        if self.seconds > 0.0 { self.work / self.seconds } else { 1.0 }
    }
}

/// What ended a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Done,
    Wrote,
    Failed,
    Ended,
}

/// How training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    /// From an older step.
    Back,
    Over,
}

/// A committed state: its step, and the work that led to it.
#[derive(Clone, Copy, Debug)]
struct Mark {
    step: u64,
    work: f64,
}

/// A snapshot on its way to some places, the one that is written now first.
#[derive(Debug)]
struct Writing {
    mark: Mark,
    to: Vec<usize>,
    began: f64,
    ends: f64,
}

pub(super) struct Course<'a> {
    setup: &'a Setup,
    failures: Stream<'a>,
    next: Failure,
    now: f64,
    step: u64,
    /// Seconds of work into the step under way.
    into: f64,
    /// The furthest step there was.
    furthest: u64,
    waiting: Waiting<f64>,
    writing: Option<Writing>,
    committed: Vec<Option<Mark>>,
    traced: bool,
    events: u64,
    told: Told,
}

/// A course ends after so many saves, failures and stretches of work: some seconds of ours.
const MOST_EVENTS: u64 = 10_000_000;
/// A picture shows no more than these.
pub(super) const MOST_STRETCHES: usize = 1 << 18;

impl<'a> Course<'a> {
    pub(super) fn new(setup: &'a Setup, failures: &'a Failures, seed: u64) -> Course<'a> {
        let mut failures = failures.stream(seed);
        Course {
            next: failures.next(),
            failures,
            now: 0.0,
            step: 0,
            into: 0.0,
            furthest: 0,
            waiting: Waiting::default(),
            writing: None,
            committed: vec![None; setup.places.len()],
            traced: false,
            events: 0,
            told: Told { saved: vec![0; setup.places.len()], ..Told::default() },
            setup,
        }
    }

    /// Keeps every stretch of time.
    pub(super) fn traced(self) -> Course<'a> {
        Course { traced: true, ..self }
    }

    /// To the end, or to the last event.
    pub(super) fn run(mut self) -> Told {
        while self.events < MOST_EVENTS && self.go_on() != Flow::Over {}
        self.told.is_cut_off = self.events >= MOST_EVENTS;
        self.told.seconds = self.now;
        self.told.steps = self.step;
        self.told
    }

    /// To the next step at which something is due, and through it.
    fn go_on(&mut self) -> Flow {
        if self.step >= self.setup.last {
            return self.finish();
        }
        let target = self.target();
        let flow = self.train_to(target);
        if flow != Flow::On || self.step >= self.setup.last {
            return flow;
        }
        let due: Vec<usize> = (0..self.setup.places.len())
            .filter(|&place| self.setup.places[place].is_due(self.step))
            .collect();
        if due.is_empty() { Flow::On } else { self.save(&due) }
    }

    /// The next step at which a snapshot is due, or the run is where it was before, or at its end.
    fn target(&self) -> u64 {
        let next = |place: &Priced| match place.every {
            0 => u64::MAX,
            every => (self.step / every + 1).saturating_mul(every),
        };
        let due = self.setup.places.iter().map(next).min().unwrap_or(u64::MAX);
        let before = if self.furthest > self.step { self.furthest } else { u64::MAX };
        due.min(before).min(self.setup.last)
    }

    fn train_to(&mut self, target: u64) -> Flow {
        loop {
            let before = self.told.work;
            let left = (target - self.step) as f64 * self.setup.step - self.into;
            let came = self.pass(Some(left.max(0.0)));
            if came == Came::Done {
                self.told.executed += target - self.step;
                (self.step, self.into) = (target, 0.0);
                self.furthest = self.furthest.max(target);
                return Flow::On;
            }
            self.into += self.told.work - before;
            // The step at the target is done when its work is, not when a sum of fractions says so.
            let whole = ((self.into / self.setup.step) as u64).min(target - self.step - 1);
            self.step += whole;
            self.into -= whole as f64 * self.setup.step;
            self.told.executed += whole;
            self.furthest = self.furthest.max(self.step);
            match came {
                Came::Failed => return self.fail(),
                Came::Ended => return Flow::Over,
                _ => self.wrote(),
            }
        }
    }

    /// Lets time pass until something happens; training has so much work to do at its full speed, or stands.
    fn pass(&mut self, work: Option<f64>) -> Came {
        self.events += 1;
        let drag =
            self.writing.as_ref().and_then(|w| w.to.first()).map_or(0.0, |&to| self.setup.places[to].drag);
        let rate = if work.is_some() { 1.0 / (1.0 + drag) } else { 0.0 };
        let done = work.map_or(f64::INFINITY, |work| self.now + work / rate);
        let wrote = self.writing.as_ref().map_or(f64::INFINITY, |writing| writing.ends);
        let ends = [
            (Came::Done, done),
            (Came::Wrote, wrote),
            (Came::Failed, self.next.time),
            (Came::Ended, self.setup.end),
        ];
        let mut first = ends[0];
        for end in ends {
            if end.1 < first.1 {
                first = end;
            }
        }
        let (came, until) = first;
        let doing = match (work, self.step < self.furthest) {
            (None, _) => Doing::Waiting,
            (Some(_), true) => Doing::Again,
            (Some(_), false) => Doing::Training,
        };
        let passed = (until - self.now).max(0.0);
        self.told.work += passed * rate;
        self.told.saves += passed * (1.0 - rate);
        self.move_to(until, doing);
        came
    }

    fn move_to(&mut self, until: f64, doing: Doing) {
        self.trace(doing, self.now, until);
        self.now = until.max(self.now);
    }

    fn trace(&mut self, doing: Doing, start: f64, end: f64) {
        if self.traced && end > start && self.told.stretches.len() < MOST_STRETCHES {
            self.told.stretches.push(Stretch { doing, start, end });
        }
    }

    /// A snapshot for some places, as the trainer's saves do it.
    fn save(&mut self, to: &[usize]) -> Flow {
        if self.setup.pace != Pace::Drop {
            let flow = self.settle();
            if flow != Flow::On {
                return flow;
            }
        }
        let to = to.iter().map(|&place| (place, Retain::default())).collect();
        let dropped = self.waiting.post(Held { step: self.step, to, what: self.told.work });
        self.told.dropped += u64::from(dropped.is_some());
        self.write_next();
        if self.setup.pace == Pace::Stand { self.settle() } else { Flow::On }
    }

    /// Waits until nothing is written.
    fn settle(&mut self) -> Flow {
        while self.writing.is_some() {
            match self.pass(None) {
                Came::Failed => return self.fail(),
                Came::Ended => return Flow::Over,
                _ => self.wrote(),
            }
        }
        Flow::On
    }

    /// Begins to write the newest snapshot that waits, if nothing is written now.
    fn write_next(&mut self) {
        let Some([_, newest]) = self.waiting.ends().filter(|_| self.writing.is_none()) else { return };
        self.told.dropped += self.waiting.drop_before(newest).len() as u64;
        let Some(Held { step, to, what: work }) = self.waiting.pop() else { return };
        let to = quick_first(&self.setup.places, to.keys());
        let Some(&first) = to.first() else { return };
        let ends = self.now + self.setup.places[first].save;
        self.writing = Some(Writing { mark: Mark { step, work }, to, began: self.now, ends });
    }

    /// What was written is committed.
    fn wrote(&mut self) {
        let Some(mut writing) = self.writing.take() else { return };
        if writing.to.is_empty() {
            return;
        }
        let place = writing.to.remove(0);
        self.committed[place] = Some(writing.mark);
        self.told.saved[place] += 1;
        self.trace(Doing::Saving(place), writing.began, writing.ends);
        match writing.to.first() {
            Some(&next) => {
                let (began, ends) = (self.now, self.now + self.setup.places[next].save);
                self.writing = Some(Writing { began, ends, ..writing });
            }
            None => self.write_next(),
        }
    }

    /// Everything since the newest state that is left is lost; failures may come while the run recovers.
    fn fail(&mut self) -> Flow {
        loop {
            let Failure { machine, .. } = self.next;
            self.next = self.failures.next();
            self.told.failures += 1;
            self.told.machines += u64::from(machine);
            if let Some(Writing { to, began, .. }) = self.writing.take()
                && let Some(&place) = to.first()
            {
                self.trace(Doing::Saving(place), began, self.now);
            }
            self.waiting = Waiting::default();
            let setup = self.setup;
            let places = &setup.places;
            for (place, kept) in places.iter().zip(&mut self.committed) {
                kept.take_if(|_| machine && place.is_lost_with_a_machine());
            }
            let found = newest(places, &|place| self.committed[place].map(|mark| mark.step));
            let mark =
                found.and_then(|(place, _)| self.committed[place]).unwrap_or(Mark { step: 0, work: 0.0 });
            let load = found.map_or(0.0, |(place, _)| places[place].load);
            self.told.again += self.told.work - mark.work;
            self.told.work = mark.work;
            (self.step, self.into) = (mark.step, 0.0);
            let RecoveryCost { detect, restart, .. } = self.setup.recovery;
            let ready = self.now + detect + restart + load;
            let until = ready.min(self.next.time).min(self.setup.end).max(self.now);
            self.told.recovery += until - self.now;
            self.move_to(until, Doing::Recovering);
            if until >= self.setup.end {
                return Flow::Over;
            }
            if until < ready {
                continue;
            }
            return Flow::Back;
        }
    }

    /// The last save.
    fn finish(&mut self) -> Flow {
        let flow = self.settle();
        let saved = self.committed[OWN].is_some_and(|mark| mark.step == self.step);
        if flow != Flow::On || saved || !self.setup.final_save {
            return if flow == Flow::Back { Flow::Back } else { Flow::Over };
        }
        match self.save(&[OWN]) {
            Flow::On => match self.settle() {
                Flow::Back => Flow::Back,
                _ => Flow::Over,
            },
            other => other,
        }
    }
}
