//! The floors: which room may import which. ARCHITECTURE.md draws them; this test holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Room, and the rooms below it that it may import. A new arrow is a design decision with its own commit.
const ALLOWED: &[(&str, &[&str])] = &[
    ("assets", &["blobs", "content", "jobs", "notation", "web"]),
    ("backup", &["blobs", "notation", "store", "web"]),
    ("blobs", &["notation", "store", "web"]),
    ("content", &["blobs", "notation", "store"]),
    ("content-fragments", &["content", "notation"]),
    ("content-package", &["content"]),
    ("content-query", &["content", "notation"]),
    ("core-components", &["notation"]),
    ("dispatcher", &["notation", "web"]),
    ("home", &["blobs", "content", "jobs", "notation", "replicate", "store", "web"]),
    (
        "home-backup",
        &[
            "backup",
            "blobs",
            "content",
            "content-package",
            "home",
            "jobs",
            "notation",
            "replicate",
            "store",
            "web",
        ],
    ),
    ("htl", &["notation"]),
    ("jobs", &["blobs", "content", "notation", "web"]),
    ("lab", &["lab-engine", "lab-plan", "lab-tools", "notation", "terminal"]),
    ("lab-engine", &["lab-plan", "notation", "web"]),
    ("lab-plan", &["notation", "web"]),
    ("lab-tools", &["lab-engine", "lab-plan", "notation", "web"]),
    ("mounts", &["assets", "blobs", "content", "jobs", "notation", "web"]),
    ("notation", &[]),
    (
        "render",
        &[
            "content",
            "content-fragments",
            "content-package",
            "content-query",
            "core-components",
            "htl",
            "notation",
            "use-script",
            "web",
        ],
    ),
    ("render-export", &["content", "content-query", "notation", "render", "web"]),
    ("replicate", &["blobs", "content", "jobs", "notation", "store", "web"]),
    ("search", &["content", "content-query", "notation"]),
    (
        "server",
        &[
            "assets",
            "content",
            "content-fragments",
            "content-package",
            "content-query",
            "jobs",
            "mounts",
            "notation",
            "render",
            "render-export",
            "replicate",
            "search",
            "web",
        ],
    ),
    (
        "site",
        &[
            "content",
            "content-package",
            "home",
            "htl",
            "jobs",
            "notation",
            "render",
            "replicate",
            "web",
        ],
    ),
    ("store", &["notation"]),
    ("terminal", &["notation"]),
    ("testkit", &["blobs", "notation", "store"]),
    ("use-script", &["htl"]),
    ("web", &["notation"]),
];

#[test]
fn rooms_import_only_downwards() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ALLOWED.iter().map(|(room, below)| (*room, below.iter().copied().collect())).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut rooms = BTreeSet::new();
    let mut faults = Vec::new();
    for (room, folder) in room_folders(root) {
        let manifest: toml::Table =
            std::fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
        if manifest["package"]["name"].as_str() != Some(&format!("tympan-{room}")) {
            let folder = folder.strip_prefix(root).unwrap().display();
            faults.push(format!("the package in `{folder}` must be named `tympan-{room}`"));
        }
        match allowed.get(room.as_str()) {
            None => faults.push(format!("`{room}` is missing from the table of floors")),
            Some(below) => faults.extend(
                ours(&manifest, "dependencies")
                    .into_iter()
                    .chain(ours(&manifest, "build-dependencies"))
                    .filter(|import| !below.contains(import.as_str()))
                    .map(|import| format!("`{room}` may not import `{import}`")),
            ),
        }
        faults.extend(
            ours(&manifest, "dev-dependencies")
                .into_iter()
                .filter(|import| import != "testkit")
                .map(|import| {
                    format!("the tests of `{room}` may import `testkit` only, not `{import}`")
                }),
        );
        if manifest.contains_key("features") {
            faults.push(format!(
                "`{room}` declares features: every user runs the program that is tested"
            ));
        }
        rooms.insert(room);
    }
    faults.extend(
        allowed
            .keys()
            .filter(|room| !rooms.contains(**room))
            .map(|room| format!("the table of floors names `{room}`, which does not exist")),
    );
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn floors_have_no_cycle() {
    let below: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    fn depth(room: &str, below: &BTreeMap<&str, &[&str]>, trail: usize) -> usize {
        assert!(trail < below.len(), "`{room}` stands on itself");
        below[room].iter().map(|next| 1 + depth(next, below, trail + 1)).max().unwrap_or(0)
    }
    for (room, _) in ALLOWED {
        depth(room, &below, 0);
    }
}

/// Returns the name and the folder of each room: `crates/<room>`, and `lab/<part>` for the rooms `lab-<part>`. The lab's
/// program in `lab/tympan-lab` is the room `lab`.
fn room_folders(root: &Path) -> Vec<(String, PathBuf)> {
    let mut rooms = Vec::new();
    for (parent, prefix) in [("crates", ""), ("lab", "lab-")] {
        for entry in std::fs::read_dir(root.join(parent)).unwrap() {
            let folder = entry.unwrap().path();
            let name = folder.file_name().unwrap().to_str().unwrap();
            let room = match name.strip_prefix("tympan-") {
                Some(program) => program.to_owned(),
                None => format!("{prefix}{name}"),
            };
            rooms.push((room, folder));
        }
    }
    rooms
}

/// Returns the rooms named in one dependency table of a manifest.
fn ours(manifest: &toml::Table, table: &str) -> Vec<String> {
    let Some(table) = manifest.get(table).and_then(toml::Value::as_table) else {
        return Vec::new();
    };
    table.keys().filter_map(|name| name.strip_prefix("tympan-")).map(str::to_owned).collect()
}
