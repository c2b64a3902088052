//! The sample site: homes that `tympan demo` filled, and instances started on them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tympan_blobs::LocalBlobStore;
use tympan_content::Repository;
use tympan_store::disk::FileDisk;
use tympan_store::{LocalStore, LocalStoreOptions};

use crate::Outcome;
use crate::context::SERVER_CORE;
use crate::load::Target;
use crate::process::{Process, address_in, free_address, pinned};

/// The sample site's home page.
pub(crate) const HOME_PAGE: &str = "/content/wayfare/en.html";
/// One of the bench pages.
pub(crate) const BENCH_PAGE: &str = "/content/bench/f3/p345.html";
/// The bench page's data.
pub(crate) const BENCH_JSON: &str = "/content/bench/f3/p345.json";
/// A file of 102,400 bytes.
pub(crate) const BENCH_BINARY: &str = "/content/bench/bin100k.bin";

const START_LIMIT: Duration = Duration::from_secs(120);

/// The whole demo: author, publisher and dispatcher in one process.
#[derive(Debug)]
pub(crate) struct Demo {
    /// Stops with it.
    _process: Process,
    home: PathBuf,
    /// Where the author listens.
    pub(crate) author: SocketAddr,
    publish: SocketAddr,
    /// Where the dispatcher listens.
    pub(crate) dispatcher: SocketAddr,
    /// What the first user says in `Authorization`.
    pub(crate) credentials: String,
}

impl Demo {
    /// Starts it in a new folder.
    ///
    /// # Errors
    /// If it does not get ready.
    pub(crate) fn start(program: &Path, folder: &Path) -> Outcome<Self> {
        let addresses = [free_address()?, free_address()?, free_address()?];
        Self::start_at(program, folder, addresses)
    }

    /// Stops it, works on the repositories of author and publisher, and starts it again.
    ///
    /// # Errors
    /// If the work fails, or it does not get ready.
    pub(crate) fn reopened(
        self,
        (program, folder): (&Path, &Path),
        work: impl Fn(&Repository) -> Outcome<()>,
    ) -> Outcome<Self> {
        let (addresses, home) = ([self.author, self.publish, self.dispatcher], self.home.clone());
        drop(self);
        for role in ["author", "publish"] {
            work(&open(&home.join(role))?)?;
        }
        Self::start_at(program, folder, addresses)
    }

    fn start_at(program: &Path, folder: &Path, addresses: [SocketAddr; 3]) -> Outcome<Self> {
        let home = folder.join("demo");
        let [author, publish, dispatcher] = addresses;
        let mut command = Command::new(program);
        command.arg("demo").arg("--home").arg(&home);
        for (role, address) in
            [("--author", author), ("--publish", publish), ("--dispatcher", dispatcher)]
        {
            command.args([role, &address.to_string()]);
        }
        let mut process = Process::start(command, folder)?;
        process.wait_until_ready(START_LIMIT)?;
        let password = std::fs::read_to_string(home.join("author/initial-password"))?;
        let credentials = format!("Basic {}", base64(&format!("admin:{}", password.trim())));
        Ok(Self { _process: process, home, author, publish, dispatcher, credentials })
    }
}

/// Writes a text in Base64.
fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in text.as_bytes().chunks(3) {
        let mut bytes = [0_u8; 3];
        bytes.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        let [first, second, third] = bytes.map(u32::from);
        let number = first << 16 | second << 8 | third;
        for place in 0..4 {
            let index = (number >> (18 - 6 * place)) & 63;
            let letter = LETTERS.get(index as usize).copied().map_or('=', char::from);
            out.push(if place > part.len() { '=' } else { letter });
        }
    }
    out
}

/// Homes with the sample site.
#[derive(Debug)]
pub(crate) struct Site {
    program: PathBuf,
    home: PathBuf,
}

