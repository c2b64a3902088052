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
mod compile;
mod cookie;
mod data;
mod element;
pub(crate) mod embedded;
mod exchange;
mod expression;
mod extract;
pub(crate) mod files;
mod function;
mod http;
mod judge;
mod model;
mod own;
mod pattern;
mod run;
mod scope;
mod script;
mod scripting;
mod shape;
mod template;
pub(crate) mod turns;
mod walk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use compile::Compiler;
pub use compile::Inventory;
use element::Element;
use files::Files;
use model::Model;
pub use own::parse_rate;
pub use run::{Amount, Offer, Outcome, Run};
pub(crate) use run::{Audience, Membership, Teller, moment};

use crate::goal::Goal;
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
        let extension = path.extension().and_then(|extension| extension.to_str());
        if let Some(kind @ ("har" | "yaml" | "yml")) = extension {
            return Err(Error::Input(format!(
                "`{}`: {kind} is no plan that can be run; plans are `.toml` and `.jmx`",
                path.display()
            )));
        }
        Self::load_with(path, Files::below(path.parent().unwrap_or(Path::new("")).to_owned()))
    }

    /// Reads a plan whose files are known by their names.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub(crate) fn load_with(path: &Path, files: Files) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::read(path, source))?;
        Self::compile(&bytes, &path.display().to_string(), files)
    }

    /// Reads a plan from bytes; relative names of data files start from `folder`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn parse(bytes: &[u8], file: &str, folder: PathBuf) -> Result<Self> {
        Self::compile(bytes, file, Files::below(folder))
    }

    fn compile(bytes: &[u8], file: &str, files: Files) -> Result<Self> {
        let compiled = compile_any(bytes, file, &files);
        if !compiled.findings.is_empty() {
            return Err(Error::Refused(compiled.findings));
        }
        let mut model = compiled.model;
        model.files = files;
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
        let audience = Audience::Person(say);
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

    /// Returns the names of the files that the plan reads while it runs, as it calls them.
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
    let bytes = std::fs::read(path).map_err(|source| Error::read(path, source))?;
    let files = Files::below(path.parent().unwrap_or(Path::new("")).to_owned());
    let compiled = compile_any(&bytes, &path.display().to_string(), &files);
    Ok(Check { findings: compiled.findings, inventory: compiled.inventory })
}

/// Compiles a plan of either form, which the name of its file tells.
fn compile_any(bytes: &[u8], file: &str, files: &Files) -> own::Compiled {
    let is_own = Path::new(file).extension().is_some_and(|extension| extension == "toml");
    if !is_own {
        let (model, inventory, findings) = compile(bytes, file);
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

fn compile(bytes: &[u8], file: &str) -> (Model, Inventory, Vec<Finding>) {
    let fault = |line, column, message| {
        let finding = Finding { file: file.to_owned(), line, column, message };
        (Model::default(), Inventory::default(), vec![finding])
    };
    // Plans in the wild say UTF-8 and hold single bytes of Latin-1 in names.
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    };
    let text = text.trim_start_matches('\u{feff}');
    // JMeter writes version 1.1 where it must escape control characters.
    let text = text.replacen("<?xml version=\"1.1\"", "<?xml version=\"1.0\"", 1);
    let options = roxmltree::ParsingOptions { nodes_limit: 4_000_000, ..Default::default() };
    let document = match roxmltree::Document::parse_with_options(&text, options) {
        Ok(document) => document,
        Err(error) => {
            let at = error.pos();
            return fault(at.row, at.col, format!("not well-formed XML: {error}"));
        }
    };
    let elements = match Element::read(&document, file) {
        Ok(elements) => elements,
        Err(finding) => return (Model::default(), Inventory::default(), vec![finding]),
    };
    let mut compiler = Compiler::new(file, &elements);
    compiler.run();
    (compiler.model, compiler.inventory, compiler.findings)
}
