//! Pipeline parallelism: a schedule is data, checked and simulated before it runs.
