//! Our ranks as processes, started by this program as itself, and a plain stream of bytes between two hosts.

use anyhow::{Context, Result, bail};
use clap::Args;
use planaria_array::{Array, DType};
use planaria_bench::bed::{Bed, Host};
use planaria_bench::peer::Peer;
use planaria_comm::letters::Options;
use planaria_comm::sockets::{self, Network, Place};
use planaria_comm::{AllGather, AllReduce, Call, Comm, CommExt};
use planaria_layout::Reduce;
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the plain stream.
const STREAM: usize = 32 << 20;

/// What this program does when it has started itself.
#[derive(Args)]
pub(crate) struct Child {
    #[arg(long, hide = true)]
    rank: Option<usize>,
    #[arg(long, hide = true, default_value_t = 1)]
    size: usize,
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
    #[arg(long, hide = true)]
    address: Option<String>,
    #[arg(long, hide = true)]
    sink: bool,
    #[arg(long, hide = true)]
    source: Option<String>,
}

impl Child {
    pub(crate) fn is_here(&self) -> bool {
        self.rank.is_some() || self.sink || self.source.is_some()
    }

    pub(crate) fn run(self) -> Result<()> {
        if let Some(to) = &self.source {
            return Ok(TcpStream::connect(to)?.write_all(&vec![1; STREAM])?);
        }
        if self.sink {
            return sink(&self.address.context("no address")?);
        }
        let network =
            self.address.map(|address| Network { address, secret: [1; sockets::SECRET], first: None });
        let (rank, folder) = (self.rank.context("no rank")?, self.folder.context("no folder")?);
        let place = Place { rank, size: self.size, folder, network };
        let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
        Ok(sockets::run(&place, &options, |comm| serve(&comm).map_err(|error| format!("{error:#}")))?)
    }
}

/// Takes a stream and prints its bytes in a second, behind the first read.
fn sink(address: &str) -> Result<()> {
    let listener = TcpListener::bind((address, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, mut room) = (listener.accept()?.0, vec![0; 1 << 18]);
    let first = stream.read(&mut room)?;
    let (begin, mut count) = (Instant::now(), 0);
    loop {
        match stream.read(&mut room)? {
            0 => break,
            n => count += n,
        }
    }
    if first + count != STREAM {
        bail!("{} bytes came", first + count);
    }
    println!("{}", count as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}

/// Bytes a second of one TCP stream from the first host to the second.
pub(crate) fn plain_rate(bed: &Bed) -> Result<f64> {
    let own = std::env::current_exe()?;
    let [from, to] = [0, 1].map(|host| bed.host(host));
    let mut command = to.command(&own);
    command.args(["--sink", "--address", &to.address]);
    let mut sink = Peer::start(command)?;
    let port = sink.answer()?;
    let source = from.command(&own).args(["--source", &format!("{}:{port}", to.address)]).status()?;
    match source.success() {
        true => sink.answer(),
        false => bail!("the plain stream was cut"),
    }
}

/// A rank that makes the calls it is told on its standard input; the first answers with the seconds of one.
fn serve(comm: &Arc<dyn Comm>) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [collective, count, calls] = words[..] else { break };
        if collective == "end" {
            break;
        }
        let (count, calls): (usize, usize) = (count.parse()?, calls.parse()?);
        let recv = Array::full(&[count], rank + 1, DType::F32)?;
        let call = match collective {
            "all_reduce" => Call::AllReduce(AllReduce { send: recv.clone(), recv, op: Reduce::Max }),
            "all_gather" => Call::AllGather(AllGather {
                send: Array::full(&[count / size], rank + 1, DType::F32)?,
                recv,
                recv_counts: vec![count / size; size],
            }),
            other => bail!("unknown collective {other}"),
        };
        comm.barrier()?;
        let begin = Instant::now();
        (0..calls).try_for_each(|_| comm.run(call.clone()))?;
        let took = Array::from_slice(&[begin.elapsed().as_secs_f64() / calls as f64], &[1])?;
        comm.all_reduce(AllReduce { send: took.clone(), recv: took.clone(), op: Reduce::Max })?;
        if rank == 0 {
            println!("{:.9}", took.to_vec::<f64>()?[0]);
        }
    }
    Ok(())
}

/// Our ranks.
pub(crate) struct Job {
    ranks: Vec<Peer>,
    folders: PathBuf,
}

impl Job {
    /// A rank for each entry, on its host or on this machine.
    pub(crate) fn start(hosts: &[Option<Host>]) -> Result<Job> {
        let folders = std::env::temp_dir().join(format!("planaria-links-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folders);
        let mut job = Job { ranks: Vec::new(), folders };
        let own = std::env::current_exe()?;
        let folder =
            |host: &Option<Host>| job.folders.join(host.as_ref().map_or(0, |host| host.number).to_string());
        let places: Vec<PathBuf> = hosts.iter().map(folder).collect();
        for (rank, (host, place)) in hosts.iter().zip(&places).enumerate() {
            std::fs::create_dir_all(place)?;
            let mut command = host.as_ref().map_or_else(|| Command::new(&own), |host| host.command(&own));
            command
                .args(["--rank", &rank.to_string(), "--size", &hosts.len().to_string(), "--folder"])
                .arg(place);
            if let Some(host) = host {
                command.args(["--address", &host.address]);
            }
            command.stderr(Stdio::inherit());
            job.ranks.push(Peer::start(command)?);
        }
        if hosts.iter().all(Option::is_some) {
            bring_addresses(&places)?;
        }
        Ok(job)
    }

    pub(crate) fn round(&mut self, collective: &str, count: usize, calls: usize) -> Result<f64> {
        self.ranks.iter_mut().try_for_each(|rank| rank.ask(collective, count, calls))?;
        self.ranks.first_mut().context("no ranks")?.answer()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // All are told before any is waited for.
        self.ranks.iter_mut().for_each(|rank| drop(rank.ask("end", 0, 0)));
        self.ranks.clear();
        let _ = std::fs::remove_dir_all(&self.folders);
    }
}

/// Writes where each rank listens to the folders of the others.
fn bring_addresses(places: &[PathBuf]) -> Result<()> {
    let begin = Instant::now();
    let mut missing: Vec<usize> = (0..places.len()).collect();
    while !missing.is_empty() {
        missing.retain(|&rank| !bring(places, rank).unwrap_or(false));
        if begin.elapsed() > Duration::from_secs(30) {
            bail!("ranks {missing:?} do not listen");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn bring(places: &[PathBuf], rank: usize) -> std::io::Result<bool> {
    let address = std::fs::read_to_string(sockets::address_file(&places[rank], rank))?;
    let others = places.iter().filter(|place| **place != places[rank]);
    others
        .map(PathBuf::as_path)
        .try_for_each(|place: &Path| sockets::write_address(place, rank, &address))?;
    Ok(true)
}
