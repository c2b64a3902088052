//! `tympan export`: a site as files; and the export of a running publisher.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tympan_content::Repository;
use tympan_content_query::QueryEngine;
use tympan_home::{Home, is_home_locked, read_or_create_replication_key, require_home};
use tympan_home_backup::LiveHomeContent;
use tympan_render::{ImageSigningKey, RenderMode, Renderer};
use tympan_render_export::{
    ExportEnvironment, ExportError, ExportFinding, ExportListEntry, ExportReport, ExportWriteMode,
    FullExportStart, StaticExporter,
};
use tympan_search::SearchIndex;
use tympan_server::{ExportImageRenderer, Instance};
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};

use crate::args::{ExportArgs, ExportMode};
use crate::command::renderer::{create_plain_renderer, image_options};
use crate::command::rendition_process::{self, RenderUrgency};
use crate::command::runtime::create_runtime;
use crate::config::{self, TympanConfig};
use crate::home::{ConfiguredHome, close_home, home_access, open_home};
use crate::home_fault::home_fault;

/// The maximum number of threads for data of back ends.
const MAX_BLOCKING_THREADS: usize = 16;

/// Starts the export of a publisher to the configured folder; returns true if one is configured. `key` is its replication
/// key.
///
/// # Errors
/// If the folder cannot be used.
pub(super) fn start_export(
    instance: &Instance,
    home: &Home,
    config: &TympanConfig,
    key: &str,
) -> Result<bool, CommandFault> {
    let Some(dir) = config.export.dir.as_deref() else { return Ok(false) };
    let exporter = StaticExporter::open(config.export.export_options(&home.dir.join(dir)));
    let exporter = exporter.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
    let images = image_options(config, RenderUrgency::Background, None);
    let pictures = ExportImageRenderer::new(home.repository.clone(), images, key);
    instance.set_exporter(Arc::new(exporter), pictures);
    Ok(true)
}

/// Runs the command.
pub(crate) fn run_export(arguments: &ExportArgs) -> CommandOutcome {
    require_home(&arguments.home).map_err(home_fault)?;
    let runtime = create_runtime(MAX_BLOCKING_THREADS)?;
    // Data of back ends is requested on the runtime.
    let _guard = runtime.enter();
    if is_home_locked(&arguments.home).map_err(home_fault)? {
        return run_export_beside_instance(arguments);
    }
    let ConfiguredHome { home, config } = open_home(&arguments.home)?;
    let search = SearchIndex::open(
        home.repository.clone(),
        &home.dir.join("search"),
        config.search.search_options(rendition_process::pdf_reader()),
    );
    let search =
        Arc::new(search.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?);
    let session = ExportSession::open(&home.repository, &home.dir, &config, Some(&search));
    let done = session.and_then(|session| session.run_export(arguments));
    search.close();
    close_home(&home)?;
    done
}

/// Exports while an instance has the home open, without its full-text index.
fn run_export_beside_instance(arguments: &ExportArgs) -> CommandOutcome {
    let config = config::read_home_config(&arguments.home)?;
    let beside =
        LiveHomeContent::open(&home_access(), &arguments.home).map_err(|error| match error {
            tympan_home_backup::Error::Refused(reason) => CommandFault::usage(reason),
            tympan_home_backup::Error::Home(error) => home_fault(error),
            error => CommandFault::cannot_run(error_chain_text(&error)),
        })?;
    ExportSession::open(&beside.repository, &arguments.home, &config, None)?.run_export(arguments)
}

/// The rendering context of this command's export.
struct ExportSession<'a> {
    repository: &'a Repository,
    config: &'a TympanConfig,
    renderer: Renderer,
    images: ExportImageRenderer,
}

impl<'a> ExportSession<'a> {
    fn open(
        repository: &'a Repository,
        dir: &Path,
        config: &'a TympanConfig,
        search: Option<&Arc<SearchIndex>>,
    ) -> Result<Self, CommandFault> {
        let key = read_or_create_replication_key(dir).map_err(home_fault)?;
        let engine = Arc::new(QueryEngine::new(config.query.query_limits()));
        if let Some(search) = search {
            engine.set_full_text_index(search.clone());
        }
        let renderer = create_plain_renderer(repository, RenderMode::Publish, None, config)?
            .with_query_engine(engine)
            .with_image_key(ImageSigningKey::from_secret(&key));
        let images = image_options(config, RenderUrgency::Background, None);
        let pictures = ExportImageRenderer::new(repository.clone(), images, &key);
        Ok(Self { repository, config, renderer, images: pictures })
    }

