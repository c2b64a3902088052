//! A pool of decoder processes, which start on demand and are reused.
//!
//! In: a blob and an [`AssetProcessingRequest`]. Out: an [`AssetProcessingResult`], or the reason why there is none.
//!
//! Invariants
//! * A file that crashes a process, exhausts its memory or stalls it affects only that process.
//! * The total memory of all processes for pictures stays below [`DecoderPoolOptions::memory_bytes`]: each reports
//!   how much it needs, and waits until that is available.
//!
//! Not here: the number of concurrent requests. The calling queue controls it; each call uses one process.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tympan_content::BlobContent;

use crate::child_process::{ProgramCommand, is_killed_externally, wait_for_exit};
use crate::decoder_channel::{
    BEGIN_DECODING_MARKER, DecoderMessage, FILE_BYTES_MARKER, FramedProcessingRequest, read_json,
    read_length_prefixed, send_file_descriptor, write_json,
};
use crate::external_tool::ExternalTools;
use crate::file_format::FileFormat;
use crate::pdf_xmp_packet::PdfAppendix;
use crate::processing_request::{
    AssetProcessingRequest, AssetProcessingResult, MetadataValue, ProcessingLimits,
};
use crate::rendition_error::{RenditionError, system_error};

/// Number of files after which a process is replaced, to release memory that its libraries leak.
const MAX_FILES_PER_PROCESS: u32 = 500;
/// Maximum size of one rendition, in bytes.
const MAX_RENDITION_BYTES: u64 = 256 << 20;
/// Options of a pool.
#[derive(Debug, Clone)]
pub struct DecoderPoolOptions {
    /// A program whose main function calls [`super::run_decoder_process`].
    pub process_command: ProgramCommand,
    /// A program that runs another one with [`super::run_tool`]. The arguments that follow are memory in bytes,
    /// seconds, niceness, program, and the program's arguments.
    pub tool_command: ProgramCommand,
    /// Search path for external programs, in the format of `PATH`; without it, none are used.
    pub tool_search_path: Option<OsString>,
    /// Total memory of all processes for pictures, in bytes.
    pub memory_bytes: u64,
    /// Maximum number of idle processes.
    pub max_idle_processes: usize,
    /// Niceness of the processes, from 0 to 19. A process can only lower its own priority, so work that visitors wait
    /// for needs a pool of its own.
    pub niceness: i32,
}

/// A pool of decoder processes.
#[derive(Debug)]
pub struct DecoderProcessPool {
    options: DecoderPoolOptions,
    idle_processes: Mutex<Vec<DecoderProcess>>,
    memory_budget: MemoryBudget,
    tools: ExternalTools,
}

impl DecoderProcessPool {
    /// Creates a pool; processes start on demand.
    #[must_use]
    pub fn new(options: DecoderPoolOptions) -> Self {
        let memory = MemoryBudget {
            capacity: options.memory_bytes,
            free_bytes: Mutex::new(options.memory_bytes),
            freed_signal: Condvar::new(),
        };
        let programs = options.tool_search_path.as_deref();
        let tools =
            ExternalTools::find_in_path(options.tool_command.clone(), options.niceness, programs);
        Self { options, idle_processes: Mutex::default(), memory_budget: memory, tools }
    }

    /// Processes a request for a file. `open` returns the file's bytes; it is called again if a process has to be
    /// replaced.
    ///
    /// # Errors
    /// [`RenditionError`] determines whether a retry can help.
    pub fn render_file(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        request: &AssetProcessingRequest,
    ) -> Result<AssetProcessingResult, RenditionError> {
        let format = detect_format(&open().map_err(system_error("read the original"))?);
        match format {
            Some(format) if self.tools.can_read(format) => {
                self.render_with_tool(format, open, request)
            }
            Some(format) if self.tools.can_retry_refused(format) => {
                self.render_in_decoder_process(open, request).or_else(|refusal| match refusal {
                    RenditionError::File(_) => {
                        self.render_with_fallback_tool(format, open, request, refusal)
                    }
                    _ => Err(refusal),
                })
            }
            Some(format) => self.render_in_decoder_process(open, request).map(|mut result| {
                let missing = self.tools.missing_tool_for(format);
                let missing = missing.filter(|_| !request.renditions.is_empty());
                result.warnings.extend(missing.map(|name| {
                    format!("there is no preview, because the program `{name}` is not installed")
                }));
                result
            }),
            None => self.render_in_decoder_process(open, request),
        }
        .and_then(|result| self.tools.encode_with_tools(result, request))
    }

    /// Returns the IDs of the idle processes.
    #[must_use]
    pub fn idle_process_ids(&self) -> Vec<u32> {
        self.idle_processes.lock().iter().map(|process| process.child.id()).collect()
    }

