//! Tokens to items, with includes in their place.

use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

use super::diagnostic::{Diagnostic, Findings, Severity};
use super::include::{expand, is_pattern};
use super::lex::{Token, lex};
use super::tree::{Block, Item, Key, Quote, Text, Value};
use super::{Position, Sources};

/// Includes within includes, at most.
const MAX_INCLUDE_DEPTH: usize = 50;
/// Lines of all files together, at most.
const MAX_LINES: usize = 1_000_000;
/// Braces within braces, at most; real files need eight.
const MAX_NESTING: usize = 100;

/// What a file holds, and what is wrong with it.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The items of the file and of what it includes.
    pub block: Block,
    /// The findings in the order in which they were met.
    pub diagnostics: Vec<Diagnostic>,
    /// The files that were read, and the folders in which include patterns look; a change of one is a change of all.
    pub files: Vec<PathBuf>,
}

impl Parsed {
    /// Tells whether a finding forbids to use the file.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// Reads `file` and all that it includes.
#[must_use]
pub fn parse_file(file: &Path, sources: &Sources) -> Parsed {
    let mut parser = Parser::new(sources);
    let shown: Arc<Path> = Arc::from(file);
    let at = start_of(&shown);
    let items = parser.file(file, &at);
    parser.finish(items, at)
}

/// Reads `text` as if it stood in `file`; includes are looked up beside it.
#[must_use]
pub fn parse_text(text: &[u8], file: &Path, sources: &Sources) -> Parsed {
    let mut parser = Parser::new(sources);
    let shown: Arc<Path> = Arc::from(file);
    let at = start_of(&shown);
    let items = parser.text(text, file);
    parser.finish(items, at)
}

fn start_of(file: &Arc<Path>) -> Position {
    Position { file: Arc::clone(file), line: 1, column: 1 }
}

struct Parser<'a> {
    sources: &'a Sources,
    findings: Findings,
    /// The files that are being read, outermost first.
    stack: Vec<PathBuf>,
    /// All files that were read.
    files: Vec<PathBuf>,
    lines: usize,
}

type Tokens = Peekable<IntoIter<Token>>;

impl<'a> Parser<'a> {
    fn new(sources: &'a Sources) -> Self {
        Self {
            sources,
            findings: Findings::default(),
            stack: Vec::new(),
            files: Vec::new(),
            lines: 0,
        }
    }

    fn finish(self, items: Vec<Item>, at: Position) -> Parsed {
        Parsed { block: Block { items, at }, diagnostics: self.findings.0, files: self.files }
    }

