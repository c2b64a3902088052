//! Plans: `.jmx` files of JMeter and our own in TOML, read, checked as a whole, and run by one engine.
//!
//! In: a file and properties. Out: an [`Inventory`] and findings, or a run with JMeter's summary lines and rows.
//!
//! Invariants
//! * Nothing is sent before the whole plan has been understood; what is not supported is named with its line.
//! * One thread of a plan is one user of the load engine; it does the same requests in the same order as in JMeter.
//!
//! Not here: sending (`load`), counting (`record`).

mod actor;
pub(crate) mod answer;
pub(crate) mod cache;
mod charset;
mod choice;
mod compile;
mod convert;
mod cookie;
mod data;
mod date;
mod digest;
mod element;
pub(crate) mod embedded;
mod exchange;
mod export;
mod expression;
mod extract;
pub(crate) mod files;
mod function;
mod html_entity;
mod http;
mod include;
mod json_path;
mod judge;
mod markup;
mod model;
mod own;
mod pace;
mod pattern;
mod perl;
mod request;
mod run;
mod sample;
mod scope;
mod script;
mod scripting;
mod section;
mod shape;
mod subs;
mod subset;
mod template;
pub(crate) mod turns;
mod walk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use compile::Compiler;
pub use compile::Inventory;
use element::{Element, ElementId};
pub use export::Exported;
use files::Files;
pub(crate) use include::read_xml;
use model::Model;
pub use own::parse_rate;
pub(crate) use own::{mix, nearest};
pub use run::{Amount, Offer, Outcome, Run};
pub(crate) use run::{Audience, Membership, Teller, moment};
pub use subset::{SUBSETS, subset_of};
use template::Template;

use crate::goal::Goal;
use crate::kept;
use crate::live::Live;
use crate::load::Observer;
use crate::{Error, Finding, Result};

/// A plan that can be run.
#[derive(Debug)]
pub struct Plan {
    model: Arc<Model>,
    file: String,
    /// What it is made of.
    pub inventory: Inventory,
    /// Goals that the plan itself sets.
    pub goals: Vec<Goal>,
}

