//! Health checks of components outside this crate, which `/health` shows besides those of the instance.

use parking_lot::RwLock;

type NamedFault = (&'static str, Option<String>);

/// Health checks of external components, by name. Each returns its fault immediately.
#[derive(Default)]
pub(crate) struct ExternalHealthChecks(RwLock<Vec<(&'static str, HealthFaultSource)>>);

type HealthFaultSource = Box<dyn Fn() -> Option<String> + Send + Sync>;

impl ExternalHealthChecks {
    /// Adds a check.
    pub(crate) fn add(&self, name: &'static str, source: HealthFaultSource) {
        self.0.write().push((name, source));
    }

    /// Returns the current fault of each component.
    pub(crate) fn current_faults(&self) -> Vec<NamedFault> {
        self.0.read().iter().map(|(name, source)| (*name, source())).collect()
    }
}

impl std::fmt::Debug for ExternalHealthChecks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Checks")
    }
}
