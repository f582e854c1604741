//! Messages between neighbouring stages: what they carry is described once, then checked.
//!
//! Stages have meshes alike, and a tensor has one layout on both of them. The plan of `layout` between the two is then one
//! message, between the ranks of equal coordinates (`crates/layout/tests/tiles.rs` tests it), and that is what is sent.

use super::state::InputGrad;
use super::wire::{Wire, gradient_spec};
use super::{At, Inner, Options, Shapes};
use crate::error::{Error, Result};
use planaria_comm::{Call, Comm, Pending, Recv, Send};
use planaria_layout::{DType, TensorSpec};
use planaria_tensor::{Array, Device, History, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// Along the model, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// Towards the last stage.
    Down,
    /// Towards the first stage.
    Up,
}

/// Largest description in bytes.
const LONGEST: usize = 1 << 20;

/// The messages of one rank.
#[derive(Debug)]
pub(super) struct Links {
    comm: Arc<dyn Comm>,
    shapes: Shapes,
    inner: Option<Inner>,
    tag: u32,
    device: Device,
    /// What was agreed on, by sending stage and direction.
    agreed: HashMap<(usize, Direction), String>,
    /// Sends that are not known to be over.
    sending: Vec<Pending>,
}

/// Both ends of a message.
#[derive(Clone, Copy)]
struct Line {
    peer: usize,
    /// The stage that sends.
    stage: usize,
    micro: usize,
    direction: Direction,
}

impl Links {
    pub(super) fn new(comm: Arc<dyn Comm>, options: &Options) -> Links {
        let (shapes, inner, tag) = (options.shapes, options.inner.clone(), options.tag);
        let device = options.device;
        Links { comm, shapes, inner, tag, device, agreed: HashMap::new(), sending: Vec::new() }
    }

    /// Sends a stage's outputs to the next.
    pub(super) fn send(&mut self, to: usize, at: At, outputs: Vec<Tensor>) -> Result<()> {
        let line = Line { peer: to, stage: at.stage, micro: at.micro, direction: Direction::Down };
        let wires: Vec<String> = outputs.iter().map(|tensor| Wire::of(tensor).to_string()).collect();
        self.describe(line, wires.join("\n"))?;
        outputs.into_iter().try_for_each(|tensor| self.send_array(line, tensor.local()))
    }

    /// The inputs of a stage, from the one before.
    pub(super) fn receive(&mut self, from: usize, at: At) -> Result<Vec<Tensor>> {
        let line = Line {
            peer: from,
            stage: at.stage.saturating_sub(1),
            micro: at.micro,
            direction: Direction::Down,
        };
        let text = self.description(line)?;
        let mut inputs = Vec::new();
        for wire in text.lines() {
            let wire: Wire =
                wire.parse().map_err(|what| Error::Message { stage: at.stage, micro: at.micro, what })?;
            let tensor = self.receive_tensor(line, &wire.spec)?;
            inputs.push(if wire.grad { tensor.requires_grad() } else { tensor });
        }
        Ok(inputs)
    }

    /// Sends the gradients of a stage's inputs to the stage before; there are none for inputs without history.
    pub(super) fn send_grads(&mut self, to: usize, at: At, grads: Vec<InputGrad>) -> Result<()> {
        let line = Line { peer: to, stage: at.stage, micro: at.micro, direction: Direction::Up };
        let wanted: Vec<(Option<Tensor>, History)> =
            grads.into_iter().filter_map(|(grad, place)| Some((grad, place?))).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let there = |(grad, _): &(Option<Tensor>, History)| if grad.is_some() { "grad" } else { "none" };
        self.describe(line, wanted.iter().map(there).collect::<Vec<_>>().join("\n"))?;
        for (grad, place) in wanted {
            let Some(grad) = grad else { continue };
            let grad = match &self.inner {
                Some(inner) if grad.layout().is_some() => {
                    let layout = gradient_spec(&place).on(&inner.mesh).map_err(|e| self.refuse(line, e))?;
                    grad.reshard(&layout).map_err(|e| self.refuse(line, e))?
                }
                _ => grad,
            };
            self.send_array(line, grad.local())?;
        }
        Ok(())
    }

    /// The gradients of a stage's outputs, from the stage after.
    pub(super) fn receive_grads(
        &mut self,
        from: usize,
        at: At,
        outputs: &[Option<History>],
    ) -> Result<Vec<Option<Tensor>>> {
        let line = Line { peer: from, stage: at.stage + 1, micro: at.micro, direction: Direction::Up };
        if outputs.iter().all(Option::is_none) {
            return Ok(outputs.iter().map(|_| None).collect());
        }
        let text = self.description(line)?;
        let expected = outputs.iter().flatten().count();
        if text.lines().count() != expected {
            let what = format!("{} gradients came for {expected} outputs", text.lines().count());
            return Err(Error::Message { stage: at.stage, micro: at.micro, what });
        }
        let mut there = text.lines().map(|line| line == "grad");
        let mut grads = Vec::with_capacity(outputs.len());
        for place in outputs {
            grads.push(match place {
                Some(place) if there.next() == Some(true) => {
                    Some(self.receive_tensor(line, &gradient_spec(place))?)
                }
                _ => None,
            });
        }
        Ok(grads)
    }

