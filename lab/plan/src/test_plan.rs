//! A loaded plan: it can be run and exported, and its file can be checked without a run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compiler::{JmxCompiler, JmxReadReport, PlanInventory};
use super::goal::LoadGoal;
use super::jmx_element::{JmxElement, JmxElementId};
use super::jmx_export::{self, JmxExport};
use super::model::PlanModel;
use super::plan_file::PlanFiles;
use super::template::TextTemplate;
use super::toml_plan::{self, CompiledPlan};
use super::{plan_source, toml_export};
use crate::finding::FileFinding;
use crate::load_portion::LoadPortion;
use crate::plan_redaction;
use crate::{Error, Result};

/// A plan that can be run.
#[derive(Debug)]
pub struct TestPlan {
    model: Arc<PlanModel>,
    file: String,
    /// The elements of the plan.
    pub inventory: PlanInventory,
    /// Goals defined in the plan itself.
    pub goals: Vec<LoadGoal>,
}

/// The result of checking a file.
#[derive(Debug, Clone)]
pub struct PlanCheck {
    /// Elements that cannot be run; empty if all can.
    pub findings: Vec<FileFinding>,
    /// The elements of the plan.
    pub inventory: PlanInventory,
}

impl TestPlan {
    /// Loads a plan.
    ///
    /// # Errors
    /// [`Error::InvalidFile`] with everything that cannot be run; [`Error::UnusableInput`] if it cannot be read.
    pub fn load(path: &Path) -> Result<Self> {
        Self::load_without_classes(path, &[])
    }

