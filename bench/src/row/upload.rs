//! A2: from uploads to all their renditions, beside a chain of `vipsthumbnail` on the same processor.
//!
//! The pictures are one photograph of 24 megapixels, each with a few bytes of its own behind the end, so that none is
//! stored or drawn twice for another. The peer stores each picture as a file and makes the four renditions of it; both
//! sides have all renditions on the disk at the end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::changes::{ask, login};
use crate::Outcome;
use crate::alternate::{Spread, alternate};
use crate::context::{Context, SERVER_CORE};
use crate::figure::{Figure, Goal};
use crate::process::{is_installed, pinned};
use crate::site::Server;

const ROW: &str = "A2";
const ASSETS: usize = 100;
const FOLDER: &str = "/content/dam";
/// How long all assets of a run may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let what = "assets a second, from the first upload to the last rendition";
    if !is_installed("vipsthumbnail") || !is_installed("vips") {
        let reason = "it needs `vips` and `vipsthumbnail` (libvips-tools), which are not installed";
        return Ok(vec![Figure::missing(ROW, what, reason)]);
    }
    let (count, rounds) = if context.is_quick { (ASSETS / 10, 2) } else { (ASSETS, 3) };
    let photo = std::fs::read(photograph(&context.new_folder("photo-")?, 4)?)?;
    let author = Author::start(context)?;
    // One processor, so all of it: the goal compares on the same cores.
    author.set("queue.maxparallel=-1")?;
    let mut first = 0;
    let folder = context.new_folder("vips-")?;
    let [ours, theirs] = alternate(
        rounds,
        [
            &mut || {
                first += count;
                author.rate_of(&photo, first - count..first)
            },
            &mut || chain(&photo, count, &folder),
        ],
    )?;
    let ratios = Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
    let note = format!(
        "{count} pictures of 24 megapixels and {:.1} MB; {:.2} assets a second, the peer {:.2}",
        photo.len() as f64 / 1e6,
        Spread::of(ours).median,
        Spread::of(theirs).median,
    );
    let figure = Figure::spread(ROW, what, &ratios, "x").against("a chain of vipsthumbnail");
    Ok(vec![figure.goal(Goal::AtLeast(3.0)).note(note)])
}

/// Makes a photograph of 24 megapixels; the more noise, the larger the file.
pub(super) fn photograph(folder: &Path, noise: u32) -> Outcome<PathBuf> {
    let file = folder.join("photo.jpg");
    let noise = noise.to_string();
    let steps: [&[&str]; 9] = [
        &["fractsurf", "f.v", "1500", "1000", "2.5"],
        &["scale", "f.v", "s.v"],
        &["resize", "s.v", "b.v", "4", "--kernel", "cubic"],
        &["gaussnoise", "n.v", "6000", "4000", "--sigma", &noise, "--mean", "0"],
        &["add", "b.v", "n.v", "a.v"],
        &["cast", "a.v", "u.v", "uchar"],
        &["bandjoin", "u.v u.v u.v", "c.v"],
        &["copy", "c.v", "d.v", "--interpretation", "srgb"],
        &["jpegsave", "d.v", "photo.jpg", "--Q", "90"],
    ];
    for step in steps {
        let status = Command::new("vips").args(step).current_dir(folder).status()?;
        if !status.success() {
            return Err(format!("`vips {}` failed", step.join(" ")).into());
        }
    }
    Ok(file)
}

/// An author that takes uploads.
pub(super) struct Author {
    server: Server,
    login: String,
}

impl Author {
    /// Starts one in a new home.
    pub(super) fn start(context: &Context) -> Outcome<Self> {
        Self::start_in(context, &context.new_folder("uploads-")?)
    }

