//! Runs external programs for formats that are not decoded here: PDF, video, HEIF, AVIF, PSD, JPEG 2000 and unusual
//! TIFF; also encodes AVIF.
//!
//! Each program runs in a process of its own, with limits on memory and time (`rendition_process::run_tool`). It
//! receives the file as its standard input, and writes a picture to its standard output.
//!
//! On failure: a document or video has no preview, with the reason; a picture has no renditions.

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

use crate::child_process::{ProgramCommand, is_killed_externally, wait_for_exit};
use crate::file_format::FileFormat;
use crate::processing_request::{AssetProcessingRequest, AssetProcessingResult, RenditionEncoding};
use crate::rendition_error::{RenditionError, system_error};

const PDF_TOOL: &str = "pdftoppm";
const VIDEO_TOOL: &str = "ffmpeg";
const IMAGE_TOOL: &str = "vipsthumbnail";
const AVIF_TOOL: &str = "avifenc";
/// Memory limit of one program, in bytes.
const TOOL_MEMORY_BYTES: u64 = 4 << 30;
/// Maximum size of a picture that a program writes, in bytes.
const MAX_PICTURE_BYTES: u64 = 256 << 20;
/// The requested longest side of the picture, in pixels.
const LONGEST_SIDE: &str = "2048";

/// The programs that were found.
#[derive(Debug)]
pub(crate) struct ExternalTools {
    command: ProgramCommand,
    niceness: i32,
    pdf_tool: Option<PathBuf>,
    video_tool: Option<PathBuf>,
    image_tool: Option<PathBuf>,
    avif_tool: Option<PathBuf>,
}

impl ExternalTools {
    /// Searches for the programs in a `PATH`-style list of folders.
    pub(crate) fn find_in_path(
        start: ProgramCommand,
        niceness: i32,
        folders: Option<&OsStr>,
    ) -> Self {
        let find = |name: &str| {
            let mut files = std::env::split_paths(folders?).map(|folder| folder.join(name));
            files.find(|file| file.is_file())
        };
        Self {
            command: start,
            niceness,
            pdf_tool: find(PDF_TOOL),
            video_tool: find(VIDEO_TOOL),
            image_tool: find(IMAGE_TOOL),
            avif_tool: find(AVIF_TOOL),
        }
    }

    /// Returns the program that converts a format, if one is needed, and its name.
    fn tool_for(&self, format: FileFormat) -> Option<(&Option<PathBuf>, &'static str)> {
        match format {
            FileFormat::Pdf => Some((&self.pdf_tool, PDF_TOOL)),
            FileFormat::Mp4
            | FileFormat::QuickTime
            | FileFormat::Matroska
            | FileFormat::WebM
            | FileFormat::Avi => Some((&self.video_tool, VIDEO_TOOL)),
            FileFormat::Heif | FileFormat::Avif | FileFormat::Photoshop | FileFormat::Jpeg2000 => {
                Some((&self.image_tool, IMAGE_TOOL))
            }
            _ => None,
        }
    }

    /// Returns true if a program can convert this format to a picture.
    pub(crate) fn can_read(&self, format: FileFormat) -> bool {
        self.tool_for(format).is_some_and(|(program, _)| program.is_some())
    }

    /// Returns true if a program may read a picture of this format that the decoders here reject: a TIFF with rare
    /// colors or compression.
    pub(crate) fn can_retry_refused(&self, format: FileFormat) -> bool {
        format == FileFormat::Tiff && self.image_tool.is_some()
    }