    /// Reads a file that is asked for at `at`.
    fn file(&mut self, file: &Path, at: &Position) -> Vec<Item> {
        if self.stack.len() >= MAX_INCLUDE_DEPTH {
            self.findings
                .error(at, format!("more than {MAX_INCLUDE_DEPTH} includes within each other"));
            return Vec::new();
        }
        self.files.push(file.to_owned());
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.findings.error(at, format!("cannot read `{}`: {error}", file.display()));
                return Vec::new();
            }
        };
        // The links in a path are not resolved for relative includes, but a cycle through a link is a cycle.
        let identity = std::fs::canonicalize(file).unwrap_or_else(|_gone| file.to_owned());
        if self.stack.contains(&identity) {
            self.findings.error(at, format!("`{}` includes itself", file.display()));
            return Vec::new();
        }
        self.stack.push(identity);
        let items = match self.link_as_text(&bytes, file) {
            Some(items) => items,
            None => self.text(&bytes, file),
        };
        self.stack.pop();
        items
    }

    /// Reads a file whose one line is the path of another: a link that was checked out as text.
    fn link_as_text(&mut self, bytes: &[u8], file: &Path) -> Option<Vec<Item>> {
        let line = std::str::from_utf8(bytes).ok()?.trim();
        let is_path = line.contains('/')
            && !line.starts_with('/')
            && !line.contains(|char: char| char.is_whitespace() || "{}\"'#$".contains(char));
        let target = file.parent()?.join(line);
        if self.stack.is_empty() || !is_path || !target.is_file() {
            return None;
        }
        let at = start_of(&Arc::from(file));
        self.findings.warn(
            &at,
            format!(
                "the file holds only the path `{line}`, so that file is read; restore the link"
            ),
        );
        Some(self.file(&target, &at))
    }

    fn text(&mut self, bytes: &[u8], file: &Path) -> Vec<Item> {
        let shown: Arc<Path> = Arc::from(file);
        if let Some(nul) = bytes.iter().position(|byte| *byte == 0) {
            let before = bytes.get(..nul).unwrap_or_default();
            let mut at = start_of(&shown);
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            at.line = u32::try_from(line).unwrap_or(u32::MAX);
            self.findings.error(&at, "the file is binary; a text file is expected");
            return Vec::new();
        }
        self.lines += bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
        if self.lines > MAX_LINES {
            self.findings.error(
                &start_of(&shown),
                format!("more than {MAX_LINES} lines in all files together"),
            );
            return Vec::new();
        }
        // Comments may hold any bytes; a token that is not UTF-8 matches nothing and says so.
        let source = String::from_utf8_lossy(bytes);
        let tokens = lex(&source, &shown, &self.sources.environment, &mut self.findings);
        self.warn_of_replaced_bytes(&tokens);
        let mut tokens = tokens.into_iter().peekable();
        let mut items = Vec::new();
        loop {
            items.extend(self.items(&mut tokens, file, 0));
            // Only a brace too many stops the items of a whole file.
            let Some(token) = tokens.next() else {
                return items;
            };
            self.findings.error(token.at(), "this `}` closes nothing; remove it");
        }
    }

    fn warn_of_replaced_bytes(&mut self, tokens: &[Token]) {
        for token in tokens {
            let (Token::Key(Key { name: text, at }) | Token::Text(Text { text, at, .. })) = token
            else {
                continue;
            };
            if text.contains('\u{fffd}') {
                self.findings.warn(at, "this text is not UTF-8");
            }
        }
    }

    /// Reads items up to a closing brace, which stays, or the end.
    fn items(&mut self, tokens: &mut Tokens, file: &Path, depth: usize) -> Vec<Item> {
        let mut items = Vec::new();
        loop {
            let item = match tokens.peek() {
                None | Some(Token::Close(_)) => return items,
                Some(_) => tokens.next(),
            };
            match item {
                Some(Token::Key(key)) => {
                    let value = self.value(tokens, file, depth);
                    items.push(Item { key: Some(key), value });
                }
                Some(Token::Text(text)) if is_include(&text) => {
                    items.extend(self.include(tokens, file, &text.at));
                }
                Some(Token::Text(text)) => items.push(Item { key: None, value: Value::Text(text) }),
                Some(Token::Open(at)) => {
                    let block = self.block(tokens, file, at, depth);
                    items.push(Item { key: None, value: Value::Block(block) });
                }
                Some(Token::Close(_)) | None => return items,
            }
        }
    }

    fn value(&mut self, tokens: &mut Tokens, file: &Path, depth: usize) -> Value {
        match tokens.peek() {
            Some(Token::Text(text)) if !is_include(text) => match tokens.next() {
                Some(Token::Text(text)) => Value::Text(text),
                _ => Value::Absent,
            },
            Some(Token::Open(at)) => {
                let at = at.clone();
                tokens.next();
                Value::Block(self.block(tokens, file, at, depth))
            }
            _ => Value::Absent,
        }
    }

    /// Reads what follows an opening brace at `at`.
    fn block(&mut self, tokens: &mut Tokens, file: &Path, at: Position, depth: usize) -> Block {
        if depth >= MAX_NESTING {
            self.findings.error(&at, format!("more than {MAX_NESTING} braces within each other"));
            skip_block(tokens);
            let items = Vec::new();
            return Block { items, at };
        }
        let items = self.items(tokens, file, depth + 1);
        if tokens.next().is_none() {
            self.findings.error(&at, "the `{` opened here is never closed; add a `}`");
        }
        Block { items, at }
    }

    fn include(&mut self, tokens: &mut Tokens, file: &Path, at: &Position) -> Vec<Item> {
        let Some(Token::Text(path)) = tokens.next_if(|token| matches!(token, Token::Text(_)))
        else {
            self.findings.error(at, "`$include` needs the path of a file in quotes");
            return Vec::new();
        };
        let folder = file.parent().unwrap_or(Path::new(""));
        let target = self.sources.resolve(folder, &path.text);
        if !is_pattern(&target) {
            return self.file(&target, &path.at);
        }
        self.files.extend(target.parent().filter(|folder| !is_pattern(folder)).map(Path::to_owned));
        match expand(&target) {
            Ok(files) => files.iter().flat_map(|file| self.file(file, &path.at)).collect(),
            Err(error) => {
                self.findings.error(
                    &path.at,
                    format!("cannot list the files for `{}`: {error}", target.display()),
                );
                Vec::new()
            }
        }
    }
}

fn is_include(text: &Text) -> bool {
    text.quote == Quote::Bare && text.text == "$include"
}

fn skip_block(tokens: &mut Tokens) {
    let mut open = 1_usize;
    for token in tokens.by_ref() {
        match token {
            Token::Open(_) => open += 1,
            Token::Close(_) => open -= 1,
            Token::Key(_) | Token::Text(_) => {}
        }
        if open == 0 {
            return;
        }
    }
}
