//! The settings of `[dispatcher]`, with every pattern compiled.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use tympan_web::body_limit::MinReadRate;
use tympan_web::cache_path::EncodedSlashes;

use crate::Error;
use crate::config::setting_text::{
    parse_encoded_slashes, parse_error_documents, parse_log_level, parse_min_rate, parse_statuses,
    settings_error,
};
use crate::config::settings::DispatcherSettings;
use crate::flush::warm_up_plan::WarmUpPlan;
use crate::observe::log::LogLevel;
use crate::request::host_routing::{HostRoutes, RouteHost};

/// The minimum length of a token, so that a random token cannot be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// The compiled settings.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompiledSettings {
    pub(crate) declines_root_url: bool,
    pub(crate) sends_raw_url: bool,
    pub(crate) encoded_slashes: EncodedSlashes,
    pub(crate) uses_forwarded_host: bool,
    pub(crate) restricts_uncacheable_content: bool,
    pub(crate) keep_alive: Option<Duration>,
    replaced_errors: Vec<RangeInclusive<u16>>,
    pub(crate) error_documents: BTreeMap<u16, String>,
    pub(crate) routes: HostRoutes,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) admin_token: Option<String>,
    /// The minimum rate of responses that are to be stored.
    pub(crate) min_render_rate: Option<MinReadRate>,
    pub(crate) warm_up: WarmUpPlan,
}

impl CompiledSettings {
    /// Returns the replacement for an error, if one is configured.
    pub(crate) fn error_document<'a>(
        &'a self,
        host: Option<&'a RouteHost>,
        status: u16,
    ) -> Option<&'a str> {
        let own = host.and_then(|host| host.error_documents.get(&status));
        own.or_else(|| self.error_documents.get(&status)).map(String::as_str)
    }

    /// Returns true if an error of a render gets an error document.
    pub(crate) fn replaces_error(&self, status: u16) -> bool {
        self.replaced_errors.iter().any(|range| range.contains(&status))
    }
}

impl DispatcherSettings {
    /// Compiles the settings.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key and how to fix it.
    pub(crate) fn compile_settings(&self) -> Result<CompiledSettings, Error> {
        Ok(CompiledSettings {
            declines_root_url: self.decline_root,
            sends_raw_url: self.no_canon_url,
            encoded_slashes: parse_encoded_slashes(self.encoded_slashes.as_deref())?,
            uses_forwarded_host: self.use_forwarded_host,
            restricts_uncacheable_content: self.restrict_uncacheable_content,
            keep_alive: self.keep_alive_timeout.map(|timeout| timeout.0),
            replaced_errors: parse_statuses(self.pass_error.as_deref().unwrap_or("0"))?,
            error_documents: parse_error_documents(&self.error_documents)?,
            routes: HostRoutes::compile(&self.host, self.use_processed_url.unwrap_or(true))?,
            log_level: self.log_level.as_deref().map(parse_log_level).transpose()?,
            admin_token: match &self.admin.token {
                Some(token) if token.len() < MIN_TOKEN_BYTES => {
                    let reason = format!("it needs at least {MIN_TOKEN_BYTES} characters");
                    return Err(settings_error("admin.token", reason));
                }
                token => token.clone(),
            },
            min_render_rate: parse_min_rate("renders.min_rate", self.renders.min_rate.as_deref())?,
            warm_up: WarmUpPlan::from_settings(&self.warm_up),
        })
    }
}
