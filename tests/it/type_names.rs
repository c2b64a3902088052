//! Names of types: each stands for one thing in the whole workspace, so that it is understood in a search result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names that several types may share: every crate has its own.
const SHARED_NAMES: [&str; 2] = ["Error", "Result"];

#[test]
fn type_names_are_unique_in_the_workspace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = rust_files(&root.join("src"));
    for parent in ["crates", "lab"] {
        for entry in std::fs::read_dir(root.join(parent)).unwrap() {
            sources.extend(rust_files(&entry.unwrap().path().join("src")));
        }
    }
    let mut declarations: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap();
        let file = source.strip_prefix(root).unwrap().display().to_string();
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = declared_type(line) {
                let declaration = format!("{file}:{}", number + 1);
                declarations.entry(name.to_owned()).or_default().push(declaration);
            }
        }
    }
    let total: usize = declarations.values().map(Vec::len).sum();
    assert!(total > 2_000, "only {total} types were found: does the scan still work?");
    let repeated: Vec<String> = declarations
        .iter()
        .filter(|(name, files)| files.len() > 1 && !SHARED_NAMES.contains(&name.as_str()))
        .map(|(name, files)| format!("`{name}` is declared in {}", files.join(", ")))
        .collect();
    assert!(
        repeated.is_empty(),
        "{} of {total} types have a name of their own; name these after their subject:\n{}",
        declarations.len(),
        repeated.join("\n")
    );
}

/// Returns the name of the type that a line of source declares. Associated types, which are indented, do not count.
fn declared_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let is_indented = code.len() < line.len();
    let code = match code.strip_prefix("pub") {
        Some(scope) if scope.starts_with('(') => {
            scope.split_once(") ").map_or("", |(_, rest)| rest)
        }
        Some(rest) => rest.trim_start(),
        None => code,
    };
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    let (keyword, rest) = code.split_once(' ')?;
    let is_declaration = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !is_indented,
        _ => false,
    };
    let name = rest.split(|letter: char| !letter.is_ascii_alphanumeric()).next()?;
    (is_declaration && name.starts_with(|letter: char| letter.is_ascii_uppercase())).then_some(name)
}

/// Returns all Rust source files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}
