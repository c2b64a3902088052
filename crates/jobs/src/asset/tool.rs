//! Formats that other programs read, where these are installed: PDF, video, HEIF and AVIF; and AVIF written.
//!
//! Each runs in a process of its own, bounded in memory and time (`child::run_tool`), on a file that it gets as its
//! standard input, and answers with a picture on its standard output.
//!
//! On failure: a document or film has no preview, with the reason; a picture is not drawn.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tympan_content::BlobContent;

use super::format::Format;
use super::order::{Drawn, Encoding, Order};
use super::studio::{DrawError, Start, system};

/// Memory of one program.
const MEMORY: u64 = 4 << 30;
/// The most bytes of a picture that one makes.
const MAX_PICTURE: u64 = 256 << 20;
/// The longest side of the picture that is asked for.
const SIDE: &str = "2048";

/// The programs that were found.
#[derive(Debug)]
pub(crate) struct Tools {
    start: Start,
    niceness: i32,
    pdf: Option<PathBuf>,
    video: Option<PathBuf>,
    other: Option<PathBuf>,
    avif: Option<PathBuf>,
}

impl Tools {
    pub(crate) fn find(start: Start, niceness: i32) -> Self {
        Self {
            start,
            niceness,
            pdf: find("pdftoppm"),
            video: find("ffmpeg"),
            other: find("vipsthumbnail"),
            avif: find("avifenc"),
        }
    }

    /// Tells whether a program makes a picture of this format.
    pub(crate) fn can_read(&self, format: Format) -> bool {
        match format {
            Format::Pdf => self.pdf.is_some(),
            Format::Mp4 | Format::QuickTime | Format::Matroska | Format::Avi => {
                self.video.is_some()
            }
            Format::Heif | Format::Avif | Format::Photoshop => self.other.is_some(),
            _ => false,
        }
    }

    /// Makes a PNG of a file's first page or of a moment at its beginning.
    pub(crate) fn read(
        &self,
        format: Format,
        source: BlobContent,
        order: &Order,
    ) -> Result<Vec<u8>, DrawError> {
        let file = into_file(source).map_err(system("read the original"))?;
        let time = Duration::from_secs(order.limits.seconds);
        let run = |program: &Option<PathBuf>, arguments: &[&str]| {
            let program = program.as_deref().unwrap_or_else(|| std::path::Path::new(""));
            let mut input = file.try_clone().map_err(system("read the original"))?;
            input.rewind().map_err(system("read the original"))?;
            self.run(program, arguments, input, time)
        };
        match format {
            Format::Pdf => run(&self.pdf, &["-singlefile", "-scale-to", SIDE, "-png", "-"]),
            Format::Mp4 | Format::QuickTime | Format::Matroska | Format::Avi => {
                let at = |second: &str| {
                    let scale = format!("scale='min({SIDE},iw)':-2");
                    let arguments = [
                        "-v",
                        "error",
                        "-ss",
                        second,
                        "-i",
                        "/dev/stdin",
                        "-frames:v",
                        "1",
                        "-vf",
                        &scale,
                        "-c:v",
                        "png",
                        "-f",
                        "image2pipe",
                        "-",
                    ];
                    run(&self.video, &arguments)
                };
                // A film of less than a second has nothing there.
                at("1").or_else(|_| at("0"))
            }
            _ => run(&self.other, &["stdin", "-s", SIDE, "-o", ".png"]),
        }
    }

    /// Turns what was drawn as PNG into what was wanted where a program writes that.
    pub(crate) fn finish(&self, mut drawn: Drawn, order: &Order) -> Result<Drawn, DrawError> {
        for rendition in &mut drawn.renditions {
            let wanted = order.renditions.iter().find(|wanted| wanted.name == rendition.name);
            if let Some(Encoding::Avif(quality)) = wanted.map(|wanted| wanted.encoding) {
                rendition.bytes = self.encode_avif(&rendition.bytes, quality, order)?;
            }
        }
        Ok(drawn)
    }

    fn encode_avif(&self, png: &[u8], quality: u8, order: &Order) -> Result<Vec<u8>, DrawError> {
        let Some(program) = self.avif.as_deref() else {
            let reason = "AVIF is wanted, but the program `avifenc` is not installed";
            return Err(DrawError::File(reason.to_owned()));
        };
        let folder = tempfile::tempdir().map_err(system("make a folder for AVIF"))?;
        let (from, to) = (folder.path().join("a.png"), folder.path().join("a.avif"));
        std::fs::write(&from, png).map_err(system("write a picture for AVIF"))?;
        // Its scale ends with the worst at 63.
        let quantizer = (63 * u32::from(100 - quality.min(100)) / 100).to_string();
        let (from, target) = (from.to_string_lossy(), to.to_string_lossy());
        let arguments =
            ["--speed", "8", "--min", &quantizer, "--max", &quantizer, &*from, &*target];
        let nothing = File::open("/dev/null").map_err(system("open /dev/null"))?;
        let time = Duration::from_secs(order.limits.seconds);
        let ran = self.run(program, &arguments, nothing, time);
        match std::fs::read(&to) {
            Ok(bytes) if !bytes.is_empty() => Ok(bytes),
            _ => Err(ran.err().unwrap_or(DrawError::File("`avifenc` wrote nothing".to_owned()))),
        }
    }

    fn run(
        &self,
        program: &std::path::Path,
        arguments: &[&str],
        input: File,
        time: Duration,
    ) -> Result<Vec<u8>, DrawError> {
        let bounds = [MEMORY.to_string(), time.as_secs().to_string(), self.niceness.to_string()];
        let mut child = Command::new(&self.start.program)
            .args(&self.start.arguments)
            .args(bounds.map(OsString::from))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env_clear()
            .spawn()
            .map_err(system("start a program that reads the file"))?;
        let said = read_all(&mut child, time);
        child.kill().ok();
        let status = child.wait().map_err(system("wait for a program that reads the file"))?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        match said {
            None => Err(DrawError::File(format!("`{name}` took longer than {} s", time.as_secs()))),
            Some(said) if said.is_empty() => {
                Err(DrawError::File(format!("`{name}` made no picture of it ({status})")))
            }
            Some(said) => Ok(said),
        }
    }
}

impl Format {
    /// Tells whether it is a picture that stands for itself, not a document or film.
    pub(crate) fn is_still(self) -> bool {
        matches!(self, Self::Heif | Self::Avif | Self::Photoshop)
    }
}

/// Reads what a program writes; nothing if that takes too long.
fn read_all(child: &mut Child, time: Duration) -> Option<Vec<u8>> {
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        output.take(MAX_PICTURE).read_to_end(&mut said).ok();
        // Nobody listens any more after the time is over.
        sender.send(said).ok();
    });
    receiver.recv_timeout(time).ok()
}

/// Programs look back and forth in a file, which a pipe does not let them.
fn into_file(source: BlobContent) -> std::io::Result<File> {
    match source {
        BlobContent::File { file, .. } => Ok(file),
        BlobContent::Bytes(bytes) => {
            let mut file = tempfile::tempfile()?;
            file.write_all(&bytes)?;
            Ok(file)
        }
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
