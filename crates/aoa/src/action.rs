//! Actions: what the attributes of a statement ask for, checked once per statement.

use crate::ast::{Attr, Name, Program, Statement, Value};
use crate::error::{Fault, Log, Problem, Span, closest};
use crate::options::{Options, Strictness};
use crate::parse::FLAGS;
use planaria_layout::DType;

/// What a statement does between reading and assigning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Action {
    pub(crate) kind: FusionKind,
    pub(crate) axis: Option<i64>,
    pub(crate) sizes: Option<Vec<usize>>,
    /// Changes to the single tensor, in written order.
    pub(crate) steps: Vec<Step>,
    /// Parts of the fused weight on the left, when a layout is named.
    pub(crate) left_parts: Option<usize>,
    /// Parts of the fused weight on the right.
    pub(crate) right_parts: Option<usize>,
}

/// How several tensors become one or the other way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FusionKind {
    /// Side by side.
    #[default]
    Plain,
    /// Heads by key-value group, whatever the number of ranks.
    Grouped { heads: usize, groups: usize },
    /// Heads by rank.
    Ranked { heads: usize, groups: usize },
    /// Gate and up by rank.
    Ffn,
}

/// One change of a single tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) change: Change,
    pub(crate) span: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Empty: all dims reversed.
    Permute(Vec<i64>),
    Reshape {
        to: Vec<i64>,
        from: Option<Vec<i64>>,
    },
    Cast {
        to: DType,
        from: Option<DType>,
    },
}

/// Every word that may stand before `=`, and the flags.
const KEYS: [&str; 14] = [
    "axis",
    "permute",
    "dtype",
    "src_dtype",
    "dst_dtype",
    "num_heads",
    "num_key_value_groups",
    "sizes",
    "reshape",
    "src_shape",
    "src_layout",
    "dst_layout",
    "layout",
    "fused_qkv",
];

/// The actions of all statements; none where the attributes are wrong.
pub(crate) fn actions(program: &Program, options: &Options, log: &mut Log) -> Vec<Option<Action>> {
    let read = |statement: &Statement| {
        let mut reader = Reader { program, options, statement, log, failed: false };
        let action = reader.action();
        (!reader.failed).then_some(action)
    };
    program.statements.iter().map(read).collect()
}

struct Reader<'a> {
    program: &'a Program,
    options: &'a Options,
    statement: &'a Statement,
    log: &'a mut Log,
    failed: bool,
}

