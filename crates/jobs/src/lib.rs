//! Stored work: queues, schedules, workflows, and the asset jobs.