/// What a check of a file found.
#[derive(Debug, Clone)]
pub struct Check {
    /// What cannot be run; empty if all can.
    pub findings: Vec<Finding>,
    /// What the plan is made of.
    pub inventory: Inventory,
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`Error::Refused`] with everything that cannot be run; [`Error::File`].
    pub fn load(path: &Path) -> Result<Self> {
        Self::load_without(path, &[])
    }

    /// Reads a plan and leaves out elements of the given classes that cannot be run, as if they were disabled;
    /// [`Inventory::left_out`] names them.
    ///
    /// # Errors
    /// As [`Plan::load`]; [`Error::Input`] for classes that are to be left out of a plan in TOML.
    pub fn load_without(path: &Path, classes: &[String]) -> Result<Self> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        if let Some(kind @ ("har" | "yaml" | "yml")) = extension {
            return Err(Error::Input(format!(
                "`{}`: {kind} is no plan that can be run; plans are `.toml` and `.jmx`",
                path.display()
            )));
        }
        check_classes(path, classes)?;
        let files = Files::below(path.parent().unwrap_or(Path::new("")).to_owned());
        Self::load_with(path, files, classes)
    }

    /// Reads a plan whose files are known by their names.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub(crate) fn load_with(path: &Path, files: Files, classes: &[String]) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
        Self::compile(&bytes, &path.display().to_string(), files, classes)
    }

    /// Reads a plan from bytes; relative names of data files start from `folder`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn parse(bytes: &[u8], file: &str, folder: PathBuf) -> Result<Self> {
        Self::compile(bytes, file, Files::below(folder), &[])
    }

    fn compile(bytes: &[u8], file: &str, files: Files, classes: &[String]) -> Result<Self> {
        let compiled = compile_any(bytes, file, &files, classes);
        if !compiled.findings.is_empty() {
            return Err(Error::Refused(compiled.findings));
        }
        let mut model = compiled.model;
        model.files = files;
        if Path::new(file).extension().is_none_or(|extension| extension != "toml") {
            let name = Path::new(file).file_name();
            model.file_name = name.map(|name| name.to_string_lossy().into_owned());
        }
        model.needs = kept::needs(&String::from_utf8_lossy(bytes));
        let (inventory, goals) = (compiled.inventory, compiled.goals);
        Ok(Self { model: Arc::new(model), file: file.to_owned(), inventory, goals })
    }

    /// Returns the plan of one user who gets one page once.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn of_url(url: &str) -> Result<Self> {
        let model = Arc::new(own::of_url(url)?);
        Ok(Self { model, file: url.to_owned(), inventory: Inventory::default(), goals: Vec::new() })
    }

    /// Returns the plan's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// [`Error::Refused`] if numbers of the plan are none with these properties; [`Error::File`]; [`Error::Engine`].
    pub fn run(&self, run: &Run, say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let audience = Audience::Person { say, live: None };
        run::run(&self.model, &self.file, run, &Membership::default(), audience)
    }

    /// Runs the plan and shows it meanwhile.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run_shown(
        &self,
        run: &Run,
        say: &mut dyn FnMut(&str),
        live: &mut Live,
    ) -> Result<Outcome> {
        let audience = Audience::Person { say, live: Some(live) };
        run::run(&self.model, &self.file, run, &Membership::default(), audience)
    }

    /// Runs the part of the plan that falls to this process.
    pub(crate) fn run_as(
        &self,
        run: &Run,
        member: &Membership,
        process: &mut dyn Observer,
    ) -> Result<Outcome> {
        run::run(&self.model, &self.file, run, member, Audience::Process(process))
    }

    /// Lets the next run begin as the first one: with the first row of data, the first count, the first turn.
    pub(crate) fn rewind(&self) {
        self.model.rewind();
    }

    /// Returns the names of the files that the plan includes or reads while it runs, as it calls them.
    ///
    /// # Errors
    /// The name that is known only while the plan runs.
    pub fn files(&self, run: &Run) -> Result<Vec<(String, PathBuf)>> {
        let (_, mut scope) = run::begin(&self.model, run, &Membership::default());
        let mut names = Vec::new();
        for template in self.model.file_names() {
            let name = template.draw(&mut scope).trim().to_owned();
            if name.contains("${") {
                return Err(Error::Input(format!(
                    "{}: the name of the file `{name}` is known only while the plan runs, so it cannot be sent to agents",
                    self.file
                )));
            }
            if !names.iter().any(|(known, _)| *known == name) {
                let at = self.model.files.locate(&name).map_err(Error::Input)?;
                names.push((name, at));
            }
        }
        Ok(names)
    }

    /// Writes the plan in TOML; `run` gives the properties that its numbers of threads come from.
    ///
    /// # Errors
    /// [`Error::Input`] with everything that TOML has no words for, or if the plan stands in TOML already.
    pub fn to_toml(&self, run: &Run) -> Result<String> {
        if self.is_own() {
            return Err(Error::Input(format!("`{}` stands in TOML already", self.file)));
        }
        convert::to_toml(&self.model, run).map_err(|problems| self.inexpressible("TOML", &problems))
    }

    /// Writes the plan for JMeter; `order_file` names the file that takes the order of weighted scenarios.
    ///
    /// # Errors
    /// [`Error::Input`] with everything that JMeter has no element for, or if the plan is one of JMeter's already.
    pub fn to_jmx(&self, order_file: &str) -> Result<Exported> {
        if !self.is_own() {
            return Err(Error::Input(format!("`{}` is a plan of JMeter already", self.file)));
        }
        export::to_jmx(&self.model, order_file)
            .map_err(|problems| self.inexpressible("JMeter", &problems))
    }

    fn is_own(&self) -> bool {
        Path::new(&self.file).extension().is_some_and(|extension| extension == "toml")
    }

    fn inexpressible(&self, language: &str, problems: &[String]) -> Error {
        let list: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
        Error::Input(format!(
            "{}: {language} has no words for this; nothing was written:{list}",
            self.file
        ))
    }

    /// Returns the properties that a plan may be given, with the text that asks for each.
    #[must_use]
    pub fn properties(&self) -> HashMap<String, usize> {
        self.inventory.functions.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }
}