impl Reader<'_> {
    fn fail(&mut self, fault: Fault, span: Span) {
        self.log.error(Problem::at(fault, span));
        self.failed = true;
    }

    fn bad(&mut self, attr: &Attr, reason: impl Into<String>) {
        self.fail(Fault::BadAttr { key: attr.key.clone(), reason: reason.into() }, attr.span);
    }

    fn find(&self, key: &str) -> Option<&Attr> {
        self.statement.attrs.iter().find(|attr| attr.key == key)
    }

    fn action(&mut self) -> Action {
        let mut action = Action::default();
        let attrs = &self.statement.attrs;
        for (at, attr) in attrs.iter().enumerate() {
            if attrs[..at].iter().any(|before| before.key == attr.key) {
                self.bad(attr, "is given twice");
            } else {
                self.attr(attr, &mut action);
            }
        }
        self.kind(&mut action);
        self.check(&action);
        action
    }

    fn attr(&mut self, attr: &Attr, action: &mut Action) {
        let step = |change| Step { change, span: attr.span };
        match attr.key.as_str() {
            "axis" => match attr.value {
                Value::Int(axis) => action.axis = Some(axis),
                _ => self.bad(attr, "is not a whole number"),
            },
            "sizes" => match attr.value.as_list().map(|l| l.into_iter().map(usize::try_from).collect()) {
                Some(Ok(sizes)) => action.sizes = Some(sizes),
                _ => self.bad(attr, "is not a list of sizes like [4, 2, 2]"),
            },
            "permute" => match attr.value.as_list() {
                Some(order) => action.steps.push(step(Change::Permute(order))),
                None => self.bad(attr, "is not a list of dims like [1, 0]"),
            },
            "reshape" => match (attr.value.as_list(), self.find("src_shape").map(|a| a.value.as_list())) {
                (Some(to), None) => action.steps.push(step(Change::Reshape { to, from: None })),
                (Some(to), Some(Some(from))) => {
                    action.steps.push(step(Change::Reshape { to, from: Some(from) }));
                }
                _ => self.bad(attr, "or 'src_shape' is not a list of extents like [4, -1]"),
            },
            "dtype" | "dst_dtype" => self.cast(attr, action),
            "src_dtype" if self.find("dst_dtype").is_none() => self.bad(attr, "needs 'dst_dtype' beside it"),
            "src_shape" if self.find("reshape").is_none() => self.bad(attr, "needs 'reshape' beside it"),
            "src_layout" => action.left_parts = self.layout(attr),
            "dst_layout" => action.right_parts = self.layout(attr),
            "src_dtype" | "src_shape" | "num_heads" | "num_key_value_groups" => {}
            flag if FLAGS.contains(&flag) && attr.value == Value::Flag => {}
            key => {
                let known = KEYS.iter().chain(&FLAGS).copied();
                let fault = Fault::UnknownAttr { key: key.to_string(), closest: closest(key, known) };
                self.fail(fault, attr.span);
            }
        }
    }

    fn cast(&mut self, attr: &Attr, action: &mut Action) {
        if attr.key == "dtype" && self.find("dst_dtype").is_some() {
            return self.bad(attr, "and 'dst_dtype' say the same; keep one");
        }
        let Some(to) = dtype_of(&attr.value) else { return self.bad(attr, "is not a known element type") };
        let mut from = None;
        if attr.key == "dst_dtype"
            && let Some(source) = self.find("src_dtype").cloned()
        {
            from = dtype_of(&source.value);
            if from.is_none() {
                return self.bad(&source, "is not a known element type");
            }
        }
        action.steps.push(Step { change: Change::Cast { to, from }, span: attr.span });
    }

    /// The parts of a named layout.
    fn layout(&mut self, attr: &Attr) -> Option<usize> {
        let Value::Text(name) = &attr.value else {
            self.bad(attr, "is not the name of a layout");
            return None;
        };
        let declared = self.program.layouts.iter().rev().find(|l| l.name == *name).map(|l| l.parts);
        let parts = self.options.layouts.get(name).copied().or(declared).filter(|parts| *parts > 0);
        if parts.is_none() {
            self.fail(Fault::UnknownLayout { name: name.clone() }, attr.span);
        }
        parts
    }

    fn kind(&mut self, action: &mut Action) {
        let flags: Vec<&Attr> = self.statement.attrs.iter().filter(|a| a.value == Value::Flag).collect();
        if let [_, second, ..] = flags[..] {
            let second = second.clone();
            return self.bad(&second, "does not go with another flag");
        }
        action.kind = match flags.first().map(|attr| attr.key.as_str()) {
            None => FusionKind::Plain,
            Some("fused_ffn") => FusionKind::Ffn,
            Some(flag) => {
                let grouped = flag == "fused_qkv";
                let flag = if grouped { "fused_qkv" } else { "fused_qkv_old" };
                let (Some(heads), Some(groups)) =
                    (self.count(flag, "num_heads"), self.count(flag, "num_key_value_groups"))
                else {
                    return;
                };
                if heads % groups != 0 {
                    let fault = Fault::BadHeads { heads, parts: groups, what: "key-value groups" };
                    self.fail(fault, self.statement.span);
                }
                if grouped {
                    FusionKind::Grouped { heads, groups }
                } else {
                    FusionKind::Ranked { heads, groups }
                }
            }
        };
        if action.kind != FusionKind::Plain && action.axis.is_none() {
            action.axis = Some(1);
        }
    }

    /// A count a fused weight needs.
    fn count(&mut self, what: &'static str, key: &'static str) -> Option<usize> {
        let Some(attr) = self.find(key).cloned() else {
            self.fail(Fault::MissingAttr { what, key }, self.statement.span);
            return None;
        };
        match attr.value {
            // Far above any model, and small enough that sums of counts cannot overflow.
            Value::Int(count @ 1..=0x10_0000) => Some(count as usize),
            _ => {
                self.bad(&attr, "is not a count from 1 to 1048576");
                None
            }
        }
    }

    /// Attributes that do not go with each other or with the number of names.
    fn check(&mut self, action: &Action) {
        let statement = self.statement;
        let variadic = |names: &[Name]| names.len() > 1 || names.iter().any(|n| n.is_variadic());
        let single = !variadic(&statement.left) && !variadic(&statement.right);
        let several = named(&statement.left) > 1 || named(&statement.right) > 1;
        let plain = action.kind == FusionKind::Plain;
        for attr in statement.attrs.clone() {
            match attr.key.as_str() {
                "num_heads" | "num_key_value_groups" if plain || action.kind == FusionKind::Ffn => {
                    self.bad(&attr, "belongs to 'fused_qkv' and 'fused_qkv_old'");
                }
                "src_layout" | "dst_layout"
                    if !matches!(action.kind, FusionKind::Ranked { .. } | FusionKind::Ffn) =>
                {
                    self.bad(&attr, "belongs to 'fused_ffn' and 'fused_qkv_old'");
                }
                "sizes" if !plain || single => self.bad(&attr, "belongs to a split or a concatenation"),
                "permute" | "reshape" if !plain || several => self.bad(&attr, ALONE),
                "axis" if plain && single => match self.options.strictness {
                    Strictness::Strict => self.fail(Fault::IdleAxis, attr.span),
                    Strictness::Lenient => self.log.warn(Problem::at(Fault::IdleAxis, attr.span)),
                },
                _ => {}
            }
        }
        if let Some(name) = statement.left.iter().find(|n| statement.left.len() > 1 && n.is_nothing()) {
            let fault = Fault::Syntax { expected: "a tensor name beside other names", found: "'_'".into() };
            self.fail(fault, name.span);
        }
        let nothing = |names: &[Name]| names.len() == 1 && names[0].is_nothing();
        let moves = !nothing(&statement.left) && !nothing(&statement.right);
        if plain && several && moves && action.axis.is_none() {
            self.fail(no_axis(named(&statement.left)), statement.span);
        }
    }
}

