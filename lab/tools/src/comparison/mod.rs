//! Comparisons of programs, settings and sites: paired runs, sweeps, experiments, the journal.

pub mod experiment;
pub mod journal;
pub mod metric_comparison;
pub mod paired_run;
pub mod program;
pub mod sweep;
pub mod tuning;
pub mod verification;
