//! The contents of the manual: fenced blocks, inline code, and the shell commands in them.
//!
//! Pure but for `pages`, which reads the files. Shell syntax is parsed as far as the manual uses it: quotes, comments,
//! continued lines, pipes, lists, redirections and `$(…)`; no here-documents.

use std::path::{Path, PathBuf};

/// One page of the manual.
#[derive(Debug)]
pub struct ManualPage {
    /// The path relative to the project's folder, such as `docs/guides/lab.md`.
    pub path: String,
    /// The text of the page.
    pub text: String,
}

/// A fenced code block.
#[derive(Debug)]
pub struct FencedBlock {
    /// Line number of the opening fence, from 1.
    pub line: usize,
    /// The info string of the opening fence; empty if there is none.
    pub language: String,
    /// The lines between the fences.
    pub text: String,
}

/// A parsed shell command.
#[derive(Debug, PartialEq, Eq)]
pub struct ShellCommand {
    /// Line number of its beginning, from 0.
    pub line: usize,
    /// The program and its arguments.
    pub words: Vec<String>,
}

/// Reads a project's README, the pages at its root, and all pages below `docs`, sorted by name.
///
/// # Panics
///
/// If a page cannot be read.
#[must_use]
pub fn read_manual_pages(project: &Path) -> Vec<ManualPage> {
    let mut files = Vec::new();
    collect_files(&project.join("docs"), "md", &mut files);
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        files.push(project.join(name));
    }
    files.sort();
    let read = |file: PathBuf| {
        let name = file.strip_prefix(project).unwrap_or(&file).display().to_string();
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("`{}` cannot be read: {error}", file.display()));
        ManualPage { path: name, text }
    };
    files.into_iter().map(read).collect()
}

/// Adds the files below a folder that have an extension.
///
/// # Panics
///
/// If a folder cannot be read.
pub fn collect_files(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("`{}` cannot be read: {error}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_files(&path, extension, files);
        } else if path.extension().is_some_and(|ending| ending == extension) {
            files.push(path);
        }
    }
}

/// Returns the fenced blocks of a page.
#[must_use]
pub fn parse_fenced_blocks(page: &str) -> Vec<FencedBlock> {
    let mut blocks = Vec::new();
    let mut open: Option<FencedBlock> = None;
    for (number, line) in page.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                let language = language.trim().to_owned();
                open = Some(FencedBlock { line: number + 1, language, text: String::new() });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the commands of a block: all lines of `sh`, those after the prompt `$ ` of `console`, none of another
/// language.
#[must_use]
pub fn parse_block_commands(block: &FencedBlock) -> Vec<ShellCommand> {
    match block.language.as_str() {
        "sh" => parse_shell_commands(&block.text),
        "console" => {
            // Output lines become empty lines, so that line numbers stay correct.
            let typed: String = block
                .text
                .lines()
                .map(|line| format!("{}\n", line.strip_prefix("$ ").unwrap_or_default()))
                .collect();
            parse_shell_commands(&typed)
        }
        _ => Vec::new(),
    }
}

/// Returns the inline code outside of fenced blocks that begins with a program's name, with its line number from 1.
#[must_use]
pub fn find_inline_commands(text: &str, program: &str) -> Vec<(usize, String)> {
    let opening = format!("`{program} ");
    let mut commands = Vec::new();
    let mut is_fenced = false;
    let mut rest = String::new();
    for line in text.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        if !is_fenced {
            rest.push_str(line);
        }
        rest.push('\n');
    }
    let mut line = 1;
    let mut rest = rest.as_str();
    while let Some((before, behind)) = rest.split_once(&opening) {
        line += before.matches('\n').count();
        let Some((arguments, after)) = behind.split_once('`') else { break };
        // A paragraph ends unclosed inline code.
        if !arguments.contains("\n\n") {
            commands.push((line, format!("{program} {}", arguments.replace('\n', " "))));
        }
        line += arguments.matches('\n').count();
        rest = after;
    }
    commands
}

/// Splits a script into its commands, without assignments, redirections and comments; commands in `$(…)` come before
/// the command that uses their output.
#[must_use]
pub fn parse_shell_commands(script: &str) -> Vec<ShellCommand> {
    let mut splitter = ShellSplitter {
        chars: script.chars().collect(),
        position: 0,
        line: 0,
        commands: Vec::new(),
    };
    splitter.parse_list();
    splitter.commands
}

