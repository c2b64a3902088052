//! What the JavaScripts of a component ask for: variables, other scripts, resources, the clock.

use std::cell::OnceCell;
use std::time::{Duration, SystemTime};

use tympan_htl::{HostError, HtlValue};
use tympan_use_script::{ScriptLogLevel, UseScript, UseScriptHost};

use super::component_globals::ComponentGlobals;
use super::site_object::ResourceView;
use crate::dependency::path_dependency::hash_path_text;
use crate::resource::ContentResource;

/// The clock of scripts advances in steps of this length, and a page that read it is drawn again after one.
const CLOCK_STEP: Duration = Duration::from_secs(60);

/// The host of one component's JavaScripts.
#[derive(Debug)]
pub(super) struct SiteUseScriptHost {
    globals: ComponentGlobals,
    resource: ContentResource,
    now_millis: OnceCell<i64>,
}

impl SiteUseScriptHost {
    /// Creates the host of a component.
    pub(super) fn new(globals: ComponentGlobals, resource: ContentResource) -> Self {
        Self { globals, resource, now_millis: OnceCell::new() }
    }
}

impl UseScriptHost for SiteUseScriptHost {
    fn global(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(self.globals.make_global(name))
    }

    fn find_script(&self, name: &str, naming_script: &str) -> Result<Option<UseScript>, HostError> {
        let scope = &self.globals.access.scope;
        let types = self.resource.types();
        Ok(scope.scripts.find_use_script(&scope.reader, types, naming_script, name).cloned())
    }

    fn resource(&self, path: &str) -> Result<HtlValue, HostError> {
        // The path may have `.` and `..`.
        let path = self.resource.path().resolve(path).ok();
        Ok(path.map_or(HtlValue::Null, |path| {
            ResourceView::value_at(&self.globals.access, path.as_str())
        }))
    }

    fn now_millis(&self) -> i64 {
        *self.now_millis.get_or_init(|| {
            self.globals.access.scope.reader.record_external_data(CLOCK_STEP);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let steps = now.as_secs() / CLOCK_STEP.as_secs();
            i64::try_from(steps * CLOCK_STEP.as_secs() * 1000).unwrap_or(i64::MAX)
        })
    }

    fn random_seed(&self) -> u32 {
        let hash = hash_path_text(&self.globals.resource_path);
        u32::try_from(hash >> 32).unwrap_or_default()
    }

    fn log(&self, level: ScriptLogLevel, script: &str, message: &str) {
        match level {
            ScriptLogLevel::Debug => {
                tracing::debug!(file = script, reason = message, "a script logs")
            }
            ScriptLogLevel::Info => {
                tracing::info!(file = script, reason = message, "a script logs")
            }
            ScriptLogLevel::Warn => {
                tracing::warn!(file = script, reason = message, "a script logs")
            }
            ScriptLogLevel::Error => {
                tracing::error!(file = script, reason = message, "a script logs")
            }
        }
    }
}
