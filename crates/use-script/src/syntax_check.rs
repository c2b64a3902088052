//! Checks the syntax of scripts without running them.

use std::rc::Rc;

use tympan_htl::{HostError, HtlBudget, HtlLimits, HtlValue};

use crate::error::Result;
use crate::host::{ScriptLogLevel, UseScript, UseScriptHost};
use crate::limits::UseScriptLimits;
use crate::realm::UseScriptRealm;

/// Checks that a script can be parsed. Nothing of it runs.
///
/// # Errors
/// The place and message of the first fault; or the limit that the script exceeds.
pub fn check_syntax(script: &UseScript) -> Result<()> {
    let budget = HtlBudget::new(HtlLimits::default());
    let realm = UseScriptRealm::new(Rc::new(EmptyHost), budget, UseScriptLimits::default())?;
    realm.compile(script)
}

/// The host of scripts that do not run.
#[derive(Debug)]
struct EmptyHost;

impl UseScriptHost for EmptyHost {
    fn global(&self, _: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(None)
    }

    fn find_script(&self, _: &str, _: &str) -> Result<Option<UseScript>, HostError> {
        Ok(None)
    }

    fn resource(&self, _: &str) -> Result<HtlValue, HostError> {
        Ok(HtlValue::Null)
    }

    fn now_millis(&self) -> i64 {
        0
    }

    fn random_seed(&self) -> u32 {
        0
    }

    fn log(&self, _: ScriptLogLevel, _: &str, _: &str) {}
}
