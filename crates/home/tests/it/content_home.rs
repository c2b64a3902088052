//! Homes with content.

use std::path::Path;
use std::time::SystemTime;

use tympan_content::NodePath;
use tympan_home::{Home, HomeAccess, HomeConfig, HomeProcess, parse_toml};

/// Returns the access of a command without options. The only section of a configuration is `[blobs]`.
pub(crate) fn command_access() -> HomeAccess {
    HomeAccess {
        parse_config: |file, text| {
            let blobs = parse_toml(file, text.trim_start_matches("[blobs]\n"))?;
            Ok(HomeConfig { blobs, ..HomeConfig::default() })
        },
        read_bucket_settings: || Ok(Vec::new()),
        database_url: None,
        blob_url: None,
        process: HomeProcess::Command,
    }
}

/// Opens a home, which is created if it does not exist.
pub(crate) fn open_home(dir: &Path) -> Home {
    Home::open(&command_access(), dir, HomeConfig::default()).unwrap()
}

/// Adds a node below the root.
pub(crate) fn add_node(home: &Home, name: &str) {
    let mut session = home.repository.session("system").unwrap();
    session.add_node(&NodePath::root().child(name).unwrap(), "nt:unstructured").unwrap();
    session.commit("add a node", SystemTime::now()).unwrap();
}

/// Returns true if there is a node below the root.
pub(crate) fn has_node(home: &Home, name: &str) -> bool {
    let snapshot = home.repository.snapshot().unwrap();
    snapshot.node(&NodePath::root().child(name).unwrap()).unwrap().is_some()
}
