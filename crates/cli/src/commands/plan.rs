//! `planaria plan`: what a run will need, without starting it.

use super::launch::hosts::{Host, from_words, in_groups, placed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::job::Job;
use crate::quantity::{self, Bytes};
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::layout::DType;
use planaria::nn::models::Models;
use planaria::telemetry::count;
use planaria::train::Config;
use planaria::train::plan::{Link, Memory, Plan, PlanOptions, RankPlan, crossing, links, model_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Show what a run will need: memory per rank, bytes sent, time lost in the pipeline
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is started and no data is read. Weights, gradients and optimizer state are exact; activations are what\n\
    the layers keep for backward; what libraries keep for themselves is not counted."
)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,
    /// Bytes a rank has; exits 1 if a rank needs more
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Dtype of weights and activations instead of the run's, such as f8e4m3
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<DType>,
    /// Machines and how many ranks each takes, as `a:4,b:4`: what they send each other
    #[arg(long, value_name = "HOSTS", value_parser = from_words)]
    hosts: Option<Hosts>,
    /// Ranks that stay on one host, where there is room; as many as `tp` of the mesh has if not given
    #[arg(long, value_name = "NUMBER", requires = "hosts")]
    together: Option<u32>,
}

/// Machines in the order in which they are filled.
type Hosts = Vec<Host>;

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let config = args.job.config()?;
    let model = model_of(&config, &Models::default())?;
    let ranks = args.job.ranks_of(&config);
    let plan =
        Plan::new(&config, &*model, ranks, &PlanOptions { dtype: args.dtype, ..PlanOptions::default() })?;
    let most = plan.largest().map_or(0, |rank| rank.memory.total);
    let fits = args.memory.is_none_or(|limit| most <= limit.0);
    let between = args.hosts.as_deref().map(|hosts| Between::new(args, &config, &plan, hosts)).transpose()?;
    if terminal.json {
        let mut told = serde_json::to_value(&plan)?;
        if let (Value::Object(told), Some(between)) = (&mut told, &between) {
            told.extend(between.told());
        }
        terminal.object("planaria/plan/1", &told)?;
    } else {
        print(terminal, &plan)?;
        between.iter().flat_map(Between::lines).try_for_each(|line| terminal.line(line))?;
    }
    if let Some(limit) = args.memory.filter(|_| !fits) {
        let stage = plan.largest().map_or(0, |rank| rank.stage);
        terminal.note(format!(
            "{} each rank of stage {stage} needs {}, more than {limit}",
            terminal.paint_err(Style::Bad, "no:"),
            Bytes(most)
        ));
    }
    Ok(if fits { Exit::Success } else { Exit::Negative })
}

