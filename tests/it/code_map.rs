//! The code map: ARCHITECTURE.md names each top-level module of each crate; modules that are folders stand with the first
//! sentence of their docs.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Set to rewrite the maps of ARCHITECTURE.md instead of comparing them.
const UPDATE_VARIABLE: &str = "UPDATE_CODE_MAP";

const MAP_START: &str = "<!-- modules of ";
const MAP_END: &str = "<!-- end of modules -->";

#[test]
fn the_code_map_says_what_the_modules_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = root.join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (updated, mapped) = with_current_maps(&text, root);
    let mut crates: Vec<String> = ["crates", "lab"]
        .into_iter()
        .flat_map(|parent| {
            std::fs::read_dir(root.join(parent)).unwrap().map(move |entry| {
                format!("{parent}/{}/src", entry.unwrap().file_name().to_str().unwrap())
            })
        })
        .chain(["src".to_owned()])
        .collect();
    crates.sort();
    let mut sorted = mapped;
    sorted.sort();
    assert_eq!(sorted, crates, "ARCHITECTURE.md must have a map of modules for each crate");
    if std::env::var_os(UPDATE_VARIABLE).is_some() {
        std::fs::write(&page, updated).unwrap();
        return;
    }
    let difference =
        text.lines().zip(updated.lines()).find(|(now, wanted)| now != wanted).map(|lines| lines.1);
    assert!(
        text == updated,
        "ARCHITECTURE.md differs from the docs of the modules, first at `{}`; \
         run `{UPDATE_VARIABLE}=1 cargo test --test it code_map`",
        difference.unwrap_or("its end")
    );
}

/// Returns the page with each map of modules written anew, and the source folders that have one.
fn with_current_maps(page: &str, root: &Path) -> (String, Vec<String>) {
    let (mut out, mut folders) = (String::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        writeln!(out, "{line}").unwrap();
        let Some(folder) = line.strip_prefix(MAP_START) else { continue };
        let folder = folder.trim_end_matches(" -->");
        out.push_str(&module_map(&root.join(folder)));
        folders.push(folder.to_owned());
        assert!(lines.any(|line| line == MAP_END), "the map of `{folder}` has no end");
        writeln!(out, "{MAP_END}").unwrap();
    }
    (out, folders)
}

/// Returns the map of the modules that the crate root in `folder` declares, sorted by name: a table of those that are
/// folders, and a line with the names of the files.
fn module_map(folder: &Path) -> String {
    let crate_root = [folder.join("lib.rs"), folder.join("main.rs")];
    let crate_root = crate_root.iter().find(|file| file.is_file()).unwrap();
    let declarations = std::fs::read_to_string(crate_root).unwrap();
    let mut names: Vec<&str> = declarations
        .lines()
        .filter_map(|line| line.split_once("mod ").filter(|(before, _)| !before.contains("//")))
        .filter_map(|(_, name)| name.strip_suffix(';'))
        .filter(|name| *name != "tests")
        .collect();
    names.sort_unstable();
    names.dedup();
    let (mut table, mut files) = (String::new(), Vec::new());
    for name in names {
        let sentence = first_sentence(&module_file(folder, name));
        if folder.join(name).is_dir() {
            writeln!(table, "| `{name}` | {sentence} |").unwrap();
        } else {
            files.push(format!("`{name}`"));
        }
    }
    let mut map = String::new();
    if !table.is_empty() {
        write!(map, "\n| folder | holds |\n|---|---|\n{table}").unwrap();
    }
    if !files.is_empty() {
        writeln!(map, "\nFiles: {}.", files.join(", ")).unwrap();
    }
    map.push('\n');
    map
}

fn module_file(folder: &Path, module: &str) -> PathBuf {
    let file = folder.join(format!("{module}.rs"));
    if file.is_file() { file } else { folder.join(module).join("mod.rs") }
}

/// Returns the first sentence of a module's doc, without the marks of links to items.
fn first_sentence(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let paragraph: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("//!"))
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let paragraph = paragraph.join(" ");
    assert!(!paragraph.is_empty(), "{} has no module doc", file.display());
    let end = paragraph.find(". ").unwrap_or_else(|| paragraph.trim_end_matches(['.', ':']).len());
    paragraph[..end].replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}
