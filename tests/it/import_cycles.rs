//! Import cycles: modules of a crate import downwards. Cycles that still exist are listed by size and must not grow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crate (`tympan` is the program), the number of modules in its largest cycle, and the number of modules in all cycles.
/// Lower them when a cycle is cut. A new cycle is a type in the wrong place: move the type down, or turn the call into a
/// returned value.
const LIMITS: &[(&str, usize, usize)] = &[
    ("backup", 6, 8),
    ("content", 7, 9),
    ("core-components", 5, 7),
    ("content-package", 3, 5),
    ("content-query", 3, 5),
    ("dispatcher", 5, 14),
    ("jobs", 4, 4),
    ("lab/engine", 2, 2),
    ("lab/tympan-lab", 5, 7),
    ("render", 6, 6),
    ("render-export", 4, 6),
    ("search", 2, 2),
    ("server", 4, 14),
    ("use-script", 5, 5),
];

type ModulePath = Vec<String>;

#[test]
fn import_cycles_do_not_grow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    let mut sources = vec![("tympan".to_owned(), root.join("src"))];
    for (parent, prefix) in [("crates", ""), ("lab", "lab/")] {
        for entry in std::fs::read_dir(root.join(parent)).unwrap() {
            let folder = entry.unwrap().path();
            let name = folder.file_name().unwrap().to_str().unwrap();
            sources.push((format!("{prefix}{name}"), folder.join("src")));
        }
    }
    for (name, folder) in sources {
        let modules = read_modules(&folder);
        assert!(
            modules.len() > 4,
            "`{name}` has {} modules: does the scan still work?",
            modules.len()
        );
        let cycles = cycles(&import_graph(&modules));
        let largest = cycles.iter().map(BTreeSet::len).max().unwrap_or(0);
        let total: usize = cycles.iter().map(BTreeSet::len).sum();
        let limit = LIMITS.iter().find(|(limited, ..)| *limited == name);
        let (max_largest, max_total) = limit.map_or((0, 0), |limit| (limit.1, limit.2));
        if largest > max_largest || total > max_total {
            let listed: Vec<Vec<String>> = cycles
                .iter()
                .map(|cycle| cycle.iter().map(|module| module.join("::")).collect())
                .collect();
            faults.push(format!(
                "`{name}` has {total} modules in cycles, {largest} in the largest; the table says {max_total} and \
                 {max_largest}: {listed:?}"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The source of one module without comments and unit tests, and what it imports by name.
struct ModuleSource {
    code: String,
    imports: Vec<ModulePath>,
}

fn read_modules(folder: &Path) -> BTreeMap<ModulePath, ModuleSource> {
    let mut modules = BTreeMap::new();
    let mut folders = vec![(folder.to_owned(), ModulePath::new())];
    while let Some((folder, path)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let file = entry.unwrap().path();
            let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let mut module = path.clone();
            if file.is_dir() {
                module.push(stem);
                folders.push((file, module));
            } else if file.extension().is_some_and(|extension| extension == "rs") {
                if !matches!(stem.as_str(), "lib" | "main" | "mod") {
                    module.push(stem);
                }
                let code = production_code(&std::fs::read_to_string(&file).unwrap());
                let imports = imported_paths(&code);
                modules.insert(module, ModuleSource { code, imports });
            }
        }
    }
    modules
}

/// Returns the source up to its unit tests, without lines of comments.
fn production_code(source: &str) -> String {
    let end = source.find("#[cfg(test)]\nmod tests").unwrap_or(source.len());
    let lines = source[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the paths of all `use` declarations, with lists in braces expanded.
fn imported_paths(code: &str) -> Vec<ModulePath> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find("use ") {
        let is_declaration = rest[..start].chars().next_back().is_none_or(char::is_whitespace);
        rest = &rest[start + 4..];
        if let Some(end) = rest.find(';')
            && is_declaration
        {
            let tree: String = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
            expand_use_tree(&tree, &mut Vec::new(), &mut paths);
            rest = &rest[end..];
        }
    }
    paths
}

fn expand_use_tree(tree: &str, prefix: &mut ModulePath, paths: &mut Vec<ModulePath>) {
    let depth = prefix.len();
    if let Some((head, list)) = tree.split_once('{') {
        prefix.extend(path_segments(head));
        let list = list.trim_end().strip_suffix('}').unwrap_or(list);
        let (mut level, mut start) = (0_i32, 0);
        for (index, letter) in list.char_indices().chain([(list.len(), ',')]) {
            match letter {
                '{' => level += 1,
                '}' => level -= 1,
                ',' if level == 0 => {
                    let element = list[start..index].trim();
                    if !element.is_empty() {
                        expand_use_tree(element, prefix, paths);
                    }
                    start = index + 1;
                }
                _ => {}
            }
        }
    } else {
        let name = tree.split(" as ").next().unwrap();
        let mut path = prefix.clone();
        path.extend(
            path_segments(name).into_iter().filter(|segment| segment != "self" || depth == 0),
        );
        paths.push(path);
    }
    prefix.truncate(depth);
}

fn path_segments(path: &str) -> ModulePath {
    path.split("::")
        .map(|segment| segment.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

fn import_graph(
    modules: &BTreeMap<ModulePath, ModuleSource>,
) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
    let mut graph = BTreeMap::new();
    for (module, source) in modules {
        let inline = inline_paths(&source.code);
        let targets = source
            .imports
            .iter()
            .chain(&inline)
            .filter_map(|path| absolute_path(module, path, modules))
            .filter_map(|path| declaring_module(&path, modules, 0))
            .filter(|target| target != module && !target.is_empty())
            .collect();
        if !module.is_empty() {
            graph.insert(module.clone(), targets);
        }
    }
    graph
}

/// Returns the paths in code that begin with `crate::` or `super::`. One that ends with a list in braces begins a `use`
/// declaration, whose elements are imports; it imports nothing from the module that it names.
fn inline_paths(code: &str) -> Vec<ModulePath> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':');
    ["crate::", "super::"]
        .iter()
        .flat_map(|start| code.match_indices(start))
        // The second part of `super::super::` begins no path.
        .filter(|(index, _)| !code[..*index].ends_with("::"))
        .map(|(index, _)| {
            let path = &code[index..];
            path.split_at(path.find(|letter| !is_part(letter)).unwrap_or(path.len()))
        })
        .filter(|(_, rest)| !rest.starts_with('{'))
        .map(|(path, _)| path_segments(path))
        .collect()
}

/// Returns a path from the crate's root, or `None` for one of another crate.
fn absolute_path(
    module: &[String],
    path: &[String],
    modules: &BTreeMap<ModulePath, ModuleSource>,
) -> Option<ModulePath> {
    let first = path.first()?;
    match first.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => {
            let ups = path.iter().take_while(|segment| *segment == "super").count();
            Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat())
        }
        _ => {
            let child = [module, &path[..1]].concat();
            modules.contains_key(&child).then(|| [module, path].concat())
        }
    }
}

/// Returns the module that declares what a path names, through re-exports.
fn declaring_module(
    path: &[String],
    modules: &BTreeMap<ModulePath, ModuleSource>,
    depth: usize,
) -> Option<ModulePath> {
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    if let Some(name) = rest.first()
        && depth < 8
    {
        let reexported = modules[module].imports.iter().find(|import| import.last() == Some(name));
        if let Some(target) = reexported.and_then(|import| absolute_path(module, import, modules))
            && target != path
        {
            return declaring_module(&target, modules, depth + 1);
        }
    }
    Some(module.to_vec())
}

/// Returns the sets of two and more modules that import each other, directly or not.
fn cycles(graph: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<BTreeSet<ModulePath>> {
    let reachable: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = graph
        .keys()
        .map(|start| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(module) = open.pop() {
                for next in graph.get(module).into_iter().flatten() {
                    if seen.insert(next) {
                        open.push(next);
                    }
                }
            }
            (start, seen)
        })
        .collect();
    let mut cycles: Vec<BTreeSet<ModulePath>> = Vec::new();
    for module in graph.keys() {
        if cycles.iter().any(|cycle| cycle.contains(module)) {
            continue;
        }
        let cycle: BTreeSet<ModulePath> = reachable[module]
            .iter()
            .filter(|other| reachable.get(**other).is_some_and(|back| back.contains(module)))
            .map(|other| (*other).clone())
            .collect();
        if cycle.len() > 1 {
            cycles.push(cycle);
        }
    }
    cycles
}