fn print(terminal: &mut Terminal, plan: &Plan) -> Result<()> {
    let Plan { ranks, mesh, parameters, dtype, global_batch, micro_batch, accumulation, tokens, .. } = plan;
    let operations = plan.operations;
    let mut size = quantity::parameters(*parameters);
    if plan.trained < *parameters {
        size = format!("{} trained of {size}", quantity::parameters(plan.trained));
    }
    terminal.line(format!("{} as {mesh}, {size}, {dtype}", quantity::count(*ranks, "rank")))?;
    terminal.line(format!(
        "a step: {} ({micro_batch} at a time, {}), {} tokens, {operations:.2e} FLOPs",
        quantity::count(*global_batch as usize, "sample"),
        quantity::count(*accumulation as usize, "time"),
        count(*tokens as f64)
    ))?;
    terminal.line(format!("pipeline: {}, {:.1}% of the step idle\n", plan.schedule, plan.bubble * 100.0))?;
    let mut table = Table::new(&(1..=plan.stages.len()).collect::<Vec<_>>());
    let head = plan.stages.iter().map(|rank| format!("stage {}", rank.stage));
    table.row(std::iter::once("per rank".to_string()).chain(head));
    let mut row = |name: &str, value: &dyn Fn(&RankPlan) -> String| {
        table.row(std::iter::once(name.to_string()).chain(plan.stages.iter().map(value)));
    };
    row("blocks", &|rank| rank.layers.to_string());
    row("parameters", &|rank| count(rank.parameters as f64));
    row("micro-batches in flight", &|rank| rank.in_flight.to_string());
    row("waiting", &|rank| format!("{:.1}%", rank.bubble * 100.0));
    type Part = (&'static str, fn(&Memory) -> u64);
    let parts: [Part; 11] = [
        ("weights", |m| m.weights),
        ("gradients", |m| m.gradients),
        ("masters", |m| m.masters),
        ("moments", |m| m.moments),
        ("average of weights", |m| m.ema),
        ("activations", |m| m.activations),
        ("exchange", |m| m.exchange),
        ("rounding", |m| m.rounding),
        ("of all texts", |m| m.held),
        ("update", |m| m.update),
        ("memory at most", |m| m.total),
    ];
    for (name, value) in parts {
        if plan.stages.iter().any(|rank| value(&rank.memory) > 0) {
            row(name, &|rank| Bytes(value(&rank.memory)).to_string());
        }
    }
    for (name, key) in traffic_rows(plan) {
        let bytes = |rank: &RankPlan| {
            let same = rank.traffic.iter().filter(|t| (t.axis, t.what, t.call) == key);
            Bytes(same.map(|t| t.bytes).sum()).to_string()
        };
        row(&name, &bytes);
    }
    let lines: Vec<String> = table.lines().collect();
    lines.iter().try_for_each(|line| terminal.line(line))
}

/// What lies between the hosts of a run.
struct Between {
    /// Names, first and last ranks.
    hosts: Vec<(String, u32, u32)>,
    crossing: BTreeSet<String>,
    inside: Vec<String>,
    links: Vec<Link>,
}

impl Between {
    fn new(args: &Args, config: &Config, plan: &Plan, hosts: &[Host]) -> Result<Between> {
        let (ranks, room) = (plan.ranks as u32, hosts.iter().map(|host| host.ranks).sum::<u32>());
        if ranks > room {
            let message = format!("{ranks} ranks are more than the {room} that the hosts take");
            return Err(Failure::usage(message).hint("name more hosts, or a smaller `mesh`").into());
        }
        let together = args.together.unwrap_or(config.mesh.tp as u32);
        let hosts = in_groups(hosts, ranks, together).unwrap_or_else(|| hosts.to_vec());
        let placed = placed(&hosts, ranks);
        let ranges: Vec<_> = placed.iter().map(|(_, at)| at.start as usize..at.end as usize).collect();
        let mesh = config.mesh.on(plan.ranks)?;
        let crossing = crossing(&mesh, &ranges);
        let several = mesh.axes().iter().filter(|axis| axis.size > 1).map(|axis| axis.name.to_string());
        Ok(Between {
            hosts: placed.into_iter().map(|(host, at)| (host.name, at.start, at.end - 1)).collect(),
            inside: several.filter(|axis| !crossing.contains(axis)).collect(),
            links: links(plan, &mesh, &ranges),
            crossing,
        })
    }

    fn lines(&self) -> Vec<String> {
        let shown = |(name, first, last): &(String, u32, u32)| format!("{name} has ranks {first} to {last}");
        let mut out =
            vec![format!("\nhosts: {}", self.hosts.iter().map(shown).collect::<Vec<_>>().join(", "))];
        let crossing: Vec<&str> = self.crossing.iter().map(String::as_str).collect();
        if !self.inside.is_empty() {
            out.push(format!("inside a host: {}", self.inside.join(", ")));
        }
        if !crossing.is_empty() {
            out.push(format!("between hosts: {}", crossing.join(", ")));
        }
        for Link { from, to, bytes, axes } in &self.links {
            let axes: Vec<String> =
                axes.iter().map(|(axis, bytes)| format!("{axis} {}", Bytes(*bytes))).collect();
            let (from, to) = (&self.hosts[*from].0, &self.hosts[*to].0);
            out.push(format!("{from} to {to}: {} a step ({})", Bytes(*bytes), axes.join(", ")));
        }
        out
    }

    /// The same for programs.
    fn told(&self) -> impl Iterator<Item = (String, Value)> {
        let host = |(name, first, last): &(String, u32, u32)| json!({ "name": name, "ranks": [first, last] });
        let name = |number: usize| &self.hosts[number].0;
        let link = |link: &Link| json!({ "from": name(link.from), "to": name(link.to), "bytes": link.bytes, "axes": link.axes });
        let pairs = [
            ("hosts", json!(self.hosts.iter().map(host).collect::<Vec<_>>())),
            ("crossing", json!(self.crossing)),
            ("links", json!(self.links.iter().map(link).collect::<Vec<_>>())),
        ];
        pairs.map(|(key, value)| (key.to_string(), value)).into_iter()
    }
}

/// Axis, content and call of a kind of communication.
type TrafficKey = (&'static str, &'static str, &'static str);

/// Every kind of communication that some stage has, in the order of its first mention.
fn traffic_rows(plan: &Plan) -> Vec<(String, TrafficKey)> {
    let mut out: Vec<(String, TrafficKey)> = Vec::new();
    for traffic in plan.stages.iter().flat_map(|rank| &rank.traffic) {
        let key = (traffic.axis, traffic.what, traffic.call);
        if !out.iter().any(|(_, known)| *known == key) {
            out.push((format!("sent on {}: {} ({})", key.0, key.1, key.2), key));
        }
    }
    out
}
