//! Short forms that most tests of queries use.

use std::time::SystemTime;

use tympan_content::{NodePath, Session};

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

pub(crate) fn commit(session: &mut Session) {
    session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
}
