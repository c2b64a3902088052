//! The filter of a package: selects its nodes and their import mode.
//!
//! In: `META-INF/vault/filter.xml`. Out: for a node path, the [`FilterCoverage`] that decides its treatment.
//!
//! Invariants
//! * Only the first filter whose root covers a path decides.
//! * A pattern matches the whole path. The last matching pattern decides. If none matches, a filter that begins with an
//!   include excludes the path, and one that begins with an exclude includes it.
//!
//! Not here: the effect of an [`ImportMode`] on a node (`installer`).

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use regex::{Regex, RegexBuilder};
use tympan_content::{NodePath, Property, Subtree, Value, ValueType};

use crate::Result;
use crate::archive::PackageFileName;
use crate::keyword;
use crate::xml_reader::{XmlElement, XmlItem, XmlReader, push_escaped_attribute};

/// The treatment of existing content when a package is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// Covered content is replaced by that of the package; content that the package lacks is removed.
    Replace,
    /// Existing nodes stay unchanged; missing ones are added.
    Merge,
    /// Nodes of the package replace the properties of existing ones, except their type; nothing is removed.
    Update,
    /// Missing nodes and missing properties are added; nothing is changed.
    MergeProperties,
    /// Missing nodes and properties are added, existing properties are replaced; nothing is removed.
    UpdateProperties,
}

impl ImportMode {
    const ALL: [(Self, &str); 5] = [
        (Self::Replace, "replace"),
        (Self::Merge, "merge"),
        (Self::Update, "update"),
        (Self::MergeProperties, "merge_properties"),
        (Self::UpdateProperties, "update_properties"),
    ];

    /// Returns the mode's name as `filter.xml` spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        keyword::keyword_of(&Self::ALL, self)
    }

    fn from_name(text: &str) -> Option<Self> {
        keyword::find_by_keyword(&Self::ALL, text)
    }
}

/// The result of a filter for one node path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterCoverage {
    /// The package contains the path.
    Contained(ImportMode),
    /// The path is above the root of a filter: a missing node is created, an existing one is never changed.
    Ancestor,
    /// A filter covers the path, but its patterns exclude it.
    Excluded,
    /// No filter covers the path.
    Outside,
    /// The package has no filter: missing nodes are created, existing ones are not changed.
    Unfiltered,
}

/// The filter of a package.
#[derive(Debug, Clone, Default)]
pub struct PackageFilter {
    roots: Vec<FilterRoot>,
    /// The index of the first filter with a root.
    first_by_root: HashMap<String, usize>,
    /// The paths above filter roots.
    ancestor_paths: HashSet<String>,
}

/// One `filter` element: a subtree, its import mode, and its patterns.
#[derive(Debug, Clone)]
pub struct FilterRoot {
    /// The root of the subtree.
    pub root: NodePath,
    /// The import mode of its content.
    pub mode: ImportMode,
    /// True if it only names content to remove (`type="cleanup"`).
    pub is_cleanup: bool,
    node_rules: PackageFilterRules,
    property_rules: PackageFilterRules,
}

#[derive(Debug, Clone, Default)]
struct PackageFilterRules(Vec<PackageFilterRule>);

#[derive(Debug, Clone)]
struct PackageFilterRule {
    is_include: bool,
    pattern: String,
    regex: Regex,
}

impl PackageFilterRule {
    fn parse(
        includes: bool,
        pattern: &str,
        budget: &mut RegexMemoryBudget,
    ) -> Result<Self, String> {
        let regex = budget.compile_regex(&format!("^(?:{})$", translate_java_pattern(pattern)));
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => format!(
                "the pattern `{pattern}` exceeds the size limit for one or for all patterns; use `.*` instead \
                 of counts"
            ),
            _ => format!(
                "the pattern `{pattern}` is malformed or uses lookaround, which is not supported; use \
                 additional includes and excludes instead"
            ),
        })?;
        Ok(Self { is_include: includes, pattern: pattern.to_owned(), regex })
    }
}