struct ShellSplitter {
    chars: Vec<char>,
    position: usize,
    line: usize,
    commands: Vec<ShellCommand>,
}

/// A command that is being parsed.
#[derive(Default)]
struct PartialShellCommand {
    line: Option<usize>,
    words: Vec<String>,
    word: Option<String>,
    /// True if the next word is the file name of a redirection.
    is_redirected: bool,
}

impl ShellSplitter {
    fn next(&mut self) -> Option<char> {
        let letter = self.chars.get(self.position).copied()?;
        self.position += 1;
        self.line += usize::from(letter == '\n');
        Some(letter)
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.position).copied()
    }

    /// Parses commands until the script or the enclosing parenthesis ends.
    fn parse_list(&mut self) {
        let mut now = PartialShellCommand::default();
        loop {
            let line = self.line;
            let Some(letter) = self.next() else { break };
            match letter {
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(literal) => now.push_char(line, literal),
                },
                '\'' => {
                    now.begin_word(line);
                    while let Some(literal) = self.next().filter(|&letter| letter != '\'') {
                        now.push_char(line, literal);
                    }
                }
                '"' => {
                    now.begin_word(line);
                    self.parse_quoted(&mut now, line);
                }
                '$' if self.peek() == Some('(') => self.parse_substitution(&mut now, line),
                '#' if now.word.is_none() => {
                    while self.peek().is_some_and(|letter| letter != '\n') {
                        self.next();
                    }
                }
                ' ' | '\t' => now.end_word(),
                '<' | '>' => {
                    // A file descriptor number belongs to the redirection.
                    now.word.take_if(|word| word.chars().all(|digit| digit.is_ascii_digit()));
                    now.end_word();
                    while self.peek().is_some_and(|letter| matches!(letter, '<' | '>' | '&')) {
                        self.next();
                    }
                    now.is_redirected = true;
                }
                ')' => break,
                '\n' | ';' | '|' | '&' | '(' => self.end_command(&mut now),
                literal => now.push_char(line, literal),
            }
        }
        self.end_command(&mut now);
    }

    fn parse_quoted(&mut self, now: &mut PartialShellCommand, line: usize) {
        while let Some(letter) = self.next() {
            match letter {
                '"' => break,
                '\\' => match self.next() {
                    Some(literal @ ('"' | '\\' | '$' | '`')) => now.push_char(line, literal),
                    Some('\n') | None => {}
                    Some(literal) => {
                        now.push_char(line, '\\');
                        now.push_char(line, literal);
                    }
                },
                '$' if self.peek() == Some('(') => self.parse_substitution(now, line),
                literal => now.push_char(line, literal),
            }
        }
    }

    fn parse_substitution(&mut self, now: &mut PartialShellCommand, line: usize) {
        self.next();
        let start = self.position;
        self.parse_list();
        let end = self.position.saturating_sub(1).max(start);
        let inner: String = self.chars.get(start..end).unwrap_or_default().iter().collect();
        for literal in format!("$({inner})").chars() {
            now.push_char(line, literal);
        }
    }

    fn end_command(&mut self, now: &mut PartialShellCommand) {
        now.end_word();
        let PartialShellCommand { line, mut words, .. } = std::mem::take(now);
        let is_before = |word_text: &String| {
            matches!(word_text.as_str(), "do" | "then" | "else" | "!" | "exec")
                || is_assignment(word_text)
        };
        let skipped = words.iter().take_while(|word_text| is_before(word_text)).count();
        words.drain(..skipped);
        if let Some(line) = line
            && !words.is_empty()
        {
            self.commands.push(ShellCommand { line, words });
        }
    }
}

impl PartialShellCommand {
    fn begin_word(&mut self, line: usize) {
        self.line.get_or_insert(line);
        self.word.get_or_insert_default();
    }

    fn push_char(&mut self, line: usize, letter: char) {
        self.begin_word(line);
        self.word.get_or_insert_default().push(letter);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.is_redirected) {
            self.words.push(word);
        }
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    })
}