    /// Returns the name of the program that a format needs and that is not installed.
    pub(crate) fn missing_tool_for(&self, format: FileFormat) -> Option<&'static str> {
        let (program, name) = self.tool_for(format)?;
        program.is_none().then_some(name)
    }

    /// Makes a PNG of a document's first page, or of a frame near the start of a video.
    pub(crate) fn convert_to_png(
        &self,
        format: FileFormat,
        source: BlobContent,
        request: &AssetProcessingRequest,
    ) -> Result<Vec<u8>, RenditionError> {
        let (file, _named) =
            into_seekable_file(source).map_err(system_error("read the original"))?;
        let time = Duration::from_secs(request.limits.seconds);
        let run = |program: &Option<PathBuf>, arguments: &[&str]| {
            let program = program.as_deref().unwrap_or_else(|| Path::new(""));
            let mut input = file.try_clone().map_err(system_error("read the original"))?;
            input.rewind().map_err(system_error("read the original"))?;
            self.run_tool(program, arguments, input, time)
        };
        match format {
            FileFormat::Pdf => {
                run(&self.pdf_tool, &["-singlefile", "-scale-to", LONGEST_SIDE, "-png", "-"])
            }
            FileFormat::Mp4
            | FileFormat::QuickTime
            | FileFormat::Matroska
            | FileFormat::WebM
            | FileFormat::Avi => {
                let at = |second: &str| {
                    let scale = format!("scale='min({LONGEST_SIDE},iw)':-2");
                    let arguments = [
                        "-v",
                        "error",
                        // A video may reference other files and addresses.
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
                    run(&self.video_tool, &arguments)
                };
                // A video shorter than a second has no frame there.
                at("1").or_else(|_| at("0"))
            }
            // Some of its readers accept only files, and none accepts a file without a name except `stdin`. Without the
            // `>` flag the picture would be enlarged.
            _ => run(
                &self.image_tool,
                &["/dev/stdin", "-s", &format!("{LONGEST_SIDE}x{LONGEST_SIDE}>"), "-o", ".png"],
            ),
        }
    }

    /// Encodes a rendition that was written as PNG in the requested format, if a program supports that format.
    pub(crate) fn encode_with_tools(
        &self,
        mut result: AssetProcessingResult,
        request: &AssetProcessingRequest,
    ) -> Result<AssetProcessingResult, RenditionError> {
        let quality_of = |name: &str| {
            let spec = request.renditions.iter().find(|candidate| candidate.name == name)?;
            if let RenditionEncoding::Avif(quality) = spec.encoding { Some(quality) } else { None }
        };
        let Some(program) = self.avif_tool.as_deref() else {
            let before = result.renditions.len();
            result.renditions.retain(|rendition| quality_of(&rendition.name).is_none());
            if result.renditions.len() < before {
                let warning =
                    "AVIF renditions are missing, because the program `avifenc` is not installed";
                result.warnings.push(warning.to_owned());
            }
            return Ok(result);
        };
        for rendition in &mut result.renditions {
            if let Some(quality) = quality_of(&rendition.name) {
                rendition.bytes = self.encode_avif(program, quality, &rendition.bytes, request)?;
            }
        }
        Ok(result)
    }

    fn encode_avif(
        &self,
        program: &Path,
        quality: u8,
        png: &[u8],
        request: &AssetProcessingRequest,
    ) -> Result<Vec<u8>, RenditionError> {
        let folder = tempfile::tempdir().map_err(system_error("create a folder for AVIF"))?;
        let (from, to) = (folder.path().join("a.png"), folder.path().join("a.avif"));
        std::fs::write(&from, png).map_err(system_error("write an image for AVIF"))?;
        // The quantizer's scale ends with the worst quality at 63.
        let quantizer = (63 * u32::from(100 - quality.min(100)) / 100).to_string();
        let (from, target) = (from.to_string_lossy(), to.to_string_lossy());
        let arguments =
            ["--speed", "8", "--min", &quantizer, "--max", &quantizer, &*from, &*target];
        let nothing = File::open("/dev/null").map_err(system_error("open /dev/null"))?;
        let time = Duration::from_secs(request.limits.seconds);
        let ran = self.run_tool(program, &arguments, nothing, time);
        match std::fs::read(&to) {
            Ok(bytes) if !bytes.is_empty() => Ok(bytes),
            _ => {
                Err(ran.err().unwrap_or(RenditionError::File("`avifenc` wrote nothing".to_owned())))
            }
        }
    }

    fn run_tool(
        &self,
        program: &Path,
        arguments: &[&str],
        input: File,
        time: Duration,
    ) -> Result<Vec<u8>, RenditionError> {
        let bounds =
            [TOOL_MEMORY_BYTES.to_string(), time.as_secs().to_string(), self.niceness.to_string()];
        let mut child = Command::new(&self.command.program)
            .args(&self.command.arguments)
            .args(bounds.map(OsString::from))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env_clear()
            .process_group(0)
            .spawn()
            .map_err(system_error("start a program that reads the file"))?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let waiting = system_error("wait for a program that reads the file");
        let Some(output) = read_output(&mut child, time) else {
            child.kill().ok();
            child.wait().map_err(waiting)?;
            let reason = format!("`{name}` took longer than {} s", time.as_secs());
            return Err(RenditionError::File(reason));
        };
        match wait_for_exit(&mut child).map_err(waiting)? {
            Some(status) if is_killed_externally(status) => Err(RenditionError::Killed),
            Some(status) if output.is_empty() => Err(RenditionError::File(format!(
                "`{name}` did not produce an image from it ({status})"
            ))),
            _ => Ok(output),
        }
    }
}

impl FileFormat {
    /// Returns true for a still picture, as opposed to a document or video.
    pub(crate) fn is_still_image(self) -> bool {
        matches!(self, Self::Heif | Self::Avif | Self::Photoshop | Self::Jpeg2000)
    }
}

/// Reads a program's output; `None` if that exceeds the time limit.
fn read_output(child: &mut Child, time: Duration) -> Option<Vec<u8>> {
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        output.take(MAX_PICTURE_BYTES).read_to_end(&mut said).ok();
        // The receiver is gone after the time limit.
        sender.send(said).ok();
    });
    receiver.recv_timeout(time).ok()
}

/// Returns a seekable file, because programs seek in their input, which a pipe does not support. Some open `/dev/stdin`
/// by the name of the underlying file, so the file needs a name until they have ended.
fn into_seekable_file(source: BlobContent) -> std::io::Result<(File, Option<NamedTempFile>)> {
    match source {
        BlobContent::File { file, .. } => Ok((file, None)),
        BlobContent::Bytes(bytes) => {
            let mut named = NamedTempFile::new()?;
            named.write_all(&bytes)?;
            Ok((named.reopen()?, Some(named)))
        }
    }
}
