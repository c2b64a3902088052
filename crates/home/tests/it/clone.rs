//! Clones, copies and standbys of a home.

use tokio::sync::watch;
use tympan_home::{
    BaseAccess, Error, Home, HomeConfig, HomeOrigin, StandbyEvent, StandbyHome, absolute_origin,
    copy_home, create_clone, promote_standby,
};

use crate::content_home::{add_node, command_access, has_node, open_home};

#[test]
fn a_clone_reads_from_its_base_and_changes_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (base_dir, clone_dir) = (dir.path().join("base"), dir.path().join("clone"));
    let base = open_home(&base_dir);
    add_node(&base, "page");
    let from = absolute_origin(base_dir.to_str().unwrap()).unwrap();
    let access = BaseAccess::default();
    create_clone(&command_access(), &clone_dir, &from, &access).unwrap();
    let again = create_clone(&command_access(), &clone_dir, &from, &access);
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    let clone = open_home(&clone_dir);
    assert!(clone.composite.is_some() && has_node(&clone, "page"));
    add_node(&clone, "draft");
    assert!(has_node(&clone, "draft") && !has_node(&base, "draft"));
    let of_clone = create_clone(
        &command_access(),
        &dir.path().join("second"),
        clone_dir.to_str().unwrap(),
        &access,
    );
    assert!(matches!(of_clone, Err(Error::Refused(_))), "{of_clone:?}");
}

#[test]
fn a_copy_is_independent() {
    let dir = tempfile::tempdir().unwrap();
    let (base_dir, copy_dir) = (dir.path().join("base"), dir.path().join("copy"));
    let base = open_home(&base_dir);
    add_node(&base, "page");
    let from = absolute_origin(base_dir.to_str().unwrap()).unwrap();
    std::fs::create_dir(&copy_dir).unwrap();
    std::fs::write(copy_dir.join("tympan.toml"), "[blobs]\n").unwrap();
    let report = copy_home(&command_access(), &copy_dir, &from, &BaseAccess::default()).unwrap();
    assert!(report.root.is_some() && report.copied.sync_stats.fetched_chunks > 0);
    drop(base);
    std::fs::remove_dir_all(&base_dir).unwrap();
    assert!(has_node(&open_home(&copy_dir), "page"));
}

#[test]
fn a_standby_takes_over_when_it_is_promoted() {
    let dir = tempfile::tempdir().unwrap();
    let (base_dir, standby_dir) = (dir.path().join("base"), dir.path().join("standby"));
    assert!(matches!(promote_standby(&base_dir), Err(Error::Refused(_))));
    let base = open_home(&base_dir);
    add_node(&base, "page");
    let from = absolute_origin(base_dir.to_str().unwrap()).unwrap();
    let access = BaseAccess::default();
    let standby = StandbyHome::open(&command_access(), &standby_dir, (&from, &access)).unwrap();
    let (stop, stopped) = watch::channel(false);
    let mut last_fault = None;
    standby.follow_until_stopped(&stopped, &mut |event| match event {
        StandbyEvent::Ready => {
            stop.send_replace(true);
        }
        StandbyEvent::News(status) => last_fault.clone_from(&status.fault),
    });
    assert_eq!(last_fault, None);
    drop(standby);
    let refused = Home::open(&command_access(), &standby_dir, HomeConfig::default());
    assert!(matches!(refused.unwrap_err(), Error::Refused(_)));
    let other = StandbyHome::open(&command_access(), &standby_dir, ("/elsewhere", &access));
    assert!(matches!(other.unwrap_err(), Error::Refused(_)));
    let promoted = promote_standby(&standby_dir).unwrap();
    assert_eq!(promoted.from, from);
    assert!(promoted.complete_until.is_some());
    assert!(HomeOrigin::read_standby(&standby_dir).unwrap().is_none());
    assert!(has_node(&open_home(&standby_dir), "page"));
}