impl Action {
    /// The attributes go with the tensors a statement turned out to name. A `*` may stand for one or for many,
    /// so this is known only now.
    pub(crate) fn check_count(&self, left: usize, right: usize, span: Span) -> Result<(), Problem> {
        if self.kind != FusionKind::Plain || (left == 1 && right == 1) {
            return Ok(());
        }
        if self.axis.is_none() {
            return Err(Problem::at(no_axis(left), span));
        }
        let key = |step: &Step| match step.change {
            Change::Permute(_) => Some(("permute", step.span)),
            Change::Reshape { .. } => Some(("reshape", step.span)),
            Change::Cast { .. } => None,
        };
        match self.steps.iter().find_map(key) {
            Some((key, span)) => {
                Err(Problem::at(Fault::BadAttr { key: key.into(), reason: ALONE.into() }, span))
            }
            None => Ok(()),
        }
    }
}

/// What is wrong with an attribute of a single tensor beside several.
const ALONE: &str = "goes with one tensor on each side; write a statement of its own";

/// The least number of tensors that names stand for.
fn named(names: &[Name]) -> usize {
    let count = |name: &Name| name.array.as_ref().map_or(1, |range| range.len());
    names.iter().map(count).fold(0, usize::saturating_add)
}

fn no_axis(left: usize) -> Fault {
    Fault::MissingAttr { what: if left > 1 { "a concatenation" } else { "a split" }, key: "axis" }
}

/// Our names and those of the frameworks.
fn dtype_of(value: &Value) -> Option<DType> {
    let Value::Text(name) = value else { return None };
    Some(match name.as_str() {
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" | "float" => DType::F32,
        "float64" | "double" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        other => return other.parse().ok(),
    })
}