/// Reads a plan and says what of it cannot be run.
///
/// # Errors
/// [`Error::File`].
pub fn check(path: &Path) -> Result<Check> {
    check_without(path, &[])
}

/// Reads a plan and says what of it cannot be run where elements of some classes are left out.
///
/// # Errors
/// As [`Plan::load_without`], except for what cannot be run.
pub fn check_without(path: &Path, classes: &[String]) -> Result<Check> {
    check_classes(path, classes)?;
    let bytes = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    let files = Files::below(path.parent().unwrap_or(Path::new("")).to_owned());
    let compiled = compile_any(&bytes, &path.display().to_string(), &files, classes);
    Ok(Check { findings: compiled.findings, inventory: compiled.inventory })
}

/// Compiles a plan of either form, which the name of its file tells.
fn compile_any(bytes: &[u8], file: &str, files: &Files, classes: &[String]) -> own::Compiled {
    let is_own = Path::new(file).extension().is_some_and(|extension| extension == "toml");
    if !is_own {
        let (model, inventory, findings) = compile(bytes, file, files, classes);
        return own::Compiled { model, goals: Vec::new(), inventory, findings };
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => own::compile(text, file, files),
        Err(_) => {
            let message = "the file is not UTF-8".to_owned();
            let finding = Finding { file: file.to_owned(), line: 1, column: 1, message };
            own::Compiled {
                model: Model::default(),
                goals: Vec::new(),
                inventory: Inventory::default(),
                findings: vec![finding],
            }
        }
    }
}

/// A plan that is not there was named wrongly.
fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Input(format!("cannot read `{}`: {error}", path.display()))
}

/// Elements are left out only of plans of JMeter: what stands in a plan in TOML can be run, or is a mistake.
fn check_classes(path: &Path, classes: &[String]) -> Result<()> {
    if classes.is_empty() || path.extension().is_none_or(|extension| extension != "toml") {
        return Ok(());
    }
    Err(Error::Input(format!(
        "`{}` is a plan in TOML: there are no elements of JMeter to leave out",
        path.display()
    )))
}

fn compile(
    bytes: &[u8],
    file: &str,
    files: &Files,
    classes: &[String],
) -> (Model, Inventory, Vec<Finding>) {
    let refused = |findings| (Model::default(), Inventory::default(), findings);
    let sources = match include::read(bytes, file, files) {
        Ok(sources) => sources,
        Err(findings) => return refused(findings),
    };
    let mut documents = Vec::new();
    for source in &sources {
        match include::parse(source) {
            Ok(document) => documents.push(document),
            Err(finding) => return refused(vec![finding]),
        }
    }
    let mut left_out: HashMap<ElementId, Finding> = HashMap::new();
    loop {
        let mut trees = Vec::new();
        let disabled = left_out.keys().copied().collect();
        for (source, document) in sources.iter().zip(&documents) {
            match Element::read(document, &source.file, &disabled) {
                Ok(elements) => trees.push((source.name.as_str(), source.file.as_str(), elements)),
                Err(finding) => return refused(vec![finding]),
            }
        }
        let Some(((_, file, elements), included)) = trees.split_first() else {
            return refused(Vec::new());
        };
        let mut compiler = Compiler::new(file, elements, included, files);
        compiler.run();
        let before = left_out.len();
        for faulty in compiler.faulty.take() {
            if classes.contains(&faulty.class) {
                left_out.insert(faulty.id, faulty.place);
            }
        }
        // What stands below an element that is left out is not looked at any more, and may be what is wrong.
        if left_out.len() > before {
            continue;
        }
        let names = sources.iter().skip(1).map(|source| Template::literal(&source.name));
        compiler.model.included.extend(names);
        compiler.inventory.left_out = left_out.into_values().collect();
        compiler.inventory.left_out.sort();
        compiler.model.has_loop_indexes =
            sources.iter().any(|source| source.text.contains("__jm__"));
        return (compiler.model, compiler.inventory, compiler.findings);
    }
}