    /// Converts the file to a picture with an external program, and generates the renditions from that.
    fn render_with_tool(
        &self,
        format: FileFormat,
        open: &dyn Fn() -> io::Result<BlobContent>,
        request: &AssetProcessingRequest,
    ) -> Result<AssetProcessingResult, RenditionError> {
        // The properties of the file itself: its format and metadata.
        let header_request = AssetProcessingRequest { renditions: Vec::new(), ..request.clone() };
        let mut result = self.render_in_decoder_process(open, &header_request)?;
        if request.renditions.is_empty() {
            return Ok(result);
        }
        let source = open().map_err(system_error("read the original"))?;
        let png = match self.tools.convert_to_png(format, source, request) {
            Ok(png) => bytes::Bytes::from(png),
            Err(RenditionError::File(reason))
                if !format.is_still_image() && format != FileFormat::Tiff =>
            {
                // A document without a preview is still valid.
                result.warnings.push(format!("there is no preview: {reason}"));
                return Ok(result);
            }
            Err(error) => return Err(error),
        };
        let png_request = AssetProcessingRequest {
            metadata: false,
            declared: "image/png".to_owned(),
            ..request.clone()
        };
        let png_result =
            self.render_in_decoder_process(&|| Ok(BlobContent::Bytes(png.clone())), &png_request)?;
        result.renditions = png_result.renditions;
        result.warnings.extend(png_result.warnings);
        result.size = result.size.or(png_result.size.filter(|_| format.is_still_image()));
        Ok(result)
    }

    /// Lets an external program read a picture that is rejected here; if it also fails, the first error is returned.
    fn render_with_fallback_tool(
        &self,
        format: FileFormat,
        open: &dyn Fn() -> io::Result<BlobContent>,
        request: &AssetProcessingRequest,
        refusal: RenditionError,
    ) -> Result<AssetProcessingResult, RenditionError> {
        match self.render_with_tool(format, open, request) {
            Err(RenditionError::File(_)) => Err(refusal),
            outcome => outcome,
        }
    }

    /// Returns the bytes to append to a PDF to set these properties; `None` if the PDF contains them already.
    pub(crate) fn build_pdf_appendix(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        properties: Vec<(String, MetadataValue)>,
    ) -> Result<Option<PdfAppendix>, RenditionError> {
        let request = AssetProcessingRequest {
            renditions: Vec::new(),
            metadata: true,
            declared: String::new(),
            limits: ProcessingLimits::default(),
        };
        match self.send_request(open, (request, Some(properties)))? {
            DecoderProcessOutput::PdfAppendix(appendix) => Ok(appendix),
            DecoderProcessOutput::Renditions(_) => Err(protocol_error()),
        }
    }

    fn render_in_decoder_process(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        request: &AssetProcessingRequest,
    ) -> Result<AssetProcessingResult, RenditionError> {
        match self.send_request(open, (request.clone(), None))? {
            DecoderProcessOutput::Renditions(result) => Ok(result),
            DecoderProcessOutput::PdfAppendix(_) => Err(protocol_error()),
        }
    }

    /// Sends a request to a process.
    fn send_request(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        (request, append): (AssetProcessingRequest, Option<Vec<(String, MetadataValue)>>),
    ) -> Result<DecoderProcessOutput, RenditionError> {
        let framed_request =
            FramedProcessingRequest { request, length: 0, niceness: self.options.niceness, append };
        // The process is removed from the pool first, because the lock must not be held during processing.
        let idle_process = self.idle_processes.lock().pop();
        if let Some(process) = idle_process {
            let source = open().map_err(system_error("read the original"))?;
            match self.send_to_process(process, &source, framed_request.clone()) {
                // The process may have died while it was idle, which is not the file's fault. If the file is at fault,
                // it ends the next process as well.
                Err(
                    DecoderProcessError::BeforeRequest
                    | DecoderProcessError::Exited(_)
                    | DecoderProcessError::Killed,
                ) => {}
                outcome => return outcome.map_err(DecoderProcessError::into_error),
            }
        }
        let source = open().map_err(system_error("read the original"))?;
        let process = self.start_process().map_err(system_error("start the rendering process"))?;
        self.send_to_process(process, &source, framed_request)
            .map_err(DecoderProcessError::into_error)
    }

    fn start_process(&self) -> io::Result<DecoderProcess> {
        let (channel, peer) = UnixStream::pair()?;
        let ProgramCommand { program, arguments } = &self.options.process_command;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(peer)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            // Pictures are a few large allocations. Large pages, if the system grants them, avoid most page faults,
            // which otherwise take a sixth of the processor time.
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            // A terminal's Ctrl-C is for the server, which lets running work finish.
            .process_group(0)
            .spawn()?;
        Ok(DecoderProcess { child, channel, file_count: 0 })
    }

