//! Arrays of a device between ranks: thread ranks that share it, ranks over sockets, NCCL. `PLANARIA_DEVICE=cuda:0` names the device;
//! the test command sets it to the emulated one, whose NCCL joins threads. Without it the host must agree with itself.

use planaria_array::selftest::{Plan, Report};
use planaria_array::{Array, DType, Device};
use planaria_comm::sockets::{self, Place};
use planaria_comm::threads::{self, Options};
use planaria_comm::{AllReduce, Comm, CommExt, Error, conformance, letters, nccl, selftest};
use planaria_layout::Reduce;
use std::sync::Arc;
use std::time::Duration;

fn device() -> Device {
    std::env::var("PLANARIA_DEVICE").unwrap_or_else(|_| "cpu".into()).parse().unwrap()
}

/// Its number where several ranks may use NCCL on it; NVIDIA's own library refuses that.
fn emulated() -> Option<u32> {
    let Device::Cuda(ordinal) = device() else { return None };
    let context = planaria_cuda::Context::of(ordinal).unwrap();
    (context.info().name == "emulated device").then_some(ordinal)
}

/// Ranks as threads that are connected as processes would be.
fn connected<R: Send>(size: usize, work: impl Fn(Arc<dyn Comm>) -> R + Sync) -> Vec<R> {
    let folder = tempfile::tempdir().unwrap();
    let main = |rank: usize| {
        let place = Place { rank, size, folder: folder.path().into(), network: None };
        sockets::run(&place, &letters::Options::default(), |comm| Ok::<_, Error>(work(comm))).unwrap()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || main(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn the_self_test_of_communication_passes() {
    let device = device();
    let mut report = Report::new(device);
    selftest::run(&Plan { device, family: None, limit: None }, &mut report);
    assert!(report.is_clean(), "{}", report.text());
    let each = conformance::CHECKS.len() + 4;
    assert_eq!(report.families["comm"].passed, 2 * each);
    if device != Device::Cpu {
        assert_eq!(report.families["nccl"].passed, each, "{}", report.text());
    }
}

#[test]
fn arrays_of_a_device_go_through_the_host_between_processes() {
    let device = device();
    for end in connected(3, |comm| conformance::run_on(&comm, device)) {
        assert_eq!(end, Ok(()));
    }
    let (found, host) = (
        connected(2, |comm| conformance::digest_on(&comm, device, 3, 30)),
        threads::run(2, |comm| conformance::digest(&comm, 3, 30)),
    );
    assert_eq!(found, host);
}

#[test]
fn ranks_over_nccl_have_the_bits_of_threads() {
    let Some(ordinal) = emulated() else { return };
    let work = |comm: Arc<dyn Comm>| {
        let comm = nccl::over(comm, ordinal, &nccl::Options::default()).unwrap();
        conformance::run_on(&comm, device()).map_err(|(name, failure)| format!("{name}: {failure}"))?;
        conformance::digest_on(&comm, device(), 7, 60).map_err(|failure| failure.to_string())
    };
    for ranks in [2, 3, 4] {
        let host = threads::run(ranks, |comm| conformance::digest(&comm, 7, 60).map_err(|e| e.to_string()));
        assert_eq!(threads::run(ranks, work), host);
        assert_eq!(connected(ranks, work), host);
    }
}

fn sum(comm: &Arc<dyn Comm>) -> Result<f32, Error> {
    let x = Array::full_on(&[3], 1, DType::F32, device())?;
    comm.all_reduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum })?;
    Ok(x.to_vec::<f32>()?[0])
}

#[test]
fn a_rank_that_gives_up_or_does_not_come_ends_the_calls_of_the_others() {
    let Some(ordinal) = emulated() else { return };
    let given_up = threads::run(2, |comm| {
        let comm = nccl::over(comm, ordinal, &nccl::Options::default()).unwrap();
        assert_eq!(sum(&comm), Ok(2.0));
        match comm.rank() {
            0 => sum(&comm).unwrap_err().to_string(),
            _ => {
                std::thread::sleep(Duration::from_millis(50));
                comm.abort("no more power");
                sum(&comm).unwrap_err().to_string()
            }
        }
    });
    assert_eq!(given_up, vec!["rank 1 stopped: no more power"; 2]);
    let away = threads::try_run(&Options::new(2), |comm| {
        let options = nccl::Options { timeout: Duration::from_millis(100), ..Default::default() };
        let comm = nccl::over(comm, ordinal, &options)?;
        match comm.rank() {
            0 => sum(&comm).map(drop),
            _ => comm.barrier(),
        }
    });
    let text = away.unwrap_err().to_string();
    assert!(text.contains("all_reduce number 0 of ranks [0, 1] took over 100ms"), "{text}");
}