    /// Starts one in the home below a folder, which may have content already.
    pub(super) fn start_in(context: &Context, folder: &Path) -> Outcome<Self> {
        let home = folder.join("home");
        let text = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
        let arguments = ["author", "--home", text, "--listen", "127.0.0.1:0"];
        let server = Server::start(context.program()?, &arguments, folder)?;
        let author = Self { server, login: login(&home)? };
        for path in ["/content", FOLDER] {
            // A home that has content has the first of them.
            if ask(author.address(), "GET", &format!("{path}.json"), &author.login, "").is_err() {
                let form = "jcr:primaryType=sling:Folder";
                ask(author.address(), "POST", path, &author.login, form)?;
            }
        }
        Ok(author)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    pub(super) fn login(&self) -> &str {
        &self.login
    }

    /// Sets a property of the queue of assets.
    fn set(&self, setting: &str) -> Outcome<()> {
        let form = format!("queue=Granite+Workflow+Queue&set={}", setting.replace('=', "%3D"));
        ask(self.address(), "POST", "/api/v1/jobs/queues/set", &self.login, &form).map(drop)
    }

    /// Uploads a picture under a number.
    fn upload(&self, photo: &[u8], number: usize) -> Outcome<()> {
        upload(self.address(), &self.login, photo, number)
    }

    /// Counts the assets that are finished.
    pub(super) fn finished(&self) -> Outcome<usize> {
        finished(self.address(), &self.login)
    }

    /// Waits until this many are finished.
    pub(super) fn wait_for(&self, count: usize) -> Outcome<()> {
        let begun = Instant::now();
        while self.finished()? < count {
            if begun.elapsed() > LIMIT {
                return Err(format!("{count} assets are not finished in time").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Uploads pictures one after the other; gives assets a second.
    fn rate_of(&self, photo: &[u8], numbers: std::ops::Range<usize>) -> Outcome<f64> {
        let (count, last) = (numbers.len(), numbers.end);
        let begun = Instant::now();
        for number in numbers {
            self.upload(photo, number)?;
        }
        self.wait_for(last)?;
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }
}

/// Counts the assets that an author has finished since it started.
pub(super) fn finished(address: SocketAddr, login: &str) -> Outcome<usize> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: bench\r\nAuthorization: Basic {login}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let name = "tympan_assets_processed_total{";
    let line = answer.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.ok_or_else(|| "the author does not say how many assets are finished".into())
}

/// Uploads a picture under a number, with that number behind its end.
pub(super) fn upload(address: SocketAddr, login: &str, photo: &[u8], number: usize) -> Outcome<()> {
    let numbered = [photo, &number.to_le_bytes()].concat();
    store(address, login, (FOLDER, &format!("p{number}.jpg")), &numbered)
}

/// Uploads a picture to a folder, as an asset.
pub(super) fn store(
    address: SocketAddr,
    login: &str,
    (folder, name): (&str, &str),
    picture: &[u8],
) -> Outcome<()> {
    let mut body = format!(
        "--b\r\nContent-Disposition: form-data; name=\":operation\"\r\n\r\ncreateasset\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: image/jpeg\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(picture);
    body.extend_from_slice(b"\r\n--b--\r\n");
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST {folder} HTTP/1.0\r\nHost: bench\r\nAuthorization: Basic {login}\r\nAccept: application/json\r\n\
         Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
        return Ok(());
    }
    Err(format!("an upload was answered by {answer}").into())
}

/// Stores pictures and makes the renditions of each by the peer; gives assets a second.
fn chain(photo: &[u8], count: usize, folder: &Path) -> Outcome<f64> {
    let begun = Instant::now();
    for number in 0..count {
        let file = folder.join(format!("p{number}.jpg"));
        std::fs::write(&file, [photo, &number.to_le_bytes()].concat())?;
        std::fs::File::open(&file)?.sync_all()?;
        for (size, name) in [
            ("1280x1280>", "web.jpg[Q=90,strip]"),
            ("319x319", "319.png[strip]"),
            ("140x100", "140.png[strip]"),
            ("48x48", "48.png[strip]"),
        ] {
            let target = folder.join(format!("p{number}.{name}"));
            let mut command = pinned(SERVER_CORE, "vipsthumbnail");
            command.arg(&file).args(["-s", size, "-o"]).arg(target);
            if !command.stdin(Stdio::null()).status()?.success() {
                return Err("`vipsthumbnail` failed".into());
            }
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
