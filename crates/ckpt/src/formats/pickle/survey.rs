//! What stands below every value of a pickle, found in one pass: shared values count as often as they stand somewhere.

use super::tree::{Id, Node, Tree};

/// What a value is with everything below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Values, shared ones as often as they are referred to. The most there is where a value refers to itself.
    pub(super) values: u64,
    /// Bytes of text and byte strings, counted the same way.
    pub(super) bytes: u64,
    /// Levels of JSON.
    pub(super) depth: u32,
    /// Whether something stored outside the pickle is below.
    pub(super) stored: bool,
}

/// Nothing leads here.
const UNSEEN: Extent = Extent { values: u64::MAX, bytes: u64::MAX, depth: u32::MAX, stored: false };

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    New,
    Open,
    Done,
}

/// The extents of all nodes that can be reached from the root. Nothing recurses: pickles nest as deeply as they like.
pub(super) fn survey(tree: &Tree) -> Vec<Extent> {
    let mut extents = vec![UNSEEN; tree.nodes.len()];
    let mut progress = vec![Progress::New; tree.nodes.len()];
    let mut stack = vec![(tree.root, Progress::New)];
    while let Some((id, turn)) = stack.pop() {
        let at = id.0 as usize;
        if turn == Progress::Done {
            extents[at] = extent(tree, id, &extents, &progress);
            progress[at] = Progress::Done;
        } else if progress[at] == Progress::New {
            progress[at] = Progress::Open;
            stack.push((id, Progress::Done));
            each_below(tree.node(id), &mut |below| {
                if progress[below.0 as usize] == Progress::New {
                    stack.push((below, Progress::New));
                }
            });
        }
    }
    extents
}

/// A node whose parts are known already, but for those that it is itself a part of.
fn extent(tree: &Tree, id: Id, extents: &[Extent], progress: &[Progress]) -> Extent {
    let node = tree.node(id);
    let bytes = match node {
        Node::Text(text) => text.len() as u64,
        Node::Bytes(bytes) => bytes.span.len,
        Node::Big(bytes) => bytes.len() as u64,
        Node::Global(global) => (global.0.len() + global.1.len()) as u64,
        _ => 0,
    };
    let mut sum = Extent { values: 1, bytes, depth: 0, stored: matches!(node, Node::Persistent(_)) };
    each_below(node, &mut |below| {
        let part = match progress[below.0 as usize] {
            Progress::Done => extents[below.0 as usize],
            _ => UNSEEN,
        };
        sum.values = sum.values.saturating_add(part.values);
        sum.bytes = sum.bytes.saturating_add(part.bytes);
        sum.depth = sum.depth.max(part.depth);
        sum.stored |= part.stored;
    });
    sum.depth = sum.depth.saturating_add(match node {
        Node::List(_) => 1,
        Node::Dict(pairs) if tree.is_plain(pairs) => 1,
        Node::Dict(_) | Node::Object(_) => 3,
        _ => 2,
    });
    sum
}

/// Everything that a node refers to.
fn each_below(node: &Node, see: &mut impl FnMut(Id)) {
    match node {
        Node::List(items) | Node::Tuple(items) | Node::Set(items) | Node::FrozenSet(items) => {
            items.iter().for_each(|id| see(*id));
        }
        Node::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
            see(*key);
            see(*value);
        }),
        Node::Persistent(id) => see(*id),
        Node::Object(object) => {
            see(object.callable);
            see(object.args);
            object.state.iter().chain(&object.items).for_each(|id| see(*id));
            object.pairs.iter().for_each(|(key, value)| {
                see(*key);
                see(*value);
            });
        }
        Node::None
        | Node::Bool(_)
        | Node::Int(_)
        | Node::Big(_)
        | Node::Float(_)
        | Node::Text(_)
        | Node::Bytes(_)
        | Node::Global(_) => {}
    }
}