/// The memory limit for the patterns of a filter.
struct RegexMemoryBudget {
    remaining_bytes: usize,
}

impl Default for RegexMemoryBudget {
    fn default() -> Self {
        Self { remaining_bytes: 32 << 20 }
    }
}

impl RegexMemoryBudget {
    /// Size limits for a compiled pattern, tried in order: nearly all patterns need little.
    const REGEX_SIZE_LIMITS: [usize; 3] = [8 << 10, 64 << 10, 1 << 20];

    fn compile_regex(&mut self, pattern: &str) -> Result<Regex, regex::Error> {
        let mut outcome = Err(regex::Error::CompiledTooBig(self.remaining_bytes));
        let left = self.remaining_bytes;
        for size in Self::REGEX_SIZE_LIMITS.into_iter().filter(|size| *size <= left) {
            outcome = RegexBuilder::new(pattern).size_limit(size).dfa_size_limit(size).build();
            if outcome.is_ok() {
                self.remaining_bytes -= size;
            }
            if !matches!(outcome, Err(regex::Error::CompiledTooBig(_))) {
                break;
            }
        }
        outcome
    }
}

impl PackageFilterRules {
    fn accepts(&self, path: &str) -> bool {
        let Some(first) = self.0.first() else {
            return true;
        };
        let last = self.0.iter().rev().find(|rule| rule.regex.is_match(path));
        last.map_or(!first.is_include, |rule| rule.is_include)
    }
}

impl FilterRoot {
    /// Creates a filter for a whole subtree.
    #[must_use]
    pub fn new(root: NodePath, mode: ImportMode) -> Self {
        Self {
            root,
            mode,
            is_cleanup: false,
            node_rules: PackageFilterRules::default(),
            property_rules: PackageFilterRules::default(),
        }
    }

    /// Returns the patterns in the notation of definitions: `include:…`, `exclude:…`, those for properties with an `@`.
    fn rule_texts(&self) -> Vec<String> {
        let text = |rule: &PackageFilterRule, mark: &str| {
            format!(
                "{mark}{}:{}",
                if rule.is_include { "include" } else { "exclude" },
                rule.pattern
            )
        };
        let nodes = self.node_rules.0.iter().map(|rule| text(rule, ""));
        nodes.chain(self.property_rules.0.iter().map(|rule| text(rule, "@"))).collect()
    }

    fn add_rule(
        &mut self,
        file: &PackageFileName,
        text: &str,
        budget: &mut RegexMemoryBudget,
    ) -> Result<()> {
        let (rule, rules) = match text.strip_prefix('@') {
            Some(rule) => (rule, &mut self.property_rules),
            None => (text, &mut self.node_rules),
        };
        let parsed = match rule.split_once(':') {
            Some(("include", pattern)) => PackageFilterRule::parse(true, pattern, budget),
            Some(("exclude", pattern)) => PackageFilterRule::parse(false, pattern, budget),
            _ => Err(format!("the rule `{text}` must begin with `include:` or `exclude:`")),
        };
        rules.0.push(parsed.map_err(|message| file.to_error(0, message))?);
        Ok(())
    }

    /// Returns true if patterns exclude a part of the subtree.
    fn has_node_patterns(&self) -> bool {
        !self.node_rules.0.is_empty()
    }
}

impl PackageFilter {
    /// Creates a filter from roots, in order of evaluation.
    #[must_use]
    pub fn new(roots: Vec<FilterRoot>) -> Self {
        let (mut positions, mut above) = (HashMap::new(), HashSet::new());
        for (position, set) in roots.iter().enumerate() {
            positions.entry(set.root.as_str().to_owned()).or_insert(position);
            let mut parent = set.root.parent();
            // If an ancestor is already recorded, all of its ancestors are.
            while let Some(path) = parent.take_if(|path| above.insert(path.as_str().to_owned())) {
                parent = path.parent();
            }
        }
        Self { roots, first_by_root: positions, ancestor_paths: above }
    }

