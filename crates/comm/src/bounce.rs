//! Arrays of a device over engines that carry bytes of the host: what is sent is copied out before, what came is copied in after.

use crate::call::{AllGather, AllReduce, AllToAll, Broadcast, Call, Recv, ReduceScatter, ReduceTo, Send};
use crate::comm::{Pending, Wait};
use crate::error::Result;
use crate::held::flat;
use planaria_array::{Array, Device};

/// Starts a checked call of this position with copies on the host. Waiting for it brings the result to the device.
pub(crate) fn start(
    call: Call,
    position: usize,
    start: impl FnOnce(Call) -> Result<Pending>,
) -> Result<Pending> {
    let (call, landing) = on_host(call, position)?;
    let call = start(call)?;
    Ok(match landing {
        Some((from, to)) => Pending::new(Landing { call, from, to }),
        None => call,
    })
}

/// The same call on the host, with what it fills there and where that belongs.
fn on_host(call: Call, position: usize) -> Result<(Call, Option<(Array, Array)>)> {
    let out = |array: &Array| array.to(Device::Cpu);
    let room = |array: &Array| Array::empty(array.shape(), array.dtype());
    let mut landing = None;
    let mut land = |to: Array| -> Result<Array> {
        let from = room(&to)?;
        landing = Some((from.clone(), to));
        Ok(from)
    };
    let call = match call {
        Call::AllReduce(AllReduce { send, recv, op }) => {
            Call::AllReduce(AllReduce { send: out(&send)?, recv: land(recv)?, op })
        }
        Call::Reduce(ReduceTo { send, recv, op, root }) => {
            let recv = recv.filter(|_| root == position).map(&mut land).transpose()?;
            Call::Reduce(ReduceTo { send: out(&send)?, recv, op, root })
        }
        Call::Broadcast(Broadcast { data, root }) => {
            let data = if root == position { out(&data)? } else { land(data)? };
            Call::Broadcast(Broadcast { data, root })
        }
        Call::AllGather(AllGather { send, recv, recv_counts }) => {
            Call::AllGather(AllGather { send: out(&send)?, recv: land(recv)?, recv_counts })
        }
        Call::ReduceScatter(ReduceScatter { send, recv, send_counts, op }) => {
            Call::ReduceScatter(ReduceScatter { send: out(&send)?, recv: land(recv)?, send_counts, op })
        }
        Call::AllToAll(AllToAll { send, send_counts, recv, recv_counts }) => {
            let (send, recv) = (out(&send)?, land(recv)?);
            Call::AllToAll(AllToAll { send, send_counts, recv, recv_counts })
        }
        Call::Send(Send { data, to, tag }) => Call::Send(Send { data: out(&data)?, to, tag }),
        Call::Recv(Recv { data, from, tag }) => Call::Recv(Recv { data: land(data)?, from, tag }),
    };
    Ok((call, landing))
}

/// A call whose result goes to a device.
#[derive(Debug)]
struct Landing {
    call: Pending,
    from: Array,
    to: Array,
}

impl Wait for Landing {
    fn wait(self: Box<Self>) -> Result<()> {
        let Landing { call, from, to } = *self;
        call.wait()?;
        Ok(flat(&to)?.copy_from(&flat(&from)?.to(to.device())?)?)
    }

    fn is_done(&self) -> bool {
        self.call.is_done()
    }
}
