//! Formats that other programs read, where these are installed: PDF, video, HEIF, AVIF, PSD, JPEG 2000 and unusual TIFF; and
//! AVIF written.
//!
//! Each runs in a process of its own, bounded in memory and time (`child::run_tool`), on a file that it gets as its
//! standard input, and answers with a picture on its standard output.
//!
//! On failure: a document or film has no preview, with the reason; a picture is not drawn.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::NamedTempFile;
use tympan_content::BlobContent;

use super::format::Format;
use super::order::{Drawn, Encoding, Order};
use super::studio::{DrawError, Start, is_killed, system, wait_a_moment};

const PDF: &str = "pdftoppm";
const VIDEO: &str = "ffmpeg";
const OTHER: &str = "vipsthumbnail";
const AVIF: &str = "avifenc";
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
    /// Looks for the programs in folders, as `PATH` lists them.
    pub(crate) fn find(start: Start, niceness: i32, folders: Option<&OsStr>) -> Self {
        let find = |name: &str| {
            let mut files = std::env::split_paths(folders?).map(|folder| folder.join(name));
            files.find(|file| file.is_file())
        };
        Self {
            start,
            niceness,
            pdf: find(PDF),
            video: find(VIDEO),
            other: find(OTHER),
            avif: find(AVIF),
        }
    }

    /// Returns the program that makes pictures of a format, where one is needed, and its name.
    fn program_of(&self, format: Format) -> Option<(&Option<PathBuf>, &'static str)> {
        match format {
            Format::Pdf => Some((&self.pdf, PDF)),
            Format::Mp4 | Format::QuickTime | Format::Matroska | Format::WebM | Format::Avi => {
                Some((&self.video, VIDEO))
            }
            Format::Heif | Format::Avif | Format::Photoshop | Format::Jpeg2000 => {
                Some((&self.other, OTHER))
            }
            _ => None,
        }
    }

    /// Tells whether a program makes a picture of this format.
    pub(crate) fn can_read(&self, format: Format) -> bool {
        self.program_of(format).is_some_and(|(program, _)| program.is_some())
    }

    /// Tells whether a program may read a picture of this format that the decoders here refuse: a TIFF with colors or a
    /// compression that few others write.
    pub(crate) fn may_read_otherwise(&self, format: Format) -> bool {
        format == Format::Tiff && self.other.is_some()
    }

    /// Returns the name of the program that a format needs and that is not there.
    pub(crate) fn missing_for(&self, format: Format) -> Option<&'static str> {
        let (program, name) = self.program_of(format)?;
        program.is_none().then_some(name)
    }

    /// Makes a PNG of a file's first page or of a moment at its beginning.
    pub(crate) fn read(
        &self,
        format: Format,
        source: BlobContent,
        order: &Order,
    ) -> Result<Vec<u8>, DrawError> {
        let (file, _named) = into_file(source).map_err(system("read the original"))?;
        let time = Duration::from_secs(order.limits.seconds);
        let run = |program: &Option<PathBuf>, arguments: &[&str]| {
            let program = program.as_deref().unwrap_or_else(|| Path::new(""));
            let mut input = file.try_clone().map_err(system("read the original"))?;
            input.rewind().map_err(system("read the original"))?;
            self.run(program, arguments, input, time)
        };
        match format {
            Format::Pdf => run(&self.pdf, &["-singlefile", "-scale-to", SIDE, "-png", "-"]),
            Format::Mp4 | Format::QuickTime | Format::Matroska | Format::WebM | Format::Avi => {
                let at = |second: &str| {
                    let scale = format!("scale='min({SIDE},iw)':-2");
                    let arguments = [
                        "-v",
                        "error",
                        // A film may name other files and addresses.
                        "-protocol_whitelist",
                        "file,pipe",
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
            // Some of its readers take files alone, and none that has no name but `stdin`. Without the mark the picture
            // would be enlarged.
            _ => run(&self.other, &["/dev/stdin", "-s", &format!("{SIDE}x{SIDE}>"), "-o", ".png"]),
        }
    }

    /// Turns what was drawn as PNG into what was wanted where a program writes that.
    pub(crate) fn finish(&self, mut drawn: Drawn, order: &Order) -> Result<Drawn, DrawError> {
        let quality_of = |name: &str| {
            let wanted = order.renditions.iter().find(|wanted| wanted.name == name)?;
            if let Encoding::Avif(quality) = wanted.encoding { Some(quality) } else { None }
        };
        let Some(program) = self.avif.as_deref() else {
            let before = drawn.renditions.len();
            drawn.renditions.retain(|rendition| quality_of(&rendition.name).is_none());
            if drawn.renditions.len() < before {
                let warning =
                    "there is no AVIF: it takes the program `avifenc`, which is not installed";
                drawn.warnings.push(warning.to_owned());
            }
            return Ok(drawn);
        };
        for rendition in &mut drawn.renditions {
            if let Some(quality) = quality_of(&rendition.name) {
                rendition.bytes = self.encode_avif((program, quality), &rendition.bytes, order)?;
            }
        }
        Ok(drawn)
    }

    fn encode_avif(
        &self,
        (program, quality): (&Path, u8),
        png: &[u8],
        order: &Order,
    ) -> Result<Vec<u8>, DrawError> {
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
        program: &Path,
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
            .process_group(0)
            .spawn()
            .map_err(system("start a program that reads the file"))?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let waiting = system("wait for a program that reads the file");
        let Some(said) = read_all(&mut child, time) else {
            child.kill().ok();
            child.wait().map_err(waiting)?;
            let reason = format!("`{name}` took longer than {} s", time.as_secs());
            return Err(DrawError::File(reason));
        };
        match wait_a_moment(&mut child).map_err(waiting)? {
            Some(status) if is_killed(status) => Err(DrawError::Killed),
            Some(status) if said.is_empty() => {
                Err(DrawError::File(format!("`{name}` made no picture of it ({status})")))
            }
            _ => Ok(said),
        }
    }
}

impl Format {
    /// Tells whether it is a picture that stands for itself, not a document or film.
    pub(crate) fn is_still(self) -> bool {
        matches!(self, Self::Heif | Self::Avif | Self::Photoshop | Self::Jpeg2000)
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

/// Programs look back and forth in a file, which a pipe does not let them. Some open `/dev/stdin` by the name of the file
/// behind it, so that it must have one until they have ended.
fn into_file(source: BlobContent) -> std::io::Result<(File, Option<NamedTempFile>)> {
    match source {
        BlobContent::File { file, .. } => Ok((file, None)),
        BlobContent::Bytes(bytes) => {
            let mut named = NamedTempFile::new()?;
            named.write_all(&bytes)?;
            Ok((named.reopen()?, Some(named)))
        }
    }
}
