//! The parser: turns tokens into items and expands includes in place.

use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

use super::diagnostic::{ConfigDiagnostic, DiagnosticCollector, DiagnosticSeverity};
use super::include::{expand_pattern, is_pattern};
use super::lexer::{ConfigToken, tokenize};
use super::syntax_tree::{ConfigBlock, ConfigItem, ConfigKey, ConfigText, ConfigValue, QuoteStyle};
use super::{ConfigSources, SourcePosition};

/// The maximum nesting depth of includes.
const MAX_INCLUDE_DEPTH: usize = 50;
/// The maximum number of lines of all files together.
const MAX_TOTAL_LINES: usize = 1_000_000;
/// The maximum nesting depth of braces; real files need eight.
const MAX_NESTING_DEPTH: usize = 100;

/// The result of parsing a file.
#[derive(Debug, Clone)]
pub struct ParsedConfigFile {
    /// The items of the file and of its includes.
    pub block: ConfigBlock,
    /// The diagnostics in the order in which they were found.
    pub diagnostics: Vec<ConfigDiagnostic>,
    /// The files that were read, and the folders in which include patterns are expanded. A change of any of them
    /// changes the configuration.
    pub files: Vec<PathBuf>,
}

impl ParsedConfigFile {
    /// Returns true if a diagnostic makes the file unusable.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error)
    }
}

/// Reads `file` and all its includes.
#[must_use]
pub fn parse_file(file: &Path, sources: &ConfigSources) -> ParsedConfigFile {
    let mut parser = ConfigParser::new(sources);
    let shown_path: Arc<Path> = Arc::from(file);
    let at = start_position(&shown_path);
    let items = parser.parse_included_file(file, &at);
    parser.finish(items, at)
}

/// Parses `text` as the content of `file`; includes are resolved relative to that file.
#[must_use]
pub fn parse_text(text: &[u8], file: &Path, sources: &ConfigSources) -> ParsedConfigFile {
    let mut parser = ConfigParser::new(sources);
    let shown_path: Arc<Path> = Arc::from(file);
    let at = start_position(&shown_path);
    let items = parser.parse_bytes(text, file);
    parser.finish(items, at)
}

fn start_position(file: &Arc<Path>) -> SourcePosition {
    SourcePosition { file: Arc::clone(file), line: 1, column: 1 }
}

struct ConfigParser<'a> {
    sources: &'a ConfigSources,
    diagnostics: DiagnosticCollector,
    /// The files being read, outermost first.
    include_stack: Vec<PathBuf>,
    /// All files read so far.
    files: Vec<PathBuf>,
    line_count: usize,
}

type ConfigTokens = Peekable<IntoIter<ConfigToken>>;

impl<'a> ConfigParser<'a> {
    fn new(sources: &'a ConfigSources) -> Self {
        Self {
            sources,
            diagnostics: DiagnosticCollector::default(),
            include_stack: Vec::new(),
            files: Vec::new(),
            line_count: 0,
        }
    }

    fn finish(self, items: Vec<ConfigItem>, at: SourcePosition) -> ParsedConfigFile {
        ParsedConfigFile {
            block: ConfigBlock { items, position: at },
            diagnostics: self.diagnostics.0,
            files: self.files,
        }
    }