/// A running server of ours.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts `tympan` with these arguments, pinned to the servers' core.
    ///
    /// # Errors
    /// If it does not get ready.
    pub(crate) fn start(program: &Path, arguments: &[&str], folder: &Path) -> Outcome<Self> {
        Self::start_command(pinned(SERVER_CORE, program), arguments, folder)
    }

    /// Starts `tympan` with these arguments, on every core.
    ///
    /// # Errors
    /// If it does not get ready.
    pub(crate) fn start_unpinned(
        program: &Path,
        arguments: &[&str],
        folder: &Path,
    ) -> Outcome<Self> {
        Self::start_command(Command::new(program), arguments, folder)
    }

    fn start_command(mut command: Command, arguments: &[&str], folder: &Path) -> Outcome<Self> {
        command.args(arguments);
        let mut process = Process::start(command, folder)?;
        let lines = process.wait_until_ready(START_LIMIT)?;
        Ok(Self { process, address: address_in(&lines)? })
    }

    /// Returns the process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns a path of this server as a target of load.
    pub(crate) fn target(&self, path: &str) -> Target {
        Target { address: self.address, path: path.to_owned(), pid: self.pid() }
    }
}

impl Site {
    /// Imports the sample site into new homes below `folder`.
    ///
    /// # Errors
    /// If the demo does not get ready.
    pub(crate) fn import(program: &Path, folder: &Path) -> Outcome<Self> {
        let home = folder.join("home");
        let mut command = pinned(SERVER_CORE, program);
        command.arg("demo").arg("--home").arg(&home);
        for role in ["--author", "--publish", "--dispatcher"] {
            command.args([role, "127.0.0.1:0"]);
        }
        let mut demo = Process::start(command, folder)?;
        demo.wait_until_ready(START_LIMIT)?;
        demo.stop();
        Ok(Self { program: program.to_owned(), home })
    }

    /// Starts a publisher on the site.
    ///
    /// # Errors
    /// If it does not get ready.
    pub(crate) fn publish(&self) -> Outcome<Server> {
        let home = self.publish_home();
        let text = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
        Server::start(
            &self.program,
            &["publish", "--home", text, "--listen", "127.0.0.1:0"],
            &self.home,
        )
    }

    /// Starts a publisher on the site that may use every core.
    ///
    /// # Errors
    /// If it does not get ready.
    pub(crate) fn publish_unpinned(&self) -> Outcome<Server> {
        let home = self.publish_home();
        let text = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
        let arguments = ["publish", "--home", text, "--listen", "127.0.0.1:0"];
        Server::start_unpinned(&self.program, &arguments, &self.home)
    }

    /// Writes the publisher's `tympan.toml`; an empty text takes it away.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn configure(&self, text: &str) -> Outcome<()> {
        let file = self.publish_home().join("tympan.toml");
        match text {
            "" if file.exists() => std::fs::remove_file(file)?,
            "" => {}
            text => std::fs::write(file, text)?,
        }
        Ok(())
    }

    /// Opens the publisher's content in this process; no publisher may run meanwhile.
    ///
    /// # Errors
    /// If a publisher runs, or the home is damaged.
    pub(crate) fn open(&self) -> Outcome<Repository> {
        open(&self.publish_home())
    }

    fn publish_home(&self) -> PathBuf {
        self.home.join("publish")
    }
}

/// Opens the content of a home in this process.
fn open(home: &Path) -> Outcome<Repository> {
    let disk = FileDisk::open(home.join("store"))?;
    let chunks = Arc::new(LocalStore::open(Arc::new(disk), LocalStoreOptions::default())?);
    let blobs = LocalBlobStore::open(&home.join("blobs"), chunks.clone())?;
    Ok(Repository::open(chunks, Arc::new(blobs))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_written_in_base64() {
        for (text, expected) in [
            ("", ""),
            ("a", "YQ=="),
            ("ab", "YWI="),
            ("abc", "YWJj"),
            ("admin:x?>", "YWRtaW46eD8+"),
        ] {
            assert_eq!(base64(text), expected);
        }
    }
}
