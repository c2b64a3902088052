//! Plans: `.jmx` files of JMeter, read, checked as a whole, and run natively.
//!
//! In: a file and properties. Out: an [`Inventory`] and findings, or a run with JMeter's summary lines and rows.
//!
//! Invariants
//! * Nothing is sent before the whole plan has been understood; what is not supported is named with its line.
//! * One thread of a plan is one user of the load engine; it does the same requests in the same order as in JMeter.
//!
//! Not here: sending (`load`), counting (`record`).

mod actor;
mod answer;
mod cache;
mod compile;
mod cookie;
mod data;
mod element;
pub(crate) mod embedded;
mod exchange;
mod expression;
mod extract;
mod function;
mod http;
mod judge;
mod model;
mod pattern;
mod run;
mod scope;
mod shape;
mod template;
mod walk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use compile::Compiler;
pub use compile::Inventory;
use element::Element;
use model::Model;
pub use run::{Outcome, Run};

use crate::{Error, Finding, Result};

/// A plan that can be run.
#[derive(Debug)]
pub struct Plan {
    model: Arc<Model>,
    file: String,
    /// What it is made of.
    pub inventory: Inventory,
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
        if let Some(kind @ ("toml" | "har" | "yaml" | "yml")) = extension {
            return Err(Error::Input(format!(
                "`{}`: plans in {kind} cannot be run yet, only plans of JMeter (.jmx)",
                path.display()
            )));
        }
        let bytes = std::fs::read(path).map_err(|source| Error::read(path, source))?;
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        Self::parse(&bytes, &path.display().to_string(), folder)
    }

    /// Reads a plan from bytes; relative names of data files start from `folder`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn parse(bytes: &[u8], file: &str, folder: PathBuf) -> Result<Self> {
        let (mut model, inventory, findings) = compile(bytes, file);
        if !findings.is_empty() {
            return Err(Error::Refused(findings));
        }
        model.folder = folder;
        Ok(Self { model: Arc::new(model), file: file.to_owned(), inventory })
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
        run::run(&self.model, &self.file, run, say)
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
    let (_, inventory, findings) = compile(&bytes, &path.display().to_string());
    Ok(Check { findings, inventory })
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