    /// Reads a file that an include at `at` names.
    fn parse_included_file(&mut self, file: &Path, at: &SourcePosition) -> Vec<ConfigItem> {
        if self.include_stack.len() >= MAX_INCLUDE_DEPTH {
            self.diagnostics.add_error(
                at,
                format!("includes are nested more than {MAX_INCLUDE_DEPTH} levels deep"),
            );
            return Vec::new();
        }
        self.files.push(file.to_owned());
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.diagnostics
                    .add_error(at, format!("cannot read `{}`: {error}", file.display()));
                return Vec::new();
            }
        };
        // Relative includes do not resolve links in a path, but a cycle through a link is still a cycle.
        let identity = std::fs::canonicalize(file).unwrap_or_else(|_gone| file.to_owned());
        if self.include_stack.contains(&identity) {
            self.diagnostics.add_error(at, format!("`{}` includes itself", file.display()));
            return Vec::new();
        }
        self.include_stack.push(identity);
        let items = match self.parse_link_text(&bytes, file) {
            Some(items) => items,
            None => self.parse_bytes(&bytes, file),
        };
        self.include_stack.pop();
        items
    }

    /// Reads a file whose only line is the path of another file: a symbolic link that was checked out as text.
    fn parse_link_text(&mut self, bytes: &[u8], file: &Path) -> Option<Vec<ConfigItem>> {
        let line = std::str::from_utf8(bytes).ok()?.trim();
        let is_path = line.contains('/')
            && !line.starts_with('/')
            && !line.contains(|char: char| char.is_whitespace() || "{}\"'#$".contains(char));
        let target = file.parent()?.join(line);
        if self.include_stack.is_empty() || !is_path || !target.is_file() {
            return None;
        }
        let at = start_position(&Arc::from(file));
        self.diagnostics.add_warning(
            &at,
            format!(
                "the file contains only the path `{line}`, so that file is read instead; restore the link"
            ),
        );
        Some(self.parse_included_file(&target, &at))
    }

    fn parse_bytes(&mut self, bytes: &[u8], file: &Path) -> Vec<ConfigItem> {
        let shown_path: Arc<Path> = Arc::from(file);
        if let Some(nul) = bytes.iter().position(|byte| *byte == 0) {
            let before = bytes.get(..nul).unwrap_or_default();
            let mut at = start_position(&shown_path);
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            at.line = u32::try_from(line).unwrap_or(u32::MAX);
            self.diagnostics.add_error(&at, "the file is binary; a text file is expected");
            return Vec::new();
        }
        self.line_count += bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
        if self.line_count > MAX_TOTAL_LINES {
            self.diagnostics.add_error(
                &start_position(&shown_path),
                format!("more than {MAX_TOTAL_LINES} lines in all files together"),
            );
            return Vec::new();
        }
        // Comments may hold any bytes; a token that is not UTF-8 matches nothing and is reported.
        let source = String::from_utf8_lossy(bytes);
        let tokens =
            tokenize(&source, &shown_path, &self.sources.environment, &mut self.diagnostics);
        self.warn_of_invalid_utf8(&tokens);
        let mut tokens = tokens.into_iter().peekable();
        let mut items = Vec::new();
        loop {
            items.extend(self.parse_items(&mut tokens, file, 0));
            // Only an extra closing brace ends the items of a whole file.
            let Some(token) = tokens.next() else {
                return items;
            };
            self.diagnostics.add_error(token.position(), "unmatched `}`; remove it");
        }
    }

    fn warn_of_invalid_utf8(&mut self, tokens: &[ConfigToken]) {
        for token in tokens {
            let (ConfigToken::Key(ConfigKey { name, position })
            | ConfigToken::Text(ConfigText { text: name, position, .. })) = token
            else {
                continue;
            };
            if name.contains('\u{fffd}') {
                self.diagnostics.add_warning(position, "this text is not UTF-8");
            }
        }
    }

    /// Reads items up to the end or to a closing brace, which is not consumed.
    fn parse_items(
        &mut self,
        tokens: &mut ConfigTokens,
        file: &Path,
        depth: usize,
    ) -> Vec<ConfigItem> {
        let mut items = Vec::new();
        loop {
            let item = match tokens.peek() {
                None | Some(ConfigToken::Close(_)) => return items,
                Some(_) => tokens.next(),
            };
            match item {
                Some(ConfigToken::Key(key)) => {
                    let value = self.parse_value(tokens, file, depth);
                    items.push(ConfigItem { key: Some(key), value });
                }
                Some(ConfigToken::Text(text)) if is_include(&text) => {
                    items.extend(self.parse_include(tokens, file, &text.position));
                }
                Some(ConfigToken::Text(text)) => {
                    items.push(ConfigItem { key: None, value: ConfigValue::Text(text) })
                }
                Some(ConfigToken::Open(at)) => {
                    let block = self.parse_block(tokens, file, at, depth);
                    items.push(ConfigItem { key: None, value: ConfigValue::Block(block) });
                }
                Some(ConfigToken::Close(_)) | None => return items,
            }
        }
    }

    fn parse_value(&mut self, tokens: &mut ConfigTokens, file: &Path, depth: usize) -> ConfigValue {
        match tokens.peek() {
            Some(ConfigToken::Text(text)) if !is_include(text) => match tokens.next() {
                Some(ConfigToken::Text(text)) => ConfigValue::Text(text),
                _ => ConfigValue::Absent,
            },
            Some(ConfigToken::Open(at)) => {
                let at = at.clone();
                tokens.next();
                ConfigValue::Block(self.parse_block(tokens, file, at, depth))
            }
            _ => ConfigValue::Absent,
        }
    }

    /// Reads the content of a block whose opening brace is at `at`.
    fn parse_block(
        &mut self,
        tokens: &mut ConfigTokens,
        file: &Path,
        at: SourcePosition,
        depth: usize,
    ) -> ConfigBlock {
        if depth >= MAX_NESTING_DEPTH {
            self.diagnostics.add_error(
                &at,
                format!("braces are nested more than {MAX_NESTING_DEPTH} levels deep"),
            );
            skip_block(tokens);
            let items = Vec::new();
            return ConfigBlock { items, position: at };
        }
        let items = self.parse_items(tokens, file, depth + 1);
        if tokens.next().is_none() {
            self.diagnostics.add_error(&at, "the `{` opened here is never closed; add a `}`");
        }
        ConfigBlock { items, position: at }
    }

    fn parse_include(
        &mut self,
        tokens: &mut ConfigTokens,
        file: &Path,
        at: &SourcePosition,
    ) -> Vec<ConfigItem> {
        let Some(ConfigToken::Text(path)) =
            tokens.next_if(|token| matches!(token, ConfigToken::Text(_)))
        else {
            self.diagnostics.add_error(at, "`$include` needs the path of a file in quotes");
            return Vec::new();
        };
        let folder = file.parent().unwrap_or(Path::new(""));
        let target = self.sources.resolve(folder, &path.text);
        if !is_pattern(&target) {
            return self.parse_included_file(&target, &path.position);
        }
        self.files.extend(target.parent().filter(|folder| !is_pattern(folder)).map(Path::to_owned));
        match expand_pattern(&target) {
            Ok(files) => files
                .iter()
                .flat_map(|file| self.parse_included_file(file, &path.position))
                .collect(),
            Err(error) => {
                self.diagnostics.add_error(
                    &path.position,
                    format!("cannot list the files for `{}`: {error}", target.display()),
                );
                Vec::new()
            }
        }
    }
}

fn is_include(text: &ConfigText) -> bool {
    text.quote == QuoteStyle::Bare && text.text == "$include"
}

fn skip_block(tokens: &mut ConfigTokens) {
    let mut open = 1_usize;
    for token in tokens.by_ref() {
        match token {
            ConfigToken::Open(_) => open += 1,
            ConfigToken::Close(_) => open -= 1,
            ConfigToken::Key(_) | ConfigToken::Text(_) => {}
        }
        if open == 0 {
            return;
        }
    }
}
