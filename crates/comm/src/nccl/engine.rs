//! The communicator of a rank with a GPU: what goes over NCCL, and what over the engine below.

use super::moves::{Ready, to_oneself};
use super::rail::Rail;
use super::shared::{Shared, lock};
use super::{Alone, Options};
use crate::alone::{self, accept, check_group, check_groups, describe};
use crate::call::{Call, Recv, Send};
use crate::comm::{Comm, CommExt, Pending, Wait};
use crate::error::{Error, Result};
use crate::held::Held;
use planaria_array::{Array, Device};
use planaria_cuda::Context;
use planaria_layout::Rank;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

/// One rank's place in a group.
pub(super) struct NcclComm {
    host: Arc<dyn Comm>,
    rail: Arc<Rail>,
    mail: Arc<Mutex<Mail>>,
    world: Arc<World>,
}

/// What the groups of a rank have, and those that are known by their list of ranks.
struct World {
    shared: Arc<Shared>,
    named: Mutex<HashMap<Vec<Rank>, Named>>,
}

impl Drop for World {
    fn drop(&mut self) {
        lock(&self.named).clear();
        self.shared.join();
    }
}

/// A group's way through NCCL, and its messages of a rank to itself.
type Named = (Arc<Rail>, Arc<Mutex<Mail>>);

/// Messages of a rank to itself, by tag: the n-th receive gets the n-th.
type Mail = HashMap<u32, Line>;

#[derive(Debug, Default)]
struct Line {
    sent: u64,
    awaited: u64,
    letters: HashMap<u64, (Array, String)>,
}

impl fmt::Debug for NcclComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rail.fmt(f)
    }
}

impl NcclComm {
    /// Over all ranks of the engine below. Collective.
    pub(super) fn world(host: Arc<dyn Comm>, context: Arc<Context>, options: &Options) -> Result<NcclComm> {
        let shared = Shared::new(host.clone(), context, options)?;
        let rail = Rail::new(&shared, 1, host.ranks(), host.rank());
        let world = Arc::new(World { shared, named: Mutex::default() });
        Ok(NcclComm { host, rail, mail: Arc::default(), world })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.world.shared
    }

    fn send_to_oneself(&self, call: Send) -> Result<Pending> {
        let what = describe(&call.data);
        let Held::Device(held) = Held::of(&call.data)? else {
            return Err(Error::argument("send", "an array of the host does not go over NCCL"));
        };
        let mut mail = lock(&self.mail);
        let line = mail.entry(call.tag).or_default();
        line.letters.insert(line.sent, (held, what));
        line.sent += 1;
        Ok(Pending::done())
    }

    fn receive_from_oneself(&self, call: Recv) -> Pending {
        let mut mail = lock(&self.mail);
        let line = mail.entry(call.tag).or_default();
        line.awaited += 1;
        let (rail, mail) = (self.rail.clone(), self.mail.clone());
        Pending::new(Receive { rail, mail, number: line.awaited - 1, call })
    }
}

impl Comm for NcclComm {
    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.host.ranks()
    }

    fn start(&self, call: Call) -> Result<Pending> {
        let (rank, size) = (self.rank(), self.size());
        call.check(rank, size)?;
        let device = call.device();
        if device == Device::Cpu {
            return self.host.start(call);
        }
        let own = Device::Cuda(self.shared().context.ordinal());
        if device != own {
            let what = format!("an array is on {device}, but this rank communicates from {own}");
            return Err(Error::argument(call.name(), what));
        }
        self.shared().live()?;
        match call {
            Call::Send(call) if call.to == rank => self.send_to_oneself(call),
            Call::Recv(call) if call.from == rank => Ok(self.receive_from_oneself(call)),
            call @ (Call::Send(_) | Call::Recv(_)) => self.host.start(call),
            call if size == 1 && self.shared().options.alone == Alone::Copy => {
                alone::copy(call).map(|()| Pending::done())
            }
            call => {
                let name = call.name();
                let Some(ready) = Ready::new(call, rank)? else { return Ok(Pending::done()) };
                self.rail.add(name, move |hands| ready.queue(hands)).map(Pending::new)
            }
        }
    }

    fn run(&self, call: Call) -> Result<()> {
        self.start(call)?.wait()
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        check_groups(groups, self.ranks())?;
        let made = self.host.split(groups)?;
        let number = self.rail.next_split();
        let Some(host) = made else { return Ok(None) };
        let index = groups.iter().position(|group| group == host.ranks());
        // No two groups come from the same entry of the same split of the same parent, so ids differ.
        let mut id = DefaultHasher::new();
        (self.rail.id, number, index).hash(&mut id);
        let rail = Rail::new(self.shared(), id.finish(), host.ranks(), host.rank());
        Ok(Some(Arc::new(NcclComm { host, rail, mail: Arc::default(), world: self.world.clone() })))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        check_group(ranks, self.ranks(), self.rank())?;
        let host = self.host.group(ranks)?;
        let mut named = lock(&self.world.named);
        let (rail, mail) = named.entry(ranks.to_vec()).or_insert_with(|| {
            // Every member hashes the same list; ids of splits begin with a number instead of a name.
            let mut id = DefaultHasher::new();
            ("group", ranks).hash(&mut id);
            (Rail::new(self.shared(), id.finish(), ranks, host.rank()), Arc::default())
        });
        let (rail, mail) = (rail.clone(), mail.clone());
        Ok(Arc::new(NcclComm { host, rail, mail, world: self.world.clone() }))
    }

    fn barrier(&self) -> Result<()> {
        self.host.barrier()
    }

    fn abort(&self, reason: &str) {
        let rank = self.world_rank();
        self.shared().fail(Error::Aborted { rank, reason: reason.into() });
    }
}

/// A started receive of a rank from itself.
struct Receive {
    rail: Arc<Rail>,
    mail: Arc<Mutex<Mail>>,
    number: u64,
    call: Recv,
}

impl fmt::Debug for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a receive of a rank from itself")
    }
}

impl Wait for Receive {
    fn wait(self: Box<Self>) -> Result<()> {
        let Recv { data, from, tag } = &self.call;
        let rank = self.rail.ranks[*from];
        let letter = lock(&self.mail).get_mut(tag).and_then(|line| line.letters.remove(&self.number));
        let Some((sent, found)) = letter else {
            let what = format!("rank {rank} waits for a message to itself, tag {tag}, that it never sent");
            return Err(Error::argument("recv", what));
        };
        accept(data, found, rank, *tag)?;
        if data.numel() == 0 {
            return Ok(());
        }
        let data = data.clone();
        let queued = self.rail.add("recv", move |hands| to_oneself(hands, &sent, &data))?;
        Pending::new(queued).wait()
    }

    fn is_done(&self) -> bool {
        true
    }
}
