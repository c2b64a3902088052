//! The plan of a warm-up, from its settings.

use std::path::PathBuf;

use crate::config::settings::WarmUpSettings;

/// The default maximum number of pages.
const DEFAULT_MAX_PAGES: usize = 1000;

/// The default number of pages fetched at once: renders may have just started, too.
const DEFAULT_CONCURRENCY: usize = 2;

/// The plan of a warm-up.
#[derive(Debug, Clone, Default)]
pub(crate) struct WarmUpPlan {
    pub(super) url_file: Option<PathBuf>,
    pub(super) max_pages: usize,
    pub(super) concurrency: usize,
    pub(super) host: Option<String>,
}

impl WarmUpPlan {
    pub(crate) fn from_settings(settings: &WarmUpSettings) -> Self {
        Self {
            url_file: settings.from.clone(),
            max_pages: settings.max_pages.unwrap_or(DEFAULT_MAX_PAGES),
            concurrency: settings.concurrency.unwrap_or(DEFAULT_CONCURRENCY).max(1),
            host: settings.host.clone(),
        }
    }
}