    fn send_to_process(
        &self,
        mut process: DecoderProcess,
        source: &BlobContent,
        mut framed_request: FramedProcessingRequest,
    ) -> Result<DecoderProcessOutput, DecoderProcessError> {
        framed_request.length = source.length();
        let result = process.exchange(source, &framed_request, &self.memory_budget);
        process.file_count += 1;
        if matches!(result, Ok(_) | Err(DecoderProcessError::File(_)))
            && process.file_count < MAX_FILES_PER_PROCESS
        {
            let mut idle = self.idle_processes.lock();
            if idle.len() < self.options.max_idle_processes {
                idle.push(process);
            }
            return result;
        }
        result
    }
}

/// The output of a process.
enum DecoderProcessOutput {
    Renditions(AssetProcessingResult),
    PdfAppendix(Option<PdfAppendix>),
}

fn protocol_error() -> RenditionError {
    RenditionError::File(PROTOCOL_ERROR_MESSAGE.to_owned())
}

const PROTOCOL_ERROR_MESSAGE: &str = "the process that rendered it violated the protocol";

/// A failure of a process.
enum DecoderProcessError {
    /// The process had exited before it received the request.
    BeforeRequest,
    /// The file is at fault.
    File(String),
    /// The system failed.
    System(RenditionError),
    /// The process exited.
    Exited(String),
    /// The process was killed from outside.
    Killed,
    /// The process exceeded the time limit and was killed.
    TimedOut(String),
    /// The process exceeded the time limit, with little processor time.
    CpuStarved { limit: u64, cpu_seconds: u64 },
}

impl DecoderProcessError {
    fn into_error(self) -> RenditionError {
        match self {
            Self::File(reason) | Self::Exited(reason) | Self::TimedOut(reason) => {
                RenditionError::File(reason)
            }
            Self::System(error) => error,
            Self::Killed => RenditionError::Killed,
            Self::CpuStarved { limit, cpu_seconds } => {
                RenditionError::CpuStarved { limit, cpu_seconds }
            }
            Self::BeforeRequest => RenditionError::System {
                action: "start the rendering process",
                source: io::Error::other("it exited immediately"),
            },
        }
    }
}

/// One process and the channel to it.
#[derive(Debug)]
struct DecoderProcess {
    child: Child,
    channel: UnixStream,
    file_count: u32,
}

impl Drop for DecoderProcess {
    fn drop(&mut self) {
        // The process may have exited, in which case this has no effect.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl DecoderProcess {
    fn exchange(
        &mut self,
        source: &BlobContent,
        framed_request: &FramedProcessingRequest,
        memory: &MemoryBudget,
    ) -> Result<DecoderProcessOutput, DecoderProcessError> {
        let Self { child, channel, .. } = self;
        let attempt = ProcessingAttempt {
            request: &framed_request.request,
            cpu_time_before: process_cpu_time(child.id()),
        };
        let request = attempt.request;
        let deadline = Instant::now() + Duration::from_secs(request.limits.seconds);
        let mut channel = DeadlineSocket { stream: channel, deadline };
        write_json(&mut channel, framed_request).map_err(|_| DecoderProcessError::BeforeRequest)?;
        send_file(source, &mut channel);
        let mut reserved = None;
        loop {
            match read_json(&mut channel)
                .map_err(|error| diagnose_channel_failure(child, &error, attempt))?
            {
                DecoderMessage::Need(bytes) => {
                    // The time spent waiting for memory does not count against the file.
                    let start = Instant::now();
                    reserved = Some(memory.reserve(bytes));
                    channel.deadline += start.elapsed();
                    channel
                        .write_all(&[BEGIN_DECODING_MARKER])
                        .map_err(|error| diagnose_channel_failure(child, &error, attempt))?;
                }
                DecoderMessage::Refused(reason) => {
                    return Err(DecoderProcessError::File(reason));
                }
                DecoderMessage::Unread(reason) => {
                    let error = system_error("read the original")(io::Error::other(reason));
                    return Err(DecoderProcessError::System(error));
                }
                DecoderMessage::Rendered(mut result) => {
                    for rendition in &mut result.renditions {
                        rendition.bytes = read_length_prefixed(&mut channel, MAX_RENDITION_BYTES)
                            .map_err(|error| {
                            diagnose_channel_failure(child, &error, attempt)
                        })?;
                    }
                    drop(reserved);
                    return Ok(DecoderProcessOutput::Renditions(result));
                }
                DecoderMessage::Appended(None) => {
                    return Ok(DecoderProcessOutput::PdfAppendix(None));
                }
                DecoderMessage::Appended(Some(names)) => {
                    let appended = read_length_prefixed(&mut channel, MAX_RENDITION_BYTES)
                        .map_err(|error| diagnose_channel_failure(child, &error, attempt))?;
                    return Ok(DecoderProcessOutput::PdfAppendix(Some((appended, names))));
                }
            }
        }
    }
}

/// A request, and the processor time that the process had used before it.
#[derive(Clone, Copy)]
struct ProcessingAttempt<'a> {
    request: &'a AssetProcessingRequest,
    cpu_time_before: Duration,
}

