//! Ranks that another launcher started: which one this is, of how many, and where the first one is, as the variables of torchrun, mpirun,
//! srun and Kubernetes say.

use super::nodes;
use crate::failure::Failure;

/// The port where the first rank is called, as torchrun has it.
const PORT: u16 = 29_500;

/// Ports for jobs of Slurm, which are chosen by the number of the job so that two on one machine do not meet.
const SLURM_PORTS: std::ops::Range<u64> = 20_000..32_000;

/// What the variables say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outside {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Where the first rank is, as `HOST:PORT`, where that is known.
    pub(super) first: Option<String>,
    /// An MPI started it, which could bring ranks together too.
    pub(super) by_mpi: bool,
}

/// Who may have set variables: those of a rank, of the number of ranks, and on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Torchrun,
    OpenMpi,
    Pmi,
    Slurm,
    Kubeflow,
}

/// Variables with the rank, and with the number of ranks.
const RANKS: [(By, &str, &str); 5] = [
    (By::Torchrun, "RANK", "WORLD_SIZE"),
    (By::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    (By::Pmi, "PMI_RANK", "PMI_SIZE"),
    (By::Slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    (By::Kubeflow, "PET_NODE_RANK", "PET_NNODES"),
];

/// Those of the ranks of one machine.
const LOCAL: [(&str, &str); 3] = [
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
];

type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable and what it says.
type Said = (&'static str, usize);

/// What another launcher has said to this process; nothing where there is none, or no other rank.
pub(super) fn find(variables: &impl Fn(&str) -> Option<String>) -> Result<Option<Outside>, Failure> {
    let variables: Variables<'_> = variables;
    let inner = innermost(variables);
    let (mut ranks, mut sizes) = (Vec::new(), Vec::new());
    for (_, rank, size) in RANKS.iter().filter(|(by, ..)| inner.contains(by)) {
        ranks.extend(number(variables, rank)?);
        sizes.extend(number(variables, size)?);
    }
    if inner.contains(&By::Kubeflow) && variables("PET_NNODES").is_some() {
        one_a_pod(variables)?;
    }
    let size = agreed(&sizes)?;
    // The index of a pod is its rank where nothing else is; without a number of ranks it may count anything.
    if ranks.is_empty() && size.is_some_and(|(_, size)| size > 1) {
        ranks.extend(number(variables, "JOB_COMPLETION_INDEX")?);
    }
    let rank = agreed(&ranks)?;
    let (rank, size) = match (rank, size) {
        (None, None | Some((_, 1))) => return Ok(None),
        (Some(rank), Some(size)) => (rank, size),
        (Some((name, rank)), None) => {
            let message =
                format!("{name}={rank} says which rank this is, and no variable how many there are");
            return Err(Failure::usage(message).hint(format!("set WORLD_SIZE, or unset {name}")));
        }
        (None, Some((name, size))) => {
            let message =
                format!("{name}={size} says how many ranks there are, and no variable which one this is");
            return Err(Failure::usage(message).hint(format!("set RANK, or unset {name}")));
        }
    };
    if rank.1 >= size.1 {
        let message = format!("{}={} is no rank of {}={}", rank.0, rank.1, size.0, size.1);
        return Err(Failure::usage(message).hint("count ranks from 0"));
    }
    let local = local(variables, size)?;
    let by_mpi = sizes.iter().any(|(name, _)| name.starts_with("OMPI_") || name.starts_with("PMI_"));
    if size.1 == 1 && !by_mpi {
        return Ok(None);
    }
    let first = first(variables, local == Some(size.1), inner.contains(&By::Slurm))?;
    Ok(Some(Outside { rank: rank.1, size: size.1, first, by_mpi }))
}

/// What to say where no variable tells where the first rank is.
pub(super) fn nowhere(rank: usize, size: usize) -> Failure {
    let message = format!("this is rank {rank} of {size}, and no variable says where rank 0 is");
    Failure::usage(message)
        .hint("set MASTER_ADDR to the machine of rank 0, or start ranks with `planaria launch`")
}

/// Launchers whose variables count. One inside another has set its own: torchrun or mpirun in a job of Slurm or in a pod say what a rank
/// is, and what is around them only counts machines.
fn innermost(variables: Variables<'_>) -> Vec<By> {
    let is_set = |name: &str| variables(name).is_some();
    if is_set("TORCHELASTIC_RUN_ID") {
        return vec![By::Torchrun];
    }
    if is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMI_SIZE") {
        return vec![By::Torchrun, By::OpenMpi, By::Pmi];
    }
    // The script of a job has the first variable too; only what srun starts has the second.
    let slurm = is_set("SLURM_STEP_NUM_TASKS").then_some(By::Slurm);
    let pod = is_set("PET_NNODES").then_some(By::Kubeflow);
    std::iter::once(By::Torchrun).chain(slurm).chain(pod).collect()
}

fn number(variables: Variables<'_>, name: &'static str) -> Result<Option<Said>, Failure> {
    let Some(text) = variables(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some((name, number))),
        Err(_) => {
            let message = format!("{name}='{text}' is not a number");
            Err(Failure::usage(message).hint(format!("set {name} to one, or unset it")))
        }
    }
}

/// What all of these say.
fn agreed(said: &[Said]) -> Result<Option<Said>, Failure> {
    let Some(first) = said.first() else { return Ok(None) };
    match said.iter().find(|other| other.1 != first.1) {
        None => Ok(Some(*first)),
        Some(other) => {
            let message =
                format!("{}={} and {}={} contradict each other", first.0, first.1, other.0, other.1);
            Err(Failure::usage(message).hint(format!("unset {} or {}", first.0, other.0)))
        }
    }
}

/// Refuses pods that should have several ranks: nothing would start them.
fn one_a_pod(variables: Variables<'_>) -> Result<(), Failure> {
    match variables("PET_NPROC_PER_NODE").as_deref() {
        None | Some("1") => Ok(()),
        Some(several) => {
            let message = format!("PET_NPROC_PER_NODE={several}, but this process is one rank");
            Err(Failure::usage(message)
                .hint("ask for one process a pod, or start `planaria train` by `torchrun`"))
        }
    }
}

/// How many ranks this machine has, where that is said.
fn local(variables: Variables<'_>, size: Said) -> Result<Option<usize>, Failure> {
    let mut found = None;
    for (rank, count) in LOCAL {
        let Some(count) = number(variables, count)? else { continue };
        let rank = number(variables, rank)?;
        let wrong = |inner: Said, outer: Said| {
            let message = format!("{}={} does not fit {}={}", inner.0, inner.1, outer.0, outer.1);
            Failure::usage(message).hint(format!("unset {}", inner.0))
        };
        if count.1 > size.1 {
            return Err(wrong(count, size));
        }
        if let Some(rank) = rank.filter(|rank| rank.1 >= count.1) {
            return Err(wrong(rank, count));
        }
        found.get_or_insert(count.1);
    }
    Ok(found)
}

/// Where the first rank is.
fn first(variables: Variables<'_>, near: bool, slurm: bool) -> Result<Option<String>, Failure> {
    let given: Vec<(&str, String)> = ["MASTER_ADDR", "PET_MASTER_ADDR"]
        .into_iter()
        .filter_map(|name| Some((name, variables(name).filter(|text| !text.is_empty())?)))
        .collect();
    if let [(a, x), (b, y)] = &given[..]
        && x != y
    {
        let message = format!("{a}={x} and {b}={y} contradict each other");
        return Err(Failure::usage(message).hint(format!("unset {a} or {b}")));
    }
    let list =
        ["SLURM_STEP_NODELIST", "SLURM_NODELIST"].into_iter().find_map(|name| Some((name, variables(name)?)));
    let host = match (given.into_iter().next(), list.filter(|_| slurm)) {
        (Some((_, host)), _) => host,
        (None, Some((name, list))) => {
            let wrong = |what: String| {
                Failure::usage(format!("{name}: {what}")).hint("set MASTER_ADDR to the machine of rank 0")
            };
            nodes::expand(&list).map_err(wrong)?.swap_remove(0)
        }
        (None, None) if near => "127.0.0.1".to_string(),
        (None, None) => return Ok(None),
    };
    let port = match port(variables)? {
        Some(port) => port,
        None if slurm => slurm_port(variables)?,
        None => PORT,
    };
    let brackets = host.contains(':') && !host.starts_with('[');
    Ok(Some(if brackets { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
}

fn port(variables: Variables<'_>) -> Result<Option<u16>, Failure> {
    let said = match number(variables, "MASTER_PORT")? {
        Some(said) => Some(said),
        None => number(variables, "PET_MASTER_PORT")?,
    };
    let Some((name, number)) = said else { return Ok(None) };
    match u16::try_from(number).ok().filter(|port| *port > 0) {
        Some(port) => Ok(Some(port)),
        None => Err(Failure::usage(format!("{name}={number} is no port")).hint("give one from 1 to 65535")),
    }
}

/// The same for all ranks of a step, and another one for other steps.
fn slurm_port(variables: Variables<'_>) -> Result<u16, Failure> {
    let said = |name| Ok::<u64, Failure>(number(variables, name)?.map_or(0, |(_, number)| number as u64));
    let (job, step) = (said("SLURM_JOB_ID")?, said("SLURM_STEP_ID")?);
    let among = SLURM_PORTS.end - SLURM_PORTS.start;
    Ok((SLURM_PORTS.start + job.wrapping_mul(31).wrapping_add(step) % among) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(list: &str) -> Result<Option<Outside>, String> {
        let list: Vec<(&str, &str)> = list.split(' ').filter_map(|word| word.split_once('=')).collect();
        let value =
            |name: &str| list.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        find(&value).map_err(|failure| failure.to_string())
    }

    fn place(rank: usize, size: usize, first: &str) -> Result<Option<Outside>, String> {
        Ok(Some(Outside { rank, size, first: Some(first.into()), by_mpi: false }))
    }

    #[test]
    fn every_launcher_is_understood() {
        assert_eq!(told(""), Ok(None));
        assert_eq!(told("WORLD_SIZE=1 RANK=0"), Ok(None));
        assert_eq!(told("RANK=2 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=7"), place(2, 4, "a:7"));
        assert_eq!(told("RANK=2 WORLD_SIZE=4 MASTER_ADDR=fe80::1"), place(2, 4, "[fe80::1]:29500"));
        assert_eq!(
            told("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"),
            place(1, 2, "127.0.0.1:29500")
        );
        let step = "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NODELIST=n[07-10] SLURM_LOCALID=1";
        assert_eq!(told(step), place(5, 8, "n07:20000"));
        assert_eq!(told(&format!("{step} SLURM_JOB_ID=100 SLURM_STEP_ID=2")), place(5, 8, "n07:23102"));
        assert_eq!(told(&format!("{step} MASTER_ADDR=ib0 MASTER_PORT=9")), place(5, 8, "ib0:9"));
        // The script of a job is no rank.
        assert_eq!(told("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_NODELIST=n[1-4]"), Ok(None));
        let pod =
            "PET_NNODES=3 PET_NODE_RANK=1 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=job-0.svc PET_MASTER_PORT=5";
        assert_eq!(told(pod), place(1, 3, "job-0.svc:5"));
        assert_eq!(
            told("JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 MASTER_ADDR=job-0.svc"),
            place(2, 3, "job-0.svc:29500")
        );
        assert_eq!(told("JOB_COMPLETION_INDEX=2"), Ok(None));
        let mpi = told("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3").unwrap().unwrap();
        assert_eq!((mpi.rank, mpi.size, mpi.first, mpi.by_mpi), (1, 3, None, true));
        // One launcher inside another.
        let nested = format!("{step} TORCHELASTIC_RUN_ID=x RANK=9 WORLD_SIZE=16 MASTER_ADDR=a");
        assert_eq!(told(&nested), place(9, 16, "a:29500"));
        let nested =
            told(&format!("{step} OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=16")).unwrap().unwrap();
        assert_eq!((nested.rank, nested.size), (9, 16));
    }

    #[test]
    fn contradictions_are_refused_with_the_variables_and_their_values() {
        let step = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n1";
        for (list, words) in [
            ("RANK=4 WORLD_SIZE=4 MASTER_ADDR=a", "RANK=4 is no rank of WORLD_SIZE=4"),
            ("RANK=0", "RANK=0 says which rank this is, and no variable how many"),
            ("WORLD_SIZE=2", "WORLD_SIZE=2 says how many ranks there are, and no variable which"),
            ("RANK=x WORLD_SIZE=2", "RANK='x' is not a number"),
            (&format!("{step} RANK=2 WORLD_SIZE=4"), "RANK=2 and SLURM_PROCID=1 contradict"),
            (&format!("{step} RANK=1 WORLD_SIZE=8"), "WORLD_SIZE=8 and SLURM_STEP_NUM_TASKS=4 contradict"),
            ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 RANK=2", "RANK=2 and OMPI_COMM_WORLD_RANK=1"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a PET_MASTER_ADDR=b", "MASTER_ADDR=a and PET_MASTER_ADDR=b"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT=70000 is no port"),
            (
                "RANK=1 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
                "LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2",
            ),
            ("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4 does not fit WORLD_SIZE=2"),
            ("PET_NNODES=2 PET_NODE_RANK=0 PET_NPROC_PER_NODE=8", "PET_NPROC_PER_NODE=8"),
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n[1",
                "SLURM_STEP_NODELIST: 'n[1' has a bracket that is not closed",
            ),
        ] {
            let error = told(list).unwrap_err();
            assert!(error.contains(words), "{list}: {error}");
        }
    }
}