    /// Agrees with the receiver on what comes, the first time; then checks it.
    fn describe(&mut self, line: Line, text: String) -> Result<()> {
        match self.agreed.get(&(line.stage, line.direction)).filter(|_| self.shapes == Shapes::Once) {
            Some(agreed) if *agreed == text => Ok(()),
            Some(agreed) => Err(differs(line, agreed, &text)),
            None => {
                let length =
                    Array::from_slice(&[text.len() as i64], &[1]).map_err(|e| self.refuse(line, e))?;
                self.start_send(line, length)?;
                if !text.is_empty() {
                    let bytes = text.as_bytes();
                    let bytes = Array::from_slice(bytes, &[bytes.len()]).map_err(|e| self.refuse(line, e))?;
                    self.start_send(line, bytes)?;
                }
                self.agreed.insert((line.stage, line.direction), text);
                Ok(())
            }
        }
    }

    /// What the sender has described.
    fn description(&mut self, line: Line) -> Result<String> {
        let key = (line.stage, line.direction);
        if let Some(agreed) = self.agreed.get(&key).filter(|_| self.shapes == Shapes::Once) {
            return Ok(agreed.clone());
        }
        let length = self.receive_array(line, self.empty(line, &[1], DType::I64, Device::Cpu)?)?;
        let length = length.to_vec::<i64>().map_err(|e| self.refuse(line, e))?;
        let length = length.first().and_then(|&n| usize::try_from(n).ok()).filter(|&n| n <= LONGEST);
        let length = length.ok_or_else(|| self.refuse(line, "the description has no possible length"))?;
        let text = match length {
            0 => String::new(),
            _ => {
                let bytes = self.empty(line, &[length], DType::U8, Device::Cpu)?;
                let bytes = self.receive_array(line, bytes)?;
                let bytes = bytes.to_vec::<u8>().map_err(|e| self.refuse(line, e))?;
                String::from_utf8(bytes).map_err(|e| self.refuse(line, e))?
            }
        };
        self.agreed.insert(key, text.clone());
        Ok(text)
    }

    fn send_array(&mut self, line: Line, array: &Array) -> Result<()> {
        if array.numel() == 0 {
            return Ok(());
        }
        let data = array.contiguous().map_err(|e| self.refuse(line, e))?;
        self.start_send(line, data)
    }

    /// Hands bytes to the communicator, which keeps what it needs of them; sends do not wait.
    fn start_send(&mut self, line: Line, data: Array) -> Result<()> {
        let call = Call::Send(Send { data, to: line.peer, tag: self.tag(line) });
        self.sending.retain(|sent| !sent.is_done());
        let sent = self.comm.start(call)?;
        if !sent.is_done() {
            self.sending.push(sent);
        }
        Ok(())
    }

    /// Waits until all that was sent has gone.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.sending.drain(..).try_for_each(|sent| Ok(sent.wait()?))
    }

    fn receive_tensor(&self, line: Line, spec: &TensorSpec) -> Result<Tensor> {
        if spec.placements.is_empty() {
            let array = self.empty(line, spec.shape.dims(), spec.dtype, self.device)?;
            return Ok(Tensor::new(self.receive_array(line, array)?));
        }
        let Some(inner) = &self.inner else {
            return Err(self.refuse(line, format!("`{spec}` lies on a mesh, and this stage was given none")));
        };
        let layout = spec.on(&inner.mesh).map_err(|e| self.refuse(line, e))?;
        let piece = layout.piece(inner.world.rank()).map_err(|e| self.refuse(line, e))?;
        let array = self.empty(line, &piece.extents(), spec.dtype, self.device)?;
        let array = self.receive_array(line, array)?;
        Tensor::from_piece(array, &layout, &inner.world).map_err(|e| self.refuse(line, e))
    }

    fn empty(&self, line: Line, shape: &[usize], dtype: DType, device: Device) -> Result<Array> {
        Array::empty_on(shape, dtype, device).map_err(|e| self.refuse(line, e))
    }

    fn receive_array(&self, line: Line, data: Array) -> Result<Array> {
        if data.numel() > 0 {
            let call = Call::Recv(Recv { data: data.clone(), from: line.peer, tag: self.tag(line) });
            self.comm.run(call)?;
        }
        Ok(data)
    }

    fn tag(&self, line: Line) -> u32 {
        self.tag + 2 * line.stage as u32 + u32::from(line.direction == Direction::Up)
    }

    fn refuse(&self, line: Line, what: impl ToString) -> Error {
        Error::Message { stage: line.stage, micro: line.micro, what: what.to_string() }
    }
}

/// Which tensor is not what was agreed on.
fn differs(line: Line, agreed: &str, text: &str) -> Error {
    let (stage, micro) = (line.stage, line.micro);
    let kind = match line.direction {
        Direction::Down => "output",
        Direction::Up => "gradient of input",
    };
    let (expected, found) = (agreed.lines().count(), text.lines().count());
    if expected != found {
        let what = format!("the number of its {kind}s");
        return Error::Shape { stage, micro, what, expected: expected.to_string(), found: found.to_string() };
    }
    let (number, (expected, found)) = agreed
        .lines()
        .zip(text.lines())
        .enumerate()
        .find(|(_, (agreed, text))| agreed != text)
        .unwrap_or((0, (agreed, text)));
    let (expected, found) = (format!("`{expected}`"), format!("`{found}`"));
    Error::Shape { stage, micro, what: format!("{kind} {number}"), expected, found }
}
