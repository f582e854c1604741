//! Pictures of schedules in text: one line per rank, one column per unit of time.

use super::simulate::Simulation;

/// Draws a simulation, `unit` of time per column: forwards as `F0`, backwards as `B0`, their parts as `I0` and `W0`, each
/// with its micro-batch. From the second stage of a rank on, letters are small.
pub fn picture(told: &Simulation, unit: f64) -> String {
    let work = || told.spans.iter().flatten().filter(|span| span.action.step.is_work());
    let digits = work().map(|span| span.action.micro.to_string().len()).max().unwrap_or(1);
    let width = digits + 2;
    let columns = |time: f64| if unit > 0.0 { (time / unit).round() as usize } else { 0 };
    let mut text = String::new();
    for (rank, spans) in told.spans.iter().enumerate() {
        let mut line = String::new();
        let first = spans.iter().map(|span| span.action.stage).min();
        for span in spans.iter().filter(|span| span.action.step.is_work()) {
            let (_, letter, _) = span.action.step.marks();
            let letter = if Some(span.action.stage) == first { letter } else { letter.to_ascii_lowercase() };
            // Waiting is in the receives, so work fills its columns.
            let length = (columns(span.end) - columns(span.start)).max(1);
            line.push_str(&" ".repeat((columns(span.start) * width).saturating_sub(line.len())));
            line.push_str(&format!("{letter}{:<pad$}", span.action.micro, pad = width - 1));
            (1..length).for_each(|_| line.push_str(&format!("{:<width$}", "-")));
        }
        text.push_str(&format!("{rank}  {}\n", line.trim_end()));
    }
    text
}
