//! The walking skeleton: train on two data ranks, save, stop, and continue with the same losses on two tensor ranks.

use anyhow::Result;
use planaria_e2e::Sandbox;

#[test]
fn a_run_saved_on_dp_2_goes_on_as_tp_2() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let whole = sandbox.train("whole", "dp=2", &[])?;
    let first = whole.outcome.losses[0];
    assert!(whole.outcome.losses[3] < first - 0.2, "it learns: {:?}", whole.outcome.losses);

    let begun = sandbox.train_until(2, "cut", "dp=2", &[])?;
    assert!(begun.outcome.stopped);
    let resumed = sandbox.train("cut", "tp=2", &[])?;
    assert_eq!(resumed.outcome.step, 4);
    assert_eq!(begun.outcome.losses, whole.outcome.losses[..2]);
    for (found, expected) in resumed.outcome.losses.iter().zip(&whole.outcome.losses[2..]) {
        assert!((found - expected).abs() < 1e-5 * expected, "{found} instead of {expected}");
    }
    Ok(())
}