    /// Loads a plan and omits elements of the given classes that cannot be run, as if they were disabled;
    /// [`PlanInventory::excluded_elements`] lists them.
    ///
    /// # Errors
    /// As [`TestPlan::load`]; [`Error::UnusableInput`] if classes are excluded from a plan in TOML.
    pub fn load_without_classes(path: &Path, classes: &[String]) -> Result<Self> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        if let Some(kind @ ("har" | "yaml" | "yml")) = extension {
            return Err(Error::UnusableInput(format!(
                "`{}`: {kind} files cannot be run as plans; use `.toml` or `.jmx`",
                path.display()
            )));
        }
        check_excluded_classes(path, classes)?;
        let files = PlanFiles::in_folder(path.parent().unwrap_or(Path::new("")).to_owned());
        Self::load_with_files(path, files, classes)
    }

    /// Loads a plan with the given files.
    ///
    /// # Errors
    /// As [`TestPlan::load`].
    pub fn load_with_files(path: &Path, files: PlanFiles, classes: &[String]) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| unreadable_plan_error(path, &error))?;
        Self::compile(&bytes, &path.display().to_string(), files, classes)
    }

    /// Parses a plan from bytes; relative names of data files are resolved against `folder`.
    ///
    /// # Errors
    /// [`Error::InvalidFile`].
    pub fn parse(bytes: &[u8], file: &str, folder: PathBuf) -> Result<Self> {
        Self::compile(bytes, file, PlanFiles::in_folder(folder), &[])
    }

    fn compile(bytes: &[u8], file: &str, files: PlanFiles, classes: &[String]) -> Result<Self> {
        let compiled = compile_plan(bytes, file, &files, classes);
        if !compiled.findings.is_empty() {
            return Err(Error::InvalidFile(compiled.findings));
        }
        let mut model = compiled.model;
        model.files = files;
        if Path::new(file).extension().is_none_or(|extension| extension != "toml") {
            let name = Path::new(file).file_name();
            model.file_name = name.map(|name| name.to_string_lossy().into_owned());
        }
        model.required_properties =
            plan_redaction::find_required_properties(&String::from_utf8_lossy(bytes));
        let (inventory, goals) = (compiled.inventory, compiled.goals);
        Ok(Self { model: Arc::new(model), file: file.to_owned(), inventory, goals })
    }

    /// Returns a plan with one user who requests one page once.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub fn for_url(url: &str) -> Result<Self> {
        let model = Arc::new(toml_plan::model_for_url(url)?);
        Ok(Self {
            model,
            file: url.to_owned(),
            inventory: PlanInventory::default(),
            goals: Vec::new(),
        })
    }

    /// Returns the compiled plan.
    #[must_use]
    pub fn model(&self) -> &Arc<PlanModel> {
        &self.model
    }

    /// Returns the plan's file as the caller named it, or the URL of a plan for one page.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the plan's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// Resets the plan, so that the next run starts like the first one: with the first row of data, the first count,
    /// the first turn.
    pub fn rewind(&self) {
        self.model.rewind();
    }

    /// Returns the names, as written in the plan, and the paths of the files that the plan includes or reads while it
    /// runs with the given properties and seed.
    ///
    /// # Errors
    /// A name that is known only while the plan runs.
    pub fn file_paths(
        &self,
        properties: &HashMap<String, String>,
        seed: u64,
    ) -> Result<Vec<(String, PathBuf)>> {
        let (_, mut scope) = self.model.begin_run(properties, seed, LoadPortion::default());
        let mut names = Vec::new();
        for template in self.model.file_names() {
            let name = template.evaluate(&mut scope).trim().to_owned();
            if name.contains("${") {
                return Err(Error::UnusableInput(format!(
                    "{}: the file name `{name}` is known only while the plan runs, so the file cannot be sent \
                     to agents",
                    self.file
                )));
            }
            if !names.iter().any(|(key, _)| *key == name) {
                let at = self.model.files.locate(&name).map_err(Error::UnusableInput)?;
                names.push((name, at));
            }
        }
        Ok(names)
    }

    /// Exports the plan to TOML; the properties and the seed determine its numbers of threads.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] with everything that TOML cannot express, or if the plan is in TOML already.
    pub fn to_toml(&self, properties: &HashMap<String, String>, seed: u64) -> Result<String> {
        if self.is_toml() {
            return Err(Error::UnusableInput(format!("`{}` is already a TOML plan", self.file)));
        }
        toml_export::to_toml(&self.model, properties, seed)
            .map_err(|problems| self.conversion_error("TOML", &problems))
    }

    /// Exports the plan for JMeter; `order_file` is the name of the file with the order of weighted scenarios.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] with everything that JMeter has no element for, or if the plan is a JMeter plan
    /// already.
    pub fn to_jmx(&self, order_file: &str) -> Result<JmxExport> {
        if !self.is_toml() {
            return Err(Error::UnusableInput(format!("`{}` is already a JMeter plan", self.file)));
        }
        jmx_export::to_jmx(&self.model, order_file)
            .map_err(|problems| self.conversion_error("JMeter", &problems))
    }

    fn is_toml(&self) -> bool {
        Path::new(&self.file).extension().is_some_and(|extension| extension == "toml")
    }

    fn conversion_error(&self, language: &str, problems: &[String]) -> Error {
        let list: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
        Error::UnusableInput(format!(
            "{}: {language} cannot express the following; nothing was written:{list}",
            self.file
        ))
    }

    /// Returns the functions that the plan calls, with the number of uses of each.
    #[must_use]
    pub fn properties(&self) -> HashMap<String, usize> {
        self.inventory.functions.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }
}

/// Checks a plan and reports what cannot be run.
///
/// # Errors
/// [`Error::UnusableInput`] if the file cannot be read.
pub fn check_plan(path: &Path) -> Result<PlanCheck> {
    check_plan_without(path, &[])
}

/// Checks a plan with elements of some classes omitted, and reports what cannot be run.
///
/// # Errors
/// As [`TestPlan::load_without_classes`], except for what cannot be run.
pub fn check_plan_without(path: &Path, classes: &[String]) -> Result<PlanCheck> {
    check_excluded_classes(path, classes)?;
    let bytes = std::fs::read(path).map_err(|error| unreadable_plan_error(path, &error))?;
    let files = PlanFiles::in_folder(path.parent().unwrap_or(Path::new("")).to_owned());
    let compiled = compile_plan(&bytes, &path.display().to_string(), &files, classes);
    Ok(PlanCheck { findings: compiled.findings, inventory: compiled.inventory })
}

