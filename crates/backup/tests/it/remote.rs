//! Places on other machines that tests start themselves: a host with SSH, a server of buckets.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tympan_backup::{S3Backend, SftpAddress, SftpBackend, SftpOptions};
use tympan_blobs::{BucketOptions, ObjectBucket};
use tympan_testkit::bucket_server::BucketServer;
use tympan_testkit::ssh_server::SshServer;

/// A host that lets this user in.
pub(crate) struct Host {
    pub(crate) sshd: SshServer,
    pub(crate) dir: tempfile::TempDir,
}

impl Host {
    /// Starts one; nothing, said aloud, where there is no server.
    pub(crate) fn start(arguments: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let sshd = SshServer::start(&dir.path().join("ssh"), arguments)?;
        Some(Self { sshd, dir })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn options(&self, at: SocketAddr) -> SftpOptions {
        SftpOptions {
            user: self.sshd.user().to_owned(),
            keys: vec![self.sshd.user_key()],
            known_hosts: vec![self.sshd.write_known_hosts(at)],
            retry_timeout: Duration::from_secs(60),
            ..SftpOptions::default()
        }
    }

    /// A vault in a folder beside the server's files.
    pub(crate) fn backend(&self, name: &str) -> SftpBackend {
        let at = self.sshd.addr();
        self.backend_at(at, name, self.options(at))
    }

    /// The same, by way of a proxy.
    pub(crate) fn backend_at(
        &self,
        at: SocketAddr,
        name: &str,
        options: SftpOptions,
    ) -> SftpBackend {
        let place = format!("sftp://{at}{}", self.path(name).display());
        let address = SftpAddress::parse(&place).unwrap().unwrap();
        SftpBackend::new(&place, address, options).unwrap()
    }
}

/// A server of buckets with one bucket.
pub(crate) struct Bucket(BucketServer);

impl Bucket {
    pub(crate) fn start() -> Option<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        BucketServer::start_moto(target.parent().unwrap_or(target)).map(Self)
    }

    pub(crate) fn backend(&self, prefix: &str) -> S3Backend {
        let mut options = BucketOptions::new(self.0.url(prefix), "");
        options.settings = self.0.client_settings(self.0.addr());
        S3Backend::new(format!("s3:{prefix}"), ObjectBucket::open(&options).unwrap(), 4)
    }
}
