//! Variants of what is learned: each changes the first gradient by what it says.

use super::*;

#[test]
fn variants_change_the_gradient_by_what_they_say() -> Result<()> {
    let sandbox = sandbox()?;
    let mut set = settings(&sandbox, "grpo", "prompts.jsonl");
    set.extend(["train.steps=1", "optim.clip=0", "rl.scale=none", "rl.temperature=0.9"].map(String::from));
    type Told = Vec<(String, f64)>;
    let first = |name: &str, more: &[&str]| -> Result<(f64, bool, Told)> {
        let set: Vec<&str> = set.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let recorder = Recorder::shared();
        Trainer::new(sandbox.config(name, "", &set)?).observer(recorder.clone()).run(None)?;
        let (mut found, mut told) = (None, Vec::new());
        for event in recorder.events() {
            match event {
                Event::Step(step) => found = Some((step.grad_norm, step.skipped)),
                Event::Figures { values, .. } => told = values,
                _ => {}
            }
        }
        let (norm, skipped) = found.context("no step")?;
        Ok((norm, skipped, told))
    };
    let (plain, skipped, _) = first("plain", &[])?;
    ensure!(plain > 0.0 && !skipped);
    // Of four responses each is compared with the three others: a third more.
    let (others, ..) = first("others", &["rl.advantage=leave_one_out"])?;
    ensure!((others / plain - 4.0 / 3.0).abs() < 1e-5, "{others} and {plain}");
    // A token was drawn about as likely as the policy finds it, so that it counts a half.
    let (half, ..) = first("half", &["rl.tis_cap=0.5"])?;
    ensure!((half / plain - 0.5).abs() < 1e-5, "{half} and {plain}");
    let (whole, ..) = first("whole", &["rl.tis_cap=2"])?;
    ensure!((whole / plain - 1.0).abs() < 1e-3, "{whole} and {plain}");
    let (all, skipped, _) = first("all", &["rl.advantage=reinforce"])?;
    ensure!(all > 0.0 && all != plain && !skipped);
    // One token is never an end here: nothing is left to learn from, and the step is skipped.
    let (_, skipped, told) = first("none", &["rl.mask_truncated=true", "rl.max_new_tokens=1"])?;
    let finished = told.iter().find(|(name, _)| name == "finished").context("not told")?.1;
    ensure!(skipped == (finished == 0.0), "{finished} finished, skipped: {skipped}");
    Ok(())
}