    /// Parses the text of a `filter.xml`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidPackage`] with `name` and the line of the first fault.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        parse_filter(&PackageFileName::new(name), text)
    }

    /// Returns the filter roots in order.
    #[must_use]
    pub fn roots(&self) -> &[FilterRoot] {
        &self.roots
    }

    /// Returns the coverage of a node path.
    #[must_use]
    pub fn coverage(&self, path: &NodePath) -> FilterCoverage {
        if self.roots.is_empty() {
            return FilterCoverage::Unfiltered;
        }
        let covering = self.covering_root(path);
        if let Some(set) = covering.filter(|set| set.node_rules.accepts(path.as_str())) {
            return FilterCoverage::Contained(set.mode);
        }
        if self.is_above_roots(path) {
            return FilterCoverage::Ancestor;
        }
        if covering.is_some() { FilterCoverage::Excluded } else { FilterCoverage::Outside }
    }

    /// Returns true if the root of a filter lies below a path.
    pub(crate) fn is_above_roots(&self, path: &NodePath) -> bool {
        self.ancestor_paths.contains(path.as_str())
    }

    /// Returns true if the package contains this property of a node that it contains.
    #[must_use]
    pub fn includes_property(&self, node: &NodePath, property: &str) -> bool {
        let Some(set) = self.covering_root(node) else {
            return true;
        };
        if set.property_rules.0.is_empty() {
            return true;
        }
        let separator = if node.is_root() { "" } else { "/" };
        set.property_rules.accepts(&format!("{node}{separator}{property}"))
    }

    /// Returns true if everything below a contained path is contained in the same way, whatever its name.
    pub(crate) fn is_uniform_below(&self, path: &NodePath) -> bool {
        let Some(covering) = self.covering_root(path) else {
            return false;
        };
        let asked_before = || self.roots.iter().take_while(|set| !std::ptr::eq(*set, covering));
        !covering.has_node_patterns()
            && (!self.is_above_roots(path) || asked_before().all(|set| !set.root.is_within(path)))
    }

    /// Finds the first filter whose root is the path or above it.
    fn covering_root(&self, path: &NodePath) -> Option<&FilterRoot> {
        let text = path.as_str();
        let parents = text.rmatch_indices('/').filter_map(|(at, _)| text.get(..at.max(1)));
        let position =
            std::iter::once(text).chain(parents).filter_map(|above| self.first_by_root.get(above));
        self.roots.get(*position.min()?)
    }

    /// Returns true if a path is the root of a filter or lies below one.
    pub(crate) fn covers(&self, path: &NodePath) -> bool {
        self.covering_root(path).is_some()
    }

    /// Returns the same filter with another mode for all roots.
    pub(crate) fn with_mode(&self, mode: ImportMode) -> Self {
        let roots = self.roots.iter().map(|set| FilterRoot { mode, ..set.clone() });
        Self::new(roots.collect())
    }

    /// Writes the filter as nodes, in the form of stored package definitions.
    pub(crate) fn to_node(&self, name: &str) -> Subtree {
        let mut node = Subtree::new(name, "nt:unstructured");
        for (position, set) in self.roots.iter().enumerate() {
            let rules = set.rule_texts().into_iter().map(Value::String).collect();
            let mut child = Subtree::new(format!("f{position}"), "nt:unstructured")
                .with_property("root", set.root.as_str())
                .with_property("rules", Property::List(ValueType::String, rules));
            if set.mode != ImportMode::Replace {
                child = child.with_property("mode", set.mode.name());
            }
            node.children.push(child);
        }
        node
    }

    /// Reads the filter from such nodes.
    ///
    /// # Errors
    /// [`crate::Error::InvalidPackage`] with the name of the invalid node.
    pub(crate) fn from_node(node: &Subtree) -> Result<Self> {
        let (mut roots, mut budget) = (Vec::new(), RegexMemoryBudget::default());
        for child in &node.children {
            let file = PackageFileName::new(&format!("filter/{}", child.name));
            let text = child.text("root").unwrap_or_default();
            let root = NodePath::new(text).map_err(|error| file.to_error(0, error.to_string()))?;
            let mode = child.text("mode").filter(|mode| !mode.is_empty());
            let mode = mode.map_or(Some(ImportMode::Replace), ImportMode::from_name);
            let mode = mode.ok_or_else(|| file.to_error(0, "its mode is unknown"))?;
            let mut set = FilterRoot::new(root, mode);
            for value in child.properties.get("rules").map(Property::values).unwrap_or_default() {
                set.add_rule(&file, &value.to_text(), &mut budget)?;
            }
            roots.push(set);
        }
        Ok(Self::new(roots))
    }

    /// Writes the filter as a `filter.xml`.
    #[must_use]
    pub fn to_xml(&self) -> String {
        let mut out = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<workspaceFilter version=\"1.0\">\n",
        );
        for set in &self.roots {
            push_filter_root(&mut out, set);
        }
        out.push_str("</workspaceFilter>\n");
        out
    }
}