/// Returns the processor time that a process has used; zero if it does not exist.
fn process_cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may contain any characters: user and system time, in hundredths of a second.
    let numbers = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
    let hundredths = numbers.take(2).filter_map(|number| number.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(hundredths * 10)
}

/// Determines why the channel failed.
fn diagnose_channel_failure(
    child: &mut Child,
    error: &io::Error,
    attempt: ProcessingAttempt<'_>,
) -> DecoderProcessError {
    let request = attempt.request;
    if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
        let (limit, cpu_time) = (request.limits.seconds, process_cpu_time(child.id()));
        let cpu_time = cpu_time.saturating_sub(attempt.cpu_time_before).as_secs();
        if cpu_time < limit / 2 {
            return DecoderProcessError::CpuStarved { limit, cpu_seconds: cpu_time };
        }
        return DecoderProcessError::TimedOut(format!(
            "rendering it took longer than {} s",
            request.limits.seconds
        ));
    }
    // A process that closed the channel is about to exit, and its exit status gives the reason.
    match wait_for_exit(child) {
        Ok(Some(status)) if is_killed_externally(status) => DecoderProcessError::Killed,
        Ok(Some(status)) => DecoderProcessError::Exited(describe_exit(status, request)),
        Ok(None) => DecoderProcessError::Exited(PROTOCOL_ERROR_MESSAGE.to_owned()),
        Err(source) => {
            DecoderProcessError::System(system_error("wait for the rendering process")(source))
        }
    }
}

/// Describes how a process ended.
fn describe_exit(status: ExitStatus, request: &AssetProcessingRequest) -> String {
    const ABORTED: i32 = 6;
    const OUT_OF_TIME: i32 = 24;
    let memory = request.limits.memory >> 20;
    match status.signal() {
        Some(OUT_OF_TIME) => {
            format!("rendering it took more than {} s of processor time", request.limits.seconds)
        }
        Some(ABORTED) => {
            format!("rendering it took more than {memory} MiB of memory, or a decoder failed")
        }
        Some(signal) => format!("the process that rendered it was killed by signal {signal}"),
        None => format!("the process that rendered it exited: {status}"),
    }
}

/// Sends the file to the process as an open file, so that the process reads it at its own pace and priority. An error
/// is ignored here, because a process that stops reading reports the reason itself.
fn send_file(source: &BlobContent, channel: &mut DeadlineSocket<'_>) {
    match source {
        BlobContent::File { file, .. } => send_file_descriptor(channel.stream, file).ok(),
        BlobContent::Bytes(bytes) => {
            channel.write_all(&[FILE_BYTES_MARKER]).and_then(|()| channel.write_all(bytes)).ok()
        }
    };
}

/// Detects the media type of a blob from its first bytes; `None` if unknown.
pub(crate) fn detect_media_type(source: &BlobContent) -> Option<&'static str> {
    detect_format(source)?.media_type()
}

/// Detects the format of a blob from its first bytes.
fn detect_format(source: &BlobContent) -> Option<FileFormat> {
    use std::os::unix::fs::FileExt;
    match source {
        BlobContent::Bytes(bytes) => FileFormat::detect(bytes),
        BlobContent::File { file, .. } => {
            let mut head = vec![0; 4096];
            let count = file.read_at(&mut head, 0).ok()?;
            FileFormat::detect(head.get(..count)?)
        }
    }
}

/// A socket whose operations share one deadline.
struct DeadlineSocket<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl DeadlineSocket<'_> {
    fn remaining(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for DeadlineSocket<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.remaining()?)?;
        (&mut &*self.stream).read(target)
    }
}

impl Write for DeadlineSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.remaining()?)?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A memory budget that is shared by reservations.
#[derive(Debug)]
struct MemoryBudget {
    capacity: u64,
    free_bytes: Mutex<u64>,
    freed_signal: Condvar,
}

impl MemoryBudget {
    /// Waits until the given number of bytes is available. A request larger than the budget waits for the whole budget.
    fn reserve(&self, bytes: u64) -> MemoryReservation<'_> {
        let bytes = bytes.min(self.capacity);
        let mut free = self.free_bytes.lock();
        while *free < bytes {
            self.freed_signal.wait(&mut free);
        }
        *free -= bytes;
        MemoryReservation { budget: self, bytes }
    }
}

struct MemoryReservation<'a> {
    budget: &'a MemoryBudget,
    bytes: u64,
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        *self.budget.free_bytes.lock() += self.bytes;
        self.budget.freed_signal.notify_all();
    }
}
