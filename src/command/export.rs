//! `tympan export`: a site as files; and what a running publisher exports with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tympan_content::Repository;
use tympan_content::query::QueryEngine;
use tympan_render::export::{Begin, Effect, Error, Exporter, Finding, Listed, Press, Report};
use tympan_render::{ImageKey, Mode, Renderer};
use tympan_search::Index;
use tympan_server::{ExportPictures, Instance, Role};

use crate::args::{Export, ExportMode};
use crate::command::backup::BesideInstance;
use crate::command::instance::{Plan, close, image_options, plain_renderer};
use crate::command::picture::Urgency;
use crate::command::{CHECK_FAILED, Fault, Outcome, runtime};
use crate::config::{self, Config};
use crate::home::{Home, chain, is_held, replication_key, require_home};
use crate::say;

/// Threads for data of back ends.
const BLOCKING_THREADS: usize = 16;

/// Lets a publisher export to the folder of its configuration; tells whether there is one.
///
/// # Errors
/// If the folder cannot be used.
pub(super) fn start(plan: &Plan<'_>, instance: &Instance) -> Result<bool, Fault> {
    let config = &plan.home.config;
    let Some(dir) = config.export.dir.as_deref().filter(|_| plan.role == Role::Publish) else {
        return Ok(false);
    };
    let dir = plan.home.dir.join(dir);
    let exporter = Exporter::open(config.export.options(&dir));
    let exporter = exporter.map_err(|error| Fault::cannot_run(chain(&error)))?;
    let pictures = ExportPictures::new(
        plan.home.repository.clone(),
        image_options(config, Urgency::Later, None),
        &replication_key(&plan.key_dir)?,
    );
    instance.export_with(Arc::new(exporter), pictures);
    Ok(true)
}

/// Runs the command.
pub(crate) fn run(arguments: &Export) -> Outcome {
    require_home(&arguments.home)?;
    let runtime = runtime(BLOCKING_THREADS)?;
    // Data of back ends is asked for on the runtime.
    let _guard = runtime.enter();
    if is_held(&arguments.home)? {
        return run_beside(arguments);
    }
    let home = Home::open_existing(&arguments.home)?;
    let search = Index::open(
        home.repository.clone(),
        &home.dir.join("search"),
        home.config.search.options(),
    );
    let search = Arc::new(search.map_err(|error| Fault::cannot_run(chain(&error)))?);
    let studio = Studio::open(&home.repository, (&home.dir, &home.config), Some(&search));
    let done = studio.and_then(|studio| studio.export(arguments));
    search.close();
    close(&home)?;
    done
}

/// Exports beside the instance that has the home open, without its full-text index.
fn run_beside(arguments: &Export) -> Outcome {
    let config = config::read(&arguments.home)?;
    let beside = BesideInstance::open(&arguments.home)?;
    Studio::open(&beside.repository, (&arguments.home, &config), None)?.export(arguments)
}

/// What an export of this command draws with.
struct Studio<'a> {
    repository: &'a Repository,
    config: &'a Config,
    renderer: Renderer,
    pictures: ExportPictures,
}

impl<'a> Studio<'a> {
    fn open(
        repository: &'a Repository,
        (dir, config): (&Path, &'a Config),
        search: Option<&Arc<Index>>,
    ) -> Result<Self, Fault> {
        let key = replication_key(dir)?;
        let engine = Arc::new(QueryEngine::new(config.query.limits()));
        if let Some(search) = search {
            engine.use_full_text(search.clone());
        }
        let renderer = plain_renderer(repository, (Mode::Publish, None), config)?
            .with_queries(engine)
            .with_image_key(ImageKey::of_secret(&key));
        let images = image_options(config, Urgency::Later, None);
        let pictures = ExportPictures::new(repository.clone(), images, &key);
        Ok(Self { repository, config, renderer, pictures })
    }

    fn press(&self) -> Press<'_> {
        Press { repository: self.repository, renderer: &self.renderer, pictures: &self.pictures }
    }