fn push_filter_root(out: &mut String, set: &FilterRoot) {
    out.push_str("    <filter root=\"");
    push_escaped_attribute(out, set.root.as_str());
    out.push('"');
    if set.mode != ImportMode::Replace {
        // Writing to a string cannot fail.
        let _ = write!(out, " mode=\"{}\"", set.mode.name());
    }
    if set.is_cleanup {
        out.push_str(" type=\"cleanup\"");
    }
    if set.node_rules.0.is_empty() && set.property_rules.0.is_empty() {
        out.push_str("/>\n");
        return;
    }
    out.push_str(">\n");
    let nodes = set.node_rules.0.iter().map(|rule| (rule, ""));
    let properties = set.property_rules.0.iter().map(|rule| (rule, " matchProperties=\"true\""));
    for (rule, suffix) in nodes.chain(properties) {
        let name = if rule.is_include { "include" } else { "exclude" };
        let _ = write!(out, "        <{name} pattern=\"");
        push_escaped_attribute(out, &rule.pattern);
        let _ = writeln!(out, "\"{suffix}/>");
    }
    out.push_str("    </filter>\n");
}

/// Parses a filter; like [`PackageFilter::parse`], with the display name of the file for messages.
pub(crate) fn parse_filter(file: &PackageFileName, text: &[u8]) -> Result<PackageFilter> {
    let mut xml = XmlReader::new(file, text)?;
    let mut roots: Vec<FilterRoot> = Vec::new();
    let mut budget = RegexMemoryBudget::default();
    let mut depth = 0;
    loop {
        match xml.next_item()? {
            XmlItem::StartElement(element) => {
                match depth {
                    0 => check_filter_root_element(file, &element)?,
                    1 => roots.push(read_filter_root(file, &element)?),
                    2 => {
                        let (rule, is_for_properties) =
                            read_filter_rule(file, &element, &mut budget)?;
                        if let Some(set) = roots.last_mut() {
                            let rules = if is_for_properties {
                                &mut set.property_rules
                            } else {
                                &mut set.node_rules
                            };
                            rules.0.push(rule);
                        }
                    }
                    _ => return Err(unexpected_element_error(file, &element, "nothing")),
                }
                depth += 1;
            }
            XmlItem::EndElement => depth -= 1,
            XmlItem::Text(_) => {}
            XmlItem::EndDocument => return Ok(PackageFilter::new(roots)),
        }
    }
}

