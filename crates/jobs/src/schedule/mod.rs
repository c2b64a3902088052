//! Jobs that start by the clock.

pub(crate) mod job_schedule;
pub(crate) mod schedule_rule;