    fn export(&self, arguments: &Export) -> Outcome {
        let options = self.config.export.options(&arguments.out);
        let exporter = Exporter::open(options).map_err(fault_of)?;
        if arguments.list {
            return self.list(&exporter, arguments.json);
        }
        let bar = ProgressBar::new(1).with_style(progress_style());
        let progress = |done: usize, known: usize| {
            bar.set_length(known as u64);
            bar.set_position(done as u64);
        };
        let effect = if arguments.dry_run { Effect::Nothing } else { Effect::Write };
        let begin = if arguments.resume { Begin::Resume } else { Begin::Anew };
        let done = match arguments.mode {
            ExportMode::Full => exporter.full(self.press(), (begin, effect), &progress),
            ExportMode::Changed => exporter.changed(self.press(), effect, &progress),
        };
        bar.finish_and_clear();
        let report = done.map_err(fault_of)?;
        tell(arguments, &report, &exporter);
        Ok(match report.failures() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(CHECK_FAILED),
        })
    }

    fn list(&self, exporter: &Exporter, json: bool) -> Outcome {
        let (mut listed, mut count, mut left_out) = (Vec::new(), 0_usize, 0_usize);
        let mut hear = |one: Listed| {
            match &one.file {
                Ok(_) => count += 1,
                Err(_) => left_out += 1,
            }
            match json {
                true => listed.push(as_json(&one)),
                false => match one.file {
                    Ok(file) => say!("{} -> {file}", one.address),
                    Err(reason) => say!("{} not exported: {reason}", one.address),
                },
            }
        };
        exporter.list(self.press(), &mut hear).map_err(fault_of)?;
        match json {
            true => say!("{}", json!({ "addresses": listed })),
            false => say!("{count} exported, {left_out} not, and what exported pages link to"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn fault_of(error: Error) -> Fault {
    match error {
        Error::NotBegun { .. } => Fault::usage(error.to_string()),
        error => Fault::cannot_run(chain(&error)),
    }
}

fn as_json(one: &Listed) -> Value {
    let address = one.address.to_string();
    match &one.file {
        Ok(file) => json!({ "address": address, "file": file }),
        Err(reason) => json!({ "address": address, "reason": reason.to_string() }),
    }
}

fn tell(arguments: &Export, report: &Report, exporter: &Exporter) {
    let served: PathBuf = exporter.served();
    if arguments.json {
        let kind = |finding: &Finding| match finding {
            Finding::Failed { .. } => "failed",
            Finding::Broken { .. } => "broken",
            Finding::Changing { .. } => "changing",
            Finding::Active { .. } => "active",
            Finding::Personal { .. } => "personal",
            Finding::Endless { .. } => "endless",
            _ => "case",
        };
        let findings: Vec<Value> = report
            .findings
            .iter()
            .map(|one| json!({ "kind": kind(one), "text": one.to_string() }))
            .collect();
        say!(
            "{}",
            json!({
                "drawn": report.drawn,
                "written": report.written,
                "unchanged": report.unchanged,
                "removed": report.removed,
                "resumed": report.resumed,
                "bytes": report.bytes,
                "left_out": report.left_out,
                "failed": report.failures(),
                "findings": findings,
                "served": served,
            })
        );
        return;
    }
    for finding in &report.findings {
        let word = if finding.is_failure() { "failed" } else { "note" };
        say!("{word}: {finding}");
    }
    if report.more_findings > 0 {
        say!("and {} more", report.more_findings);
    }
    let Report { drawn, written, unchanged, removed, resumed, left_out, .. } = report;
    if arguments.dry_run {
        say!(
            "{drawn} files would be made, {removed} taken away, {left_out} addresses are not exported"
        );
    } else {
        let kept = unchanged + resumed;
        say!(
            "{written} files written, {kept} as they were, {removed} taken away; {left_out} addresses are not exported"
        );
    }
    if *drawn == 0 && *resumed == 0 && arguments.mode == ExportMode::Full {
        say!(
            "nothing says `export`: set the property to true at the top of the site, or `default = true` in `[export]` of \
             tympan.toml"
        );
    }
    match report.failures() {
        0 if arguments.dry_run => {}
        0 => say!("a web server may serve {}", served.display()),
        count => say!(
            "{count} files could not be made; run it again with --mode changed when that is mended"
        ),
    }
}

fn progress_style() -> ProgressStyle {
    let template = "exporting {wide_bar} {pos}/{len} files, {per_sec}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