    fn environment(&self) -> ExportEnvironment<'_> {
        ExportEnvironment {
            repository: self.repository,
            renderer: &self.renderer,
            images: &self.images,
        }
    }

    fn run_export(&self, arguments: &ExportArgs) -> CommandOutcome {
        let options = self.config.export.export_options(&arguments.out);
        let exporter = StaticExporter::open(options).map_err(export_fault)?;
        if arguments.list {
            return self.list_exports(&exporter, arguments.json);
        }
        let bar = ProgressBar::new(1).with_style(export_progress_style());
        let progress = |done: usize, total: usize| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        };
        let effect =
            if arguments.dry_run { ExportWriteMode::DryRun } else { ExportWriteMode::WriteFiles };
        let begin =
            if arguments.resume { FullExportStart::Resume } else { FullExportStart::FromScratch };
        let done = match arguments.mode {
            ExportMode::Full => exporter.export_all(self.environment(), (begin, effect), &progress),
            ExportMode::Changed => exporter.export_changes(self.environment(), effect, &progress),
        };
        bar.finish_and_clear();
        let report = done.map_err(export_fault)?;
        print_export_report(arguments, &report, &exporter);
        Ok(match report.failure_count() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(CHECK_FAILED_EXIT_CODE),
        })
    }

    fn list_exports(&self, exporter: &StaticExporter, json: bool) -> CommandOutcome {
        let (mut listed, mut count, mut left_out) = (Vec::new(), 0_usize, 0_usize);
        let mut hear = |entry: ExportListEntry| {
            match &entry.file {
                Ok(_) => count += 1,
                Err(_) => left_out += 1,
            }
            match json {
                true => listed.push(listed_json(&entry)),
                false => match entry.file {
                    Ok(file) => say!("{} -> {file}", entry.address),
                    Err(reason) => say!("{} not exported: {reason}", entry.address),
                },
            }
        };
        exporter.list_addresses(self.environment(), &mut hear).map_err(export_fault)?;
        match json {
            true => say!("{}", json!({ "addresses": listed })),
            false => say!(
                "{count} exported, {left_out} not; files that exported pages link to are exported \
                too"
            ),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn export_fault(error: ExportError) -> CommandFault {
    match error {
        ExportError::NoUnfinishedRun { .. } => CommandFault::usage(error.to_string()),
        error => CommandFault::cannot_run(error_chain_text(&error)),
    }
}

fn listed_json(entry: &ExportListEntry) -> Value {
    let address = entry.address.to_string();
    match &entry.file {
        Ok(file) => json!({ "address": address, "file": file }),
        Err(reason) => json!({ "address": address, "reason": reason.to_string() }),
    }
}

fn print_export_report(arguments: &ExportArgs, report: &ExportReport, exporter: &StaticExporter) {
    let served: PathBuf = exporter.served_dir();
    if arguments.json {
        let kind = |finding: &ExportFinding| match finding {
            ExportFinding::Failed { .. } => "failed",
            ExportFinding::BrokenLink { .. } => "broken",
            ExportFinding::Volatile { .. } => "changing",
            ExportFinding::ActiveContent { .. } => "active",
            ExportFinding::Personalized { .. } => "personal",
            ExportFinding::TooManyAddresses { .. } => "endless",
            _ => "case",
        };
        let findings: Vec<Value> = report
            .findings
            .iter()
            .map(|listed_finding| json!({ "kind": kind(listed_finding), "text": listed_finding.to_string() }))
            .collect();
        say!(
            "{}",
            json!({
                "drawn": report.rendered,
                "written": report.written,
                "unchanged": report.unchanged,
                "removed": report.removed,
                "resumed": report.resumed,
                "bytes": report.bytes,
                "left_out": report.not_exported,
                "failed": report.failure_count(),
                "findings": findings,
                "served": served,
            })
        );
        return;
    }
    for finding in &report.findings {
        let label = if finding.is_failure() { "failed" } else { "note" };
        say!("{label}: {finding}");
    }
    if report.dropped_findings > 0 {
        say!("and {} more", report.dropped_findings);
    }
    let ExportReport {
        rendered: rendered_count,
        written,
        unchanged,
        removed,
        resumed,
        not_exported: left_out,
        ..
    } = report;
    if arguments.dry_run {
        say!(
            "{rendered_count} files would be created, {removed} removed, {left_out} addresses are not \
             exported"
        );
    } else {
        let reused_count = unchanged + resumed;
        say!(
            "{written} files written, {reused_count} reused, {removed} removed; {left_out} addresses are not \
             exported"
        );
    }
    if *rendered_count == 0 && *resumed == 0 && arguments.mode == ExportMode::Full {
        say!(
            "no page has the property `export`: set it to true at the top of the site, or set `default = \
             true` in `[export]` of tympan.toml"
        );
    }
    match report.failure_count() {
        0 if arguments.dry_run => {}
        0 => say!("a web server can serve {}", served.display()),
        count => say!(
            "{count} files could not be exported; fix the causes and run it again with --mode changed"
        ),
    }
}

fn export_progress_style() -> ProgressStyle {
    let template = "exporting {wide_bar} {pos}/{len} files, {per_sec}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