fn check_filter_root_element(file: &PackageFileName, element: &XmlElement) -> Result<()> {
    if element.name != "workspaceFilter" {
        return Err(unexpected_element_error(file, element, "`workspaceFilter`"));
    }
    let version = element.attribute("version").unwrap_or("1.0");
    match version.parse::<f64>() {
        Ok(number) if number <= 1.0 => Ok(()),
        _ => Err(file.to_error(
            element.line,
            format!("the filter version `{version}` is not supported; use 1.0"),
        )),
    }
}

fn read_filter_root(file: &PackageFileName, element: &XmlElement) -> Result<FilterRoot> {
    if element.name != "filter" {
        return Err(unexpected_element_error(file, element, "`filter`"));
    }
    let text = element.attribute("root").filter(|text| !text.is_empty()).unwrap_or("/");
    let trimmed = if text == "/" { text } else { text.trim_end_matches('/') };
    let root = NodePath::new(trimmed)
        .map_err(|error| file.to_error(element.line, format!("the filter's root: {error}")))?;
    let mode = match element.attribute("mode").filter(|text| !text.is_empty()) {
        None => ImportMode::Replace,
        Some(text) => ImportMode::from_name(text).ok_or_else(|| {
            let mode_names: Vec<&str> = ImportMode::ALL.iter().map(|(_, name)| *name).collect();
            let message = format!("the mode `{text}` is not one of {}", mode_names.join(", "));
            file.to_error(element.line, message)
        })?,
    };
    let is_cleanup = match element.attribute("type").filter(|text| !text.is_empty()) {
        None => false,
        Some("cleanup") => true,
        Some(filter_type) => {
            let message = format!("the type `{filter_type}` is not supported; use `cleanup`");
            return Err(file.to_error(element.line, message));
        }
    };
    Ok(FilterRoot { is_cleanup, ..FilterRoot::new(root, mode) })
}

fn read_filter_rule(
    file: &PackageFileName,
    element: &XmlElement,
    budget: &mut RegexMemoryBudget,
) -> Result<(PackageFilterRule, bool)> {
    let includes = match element.name.as_str() {
        "include" => true,
        "exclude" => false,
        _ => return Err(unexpected_element_error(file, element, "`include` or `exclude`")),
    };
    let pattern = element.attribute("pattern").unwrap_or_default();
    if pattern.is_empty() {
        let message = format!("`{}` needs a `pattern`", element.name);
        return Err(file.to_error(element.line, message));
    }
    let rule = PackageFilterRule::parse(includes, pattern, budget)
        .map_err(|message| file.to_error(element.line, message))?;
    let is_for_properties =
        element.attribute("matchProperties").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    Ok((rule, is_for_properties))
}

/// Translates a Java pattern: expands quotations `\Q…\E`, and limits the classes that are ASCII-only in Java to ASCII.
fn translate_java_pattern(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some((before, escaped)) = rest.split_once('\\') {
        out.push_str(before);
        let Some(character) = escaped.chars().next() else {
            out.push('\\');
            return out;
        };
        rest = escaped.get(character.len_utf8()..).unwrap_or_default();
        match character {
            'Q' => {
                let (literal, after) = rest.split_once("\\E").unwrap_or((rest, ""));
                out.push_str(&regex::escape(literal));
                rest = after;
            }
            'w' => out.push_str("[a-zA-Z_0-9]"),
            'W' => out.push_str("[^a-zA-Z_0-9]"),
            'd' => out.push_str("[0-9]"),
            'D' => out.push_str("[^0-9]"),
            's' => out.push_str("[ \\t\\n\\x0b\\f\\r]"),
            'S' => out.push_str("[^ \\t\\n\\x0b\\f\\r]"),
            code_point => out.extend(['\\', code_point]),
        }
    }
    out.push_str(rest);
    out
}

fn unexpected_element_error(
    file: &PackageFileName,
    element: &XmlElement,
    expectation: &str,
) -> crate::Error {
    file.to_error(element.line, format!("expected {expectation}, found `{}`", element.name))
}
