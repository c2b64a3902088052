//! The peers Varnish and Apache, as Debian has them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::Outcome;
use crate::context::SERVER_CORE;
use crate::process::{Process, free_address, is_installed, pinned};

/// A running peer.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Process,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Peer {
    /// Starts Varnish with a cache in memory; it logs to shared memory, as it does where nobody reads its log.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub(crate) fn varnish(origin: SocketAddr, folder: &Path) -> Outcome<Self> {
        if !is_installed("varnishd") {
            return Err("varnishd is not installed".into());
        }
        let address = free_address()?;
        let mut command = pinned(SERVER_CORE, "varnishd");
        command.arg("-F").arg("-a").arg(address.to_string()).arg("-b").arg(origin.to_string());
        command.arg("-n").arg(folder.join("varnish")).args(["-s", "malloc,256m", "-j", "none"]);
        Self::start(command, address, folder)
    }

    /// Starts Apache with its event module on the files of a folder, with an access log.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub(crate) fn apache(root: &Path, folder: &Path) -> Outcome<Self> {
        if !is_installed("apache2") {
            return Err("apache2 is not installed".into());
        }
        let address = free_address()?;
        let config = folder.join("apache.conf");
        std::fs::write(&config, apache_config(address, root, folder))?;
        // Its workers give up root and have to reach the files.
        for folder in [Some(folder), folder.parent(), folder.parent().and_then(Path::parent)] {
            if let Some(folder) = folder {
                use std::os::unix::fs::PermissionsExt;
                std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
            }
        }
        let mut command = pinned(SERVER_CORE, "apache2");
        command.arg("-f").arg(&config).arg("-DFOREGROUND");
        Self::start(command, address, folder)
    }

    fn start(command: std::process::Command, address: SocketAddr, folder: &Path) -> Outcome<Self> {
        let mut process = Process::start(command, folder)?;
        // Varnish compiles its configuration with the C compiler first.
        process.wait_for_port(address, Duration::from_secs(60))?;
        Ok(Self { process, address })
    }

    /// Returns the id of the main process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

fn apache_config(address: SocketAddr, root: &Path, folder: &Path) -> String {
    let (dir, root) = (folder.display(), root.display());
    let modules = "/usr/lib/apache2/modules";
    let loads: String = ["mpm_event", "authz_core", "mime"]
        .iter()
        .map(|name| format!("LoadModule {name}_module {modules}/mod_{name}.so\n"))
        .collect();
    format!(
        "{loads}Listen {address}\nServerName localhost\nServerRoot {dir}\nPidFile {dir}/apache.pid\n\
         DefaultRuntimeDir {dir}\nUser www-data\nGroup www-data\nErrorLog {dir}/apache-errors.log\n\
         LogFormat \"%h %l %u %t \\\"%r\\\" %>s %O \\\"%{{Referer}}i\\\" \\\"%{{User-Agent}}i\\\"\" combined\n\
         CustomLog {dir}/apache-access.log combined\nBufferedLogs On\nTypesConfig /etc/mime.types\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 65\nServerLimit 4\nThreadsPerChild 256\n\
         ThreadLimit 256\nMaxSpareThreads 1024\nMaxRequestWorkers 1024\nAsyncRequestWorkerFactor 4\n\
         DocumentRoot {root}\n<Directory {root}>\nRequire all granted\n</Directory>\n"
    )
}
