//! A group of ranks: the numbered list of its collectives, and its messages.

use super::mail::Mail;
use super::op::{Op, Post, Progress};
use super::world::World;
use crate::error::Result;
use crate::sync::{Mutex, lock};
use planaria_layout::Rank;
use std::collections::VecDeque;
use std::sync::Arc;

/// What the members of a group share.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) world: Arc<World>,
    pub(super) ranks: Vec<Rank>,
    ops: Mutex<Ops>,
    pub(super) mail: Mail,
}

#[derive(Debug)]
struct Ops {
    /// Number of the next collective of each position.
    next: Vec<u64>,
    /// Collectives that are not known to be finished, the oldest first.
    open: VecDeque<Arc<Op>>,
    /// Number of the first open one.
    first: u64,
}

impl Group {
    pub(super) fn new(world: Arc<World>, ranks: Vec<Rank>) -> Arc<Group> {
        let ops = Ops { next: vec![0; ranks.len()], open: VecDeque::new(), first: 0 };
        let mail = Mail::default();
        let group = Arc::new(Group { world: world.clone(), ranks, ops: Mutex::new(ops), mail });
        world.register(&group);
        group
    }

    /// The group of a list of ranks, which all who ask for that list share.
    pub(super) fn named(world: &Arc<World>, ranks: &[Rank]) -> Arc<Group> {
        // Registering a group takes another lock, so it is made first and dropped when someone was faster.
        world.known(ranks).unwrap_or_else(|| world.name(Group::new(world.clone(), ranks.to_vec())))
    }

    /// Adds one rank's part to the collective it has come to.
    pub(super) fn post(self: &Arc<Self>, position: usize, post: Box<Post>) -> Result<(Arc<Op>, Progress)> {
        self.world.live()?;
        let op = self.next_op(position, post.signature.name());
        match op.post(position, post, self) {
            Ok(progress) => Ok((op, progress)),
            Err(error) => {
                self.world.fail(error.clone());
                Err(error)
            }
        }
    }

    fn next_op(&self, position: usize, name: &'static str) -> Arc<Op> {
        let mut ops = lock(&self.ops);
        while ops.open.front().is_some_and(|op| op.is_done()) {
            ops.open.pop_front();
            ops.first += 1;
        }
        let sequence = ops.next[position];
        ops.next[position] += 1;
        // A finished collective was posted to by everyone, so this one cannot lie before the first open one.
        let at = (sequence - ops.first) as usize;
        while ops.open.len() <= at {
            let number = ops.first + ops.open.len() as u64;
            ops.open.push_back(Arc::new(Op::new(name, number, self.ranks.len())));
        }
        ops.open[at].clone()
    }

    /// Makes everyone who waits here look again.
    pub(super) fn wake(&self) {
        let open: Vec<_> = lock(&self.ops).open.iter().cloned().collect();
        open.iter().for_each(|op| op.wake());
        self.mail.wake();
    }
}
