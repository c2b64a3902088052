//! The user of a vault.

use crate::source::user_group_names::UserGroupNames;

/// The user of a vault, as recorded in snapshots, keys and locks.
#[derive(Clone, Debug)]
pub struct VaultUser {
    /// The host name.
    pub host: String,
    /// The user name.
    pub user: String,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The process id.
    pub pid: u32,
    /// The scope of the process id: a PID namespace and the boot of the machine. Containers with the same host name
    /// differ in it. Empty if the system does not provide it.
    pub pid_scope: String,
}

impl VaultUser {
    /// Returns the identity of this process.
    #[must_use]
    pub fn this_process() -> Self {
        let uid = rustix::process::getuid().as_raw();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().to_owned();
        let user = UserGroupNames::read_system().user(uid).unwrap_or_default().to_owned();
        let gid = rustix::process::getgid().as_raw();
        Self { host, user, uid, gid, pid: std::process::id(), pid_scope: read_pid_scope() }
    }
}

/// Returns a name for the boot of this machine and the PID namespace; the system reuses the number of the latter after
/// a boot.
fn read_pid_scope() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}
