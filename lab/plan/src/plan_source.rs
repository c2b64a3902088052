//! The files of a plan: the plan itself, and those that its include controllers name.
//!
//! All files are read before compilation. A file that several controllers name is read once; files that include each
//! other are reported when their controllers are compiled.

use roxmltree::Document;

use super::plan_file::PlanFiles;
use crate::finding::FileFinding;

/// Maximum number of files of one plan.
const MAX_PLAN_FILES: usize = 200;

/// One source file.
#[derive(Debug)]
pub(super) struct PlanSource {
    /// The name used by controllers; empty for the plan itself.
    pub(super) include_name: String,
    /// The name used in findings.
    pub(super) file: String,
    pub(super) text: String,
}

/// Reads a plan and all files that it includes.
///
/// # Errors
/// The file that cannot be read, with the controller that names it.
pub(super) fn read_sources(
    bytes: &[u8],
    file: &str,
    files: &PlanFiles,
) -> Result<Vec<PlanSource>, Vec<FileFinding>> {
    let mut sources = vec![PlanSource {
        include_name: String::new(),
        file: file.to_owned(),
        text: decode_plan_text(bytes),
    }];
    let mut findings = Vec::new();
    let mut at = 0;
    while let Some(source) = sources.get(at) {
        let included_names = match parse_document(source) {
            Ok(document) => included_file_names(&document),
            Err(finding) => return Err(vec![finding]),
        };
        let here = source.file.clone();
        for (name, line, column) in included_names {
            if sources.iter().any(|entry| entry.include_name == name) {
                continue;
            }
            let included_source = if sources.len() >= MAX_PLAN_FILES {
                Err(format!("more than {MAX_PLAN_FILES} files are included"))
            } else {
                read_source(name, files)
            };
            match included_source {
                Ok(source) => sources.push(source),
                Err(message) => {
                    let message = format!("IncludeController: {message}");
                    findings.push(FileFinding { file: here.clone(), line, column, message });
                }
            }
        }
        at += 1;
    }
    if findings.is_empty() { Ok(sources) } else { Err(findings) }
}

/// Reads the file that a controller calls `name`.
fn read_source(name: String, files: &PlanFiles) -> Result<PlanSource, String> {
    let path = files.locate(&name)?;
    let bytes = std::fs::read(&path)
        .map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    Ok(PlanSource {
        include_name: name,
        file: path.display().to_string(),
        text: decode_plan_text(&bytes),
    })
}

/// Decodes the text of a plan file.
fn decode_plan_text(bytes: &[u8]) -> String {
    // Existing plans declare UTF-8 but contain single bytes of Latin-1 in names.
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}');
    // JMeter writes version 1.1 if it has to escape control characters.
    text.replacen("<?xml version=\"1.1\"", "<?xml version=\"1.0\"", 1)
}

/// Parses the XML of a file.
///
/// # Errors
/// The position of the syntax error.
pub(super) fn parse_document(source: &PlanSource) -> Result<Document<'_>, FileFinding> {
    parse_xml(&source.text).map_err(|error| {
        let at = error.pos();
        FileFinding {
            file: source.file.clone(),
            line: at.row,
            column: at.col,
            message: format!("not well-formed XML: {error}"),
        }
    })
}

/// Parses XML with the options for plans.
pub(crate) fn parse_xml(text: &str) -> Result<Document<'_>, roxmltree::Error> {
    let options = roxmltree::ParsingOptions { nodes_limit: 4_000_000, ..Default::default() };
    Document::parse_with_options(text, options)
}

/// Returns the files that enabled include controllers name, with the controllers' positions.
fn included_file_names(document: &Document<'_>) -> Vec<(String, u32, u32)> {
    let controllers = document.descendants().filter(|node| {
        let class = node.attribute("testclass").unwrap_or_else(|| node.tag_name().name());
        class.ends_with("IncludeController") && node.attribute("enabled") != Some("false")
    });
    controllers
        .filter_map(|node| {
            let path =
                super::jmx_element::nested_text(node, "IncludeController.includepath")?.trim();
            let at = document.text_pos_at(node.range().start);
            // The compiler reports names that are empty or known only while the plan runs.
            let is_name = !path.is_empty() && !path.contains("${");
            is_name.then(|| (path.to_owned(), at.row, at.col))
        })
        .collect()
}
