//! The budget of a run: steps, bytes of output, and depth of calls, shared by all scripts of one request.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// The limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtlLimits {
    /// Statements, outputs and operators that may be evaluated.
    pub steps: u64,
    /// Bytes that may be written, those of included scripts and resources among them.
    pub output_bytes: u64,
    /// Depth of calls of templates and of scripts within scripts. Each level takes some kilobytes of stack.
    pub depth: u32,
}

impl Default for HtlLimits {
    /// Ten million steps, 64 MiB, a depth of 100.
    fn default() -> Self {
        Self { steps: 10_000_000, output_bytes: 64 << 20, depth: 100 }
    }
}

/// A limit that a run exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HtlLimit {
    /// [`HtlLimits::steps`].
    Steps(u64),
    /// [`HtlLimits::output_bytes`].
    OutputBytes(u64),
    /// [`HtlLimits::depth`].
    Depth(u32),
}

impl fmt::Display for HtlLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(out, "{steps} steps"),
            Self::OutputBytes(bytes) => write!(out, "{bytes} bytes of output"),
            Self::Depth(depth) => write!(out, "{depth} nested calls of templates and scripts"),
        }
    }
}

/// What is left of the limits of a run.
///
/// A clone is the same budget: a host keeps one, and passes it to the scripts that it runs for `data-sly-include` and
/// `data-sly-resource`, so that they count together.
#[derive(Debug, Clone)]
pub struct HtlBudget(Rc<BudgetCounters>);

#[derive(Debug)]
struct BudgetCounters {
    limits: HtlLimits,
    steps_left: Cell<u64>,
    bytes_left: Cell<u64>,
    depth: Cell<u32>,
}

impl HtlBudget {
    /// Creates a whole budget.
    #[must_use]
    pub fn new(limits: HtlLimits) -> Self {
        Self(Rc::new(BudgetCounters {
            limits,
            steps_left: Cell::new(limits.steps),
            bytes_left: Cell::new(limits.output_bytes),
            depth: Cell::new(0),
        }))
    }

    /// Returns the number of steps that were taken.
    #[must_use]
    pub fn steps_taken(&self) -> u64 {
        self.0.limits.steps - self.0.steps_left.get()
    }

    /// Counts steps, those of this crate and those that a host takes for a script.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn spend_steps(&self, steps: u64) -> Result<(), HtlLimit> {
        let left = self.0.steps_left.get().checked_sub(steps);
        self.0.steps_left.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(HtlLimit::Steps(self.0.limits.steps))
    }

    /// Counts bytes of output.
    pub(crate) fn spend_bytes(&self, bytes: usize) -> Result<(), HtlLimit> {
        let left = self.0.bytes_left.get().checked_sub(bytes as u64);
        self.0.bytes_left.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(HtlLimit::OutputBytes(self.0.limits.output_bytes))
    }

    /// Returns the bytes of output that are left.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.0.bytes_left.get()
    }

    /// Returns the limit of the output, for text that would exceed it.
    pub(crate) fn output_limit(&self) -> HtlLimit {
        HtlLimit::OutputBytes(self.0.limits.output_bytes)
    }

    /// Enters a call; it lasts as long as the returned guard.
    pub(crate) fn enter_call(&self) -> Result<CallDepth, HtlLimit> {
        let depth = self.0.depth.get();
        if depth >= self.0.limits.depth {
            return Err(HtlLimit::Depth(self.0.limits.depth));
        }
        self.0.depth.set(depth + 1);
        Ok(CallDepth(self.clone()))
    }
}

impl Default for HtlBudget {
    fn default() -> Self {
        Self::new(HtlLimits::default())
    }
}

/// One level of a call.
#[derive(Debug)]
pub(crate) struct CallDepth(HtlBudget);

impl Drop for CallDepth {
    fn drop(&mut self) {
        let depth = &self.0.0.depth;
        depth.set(depth.get().saturating_sub(1));
    }
}