/// Compiles a plan of either format, which is recognized by the file name.
fn compile_plan(bytes: &[u8], file: &str, files: &PlanFiles, classes: &[String]) -> CompiledPlan {
    let is_own = Path::new(file).extension().is_some_and(|extension| extension == "toml");
    if !is_own {
        let (model, inventory, findings) = compile_jmx(bytes, file, files, classes);
        return CompiledPlan { model, goals: Vec::new(), inventory, findings };
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => toml_plan::compile_plan(text, file, files),
        Err(_) => {
            let message = "the file is not UTF-8".to_owned();
            let finding = FileFinding { file: file.to_owned(), line: 1, column: 1, message };
            CompiledPlan {
                model: PlanModel::default(),
                goals: Vec::new(),
                inventory: PlanInventory::default(),
                findings: vec![finding],
            }
        }
    }
}

/// Returns the error for an unreadable plan; a missing plan is an error of the caller.
fn unreadable_plan_error(path: &Path, error: &std::io::Error) -> Error {
    Error::UnusableInput(format!("cannot read `{}`: {error}", path.display()))
}

/// Checks that elements are omitted only from JMeter plans: the contents of a plan in TOML can be run, or are an error.
fn check_excluded_classes(path: &Path, classes: &[String]) -> Result<()> {
    if classes.is_empty() || path.extension().is_none_or(|extension| extension != "toml") {
        return Ok(());
    }
    Err(Error::UnusableInput(format!(
        "`{}` is a TOML plan: it has no JMeter elements to leave out",
        path.display()
    )))
}

fn compile_jmx(
    bytes: &[u8],
    file: &str,
    files: &PlanFiles,
    classes: &[String],
) -> (PlanModel, PlanInventory, Vec<FileFinding>) {
    let refused = |findings| (PlanModel::default(), PlanInventory::default(), findings);
    let sources = match plan_source::read_sources(bytes, file, files) {
        Ok(sources) => sources,
        Err(findings) => return refused(findings),
    };
    let mut documents = Vec::new();
    for source in &sources {
        match plan_source::parse_document(source) {
            Ok(document) => documents.push(document),
            Err(finding) => return refused(vec![finding]),
        }
    }
    let mut left_out: HashMap<JmxElementId, FileFinding> = HashMap::new();
    loop {
        let mut trees = Vec::new();
        let disabled = left_out.keys().copied().collect();
        for (source, document) in sources.iter().zip(&documents) {
            match JmxElement::parse_tree(document, &source.file, &disabled) {
                Ok(elements) => {
                    trees.push((source.include_name.as_str(), source.file.as_str(), elements))
                }
                Err(finding) => return refused(vec![finding]),
            }
        }
        let Some(((_, file, elements), included)) = trees.split_first() else {
            return refused(Vec::new());
        };
        let (mut model, report) = JmxCompiler::new(file, elements, included, files).compile_plan();
        let JmxReadReport { findings, mut inventory, faulty_elements } = report;
        let before = left_out.len();
        for faulty in faulty_elements {
            if classes.contains(&faulty.class) {
                left_out.insert(faulty.id, faulty.location);
            }
        }
        // The children of an omitted element are no longer checked, and may contain the error.
        if left_out.len() > before {
            continue;
        }
        let names =
            sources.iter().skip(1).map(|source| TextTemplate::literal(&source.include_name));
        model.included_files.extend(names);
        inventory.excluded_elements = left_out.into_values().collect();
        inventory.excluded_elements.sort();
        model.has_loop_indexes = sources.iter().any(|source| source.text.contains("__jm__"));
        return (model, inventory, findings);
    }
}
