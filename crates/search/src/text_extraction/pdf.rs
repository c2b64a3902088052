//! Text extraction from PDF, in a separate process.
//!
//! PDF is a language with fonts, filters and references; files that make readers loop, recurse or allocate without
//! limit are common. The program starts itself again ([`read_pdf`] is the function that the child process runs), passes
//! it the bytes, and kills it after a timeout. The child first limits its own memory, processor time and output.
//! Whatever happens to it, this process continues, and the document is recorded as failed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use tympan_content::BlobContent;

use super::text_limit::{MAX_DOCUMENT_BYTES, MAX_EXTRACTED_BYTES, truncate_text};

/// The marker before the text in the output, because other code in the child process may also print.
const OUTPUT_BEGIN_MARKER: &[u8] = b"\x02tympan text\n";
/// The marker after the text; without it, the child process did not complete.
const OUTPUT_END_MARKER: &[u8] = b"\x03";
/// The memory limit of the child process, in bytes.
const MAX_MEMORY_BYTES: u64 = 1 << 30;
/// The processor time limit of the child process, in seconds.
const MAX_CPU_SECONDS: u64 = 20;
/// The stack size of the reading thread, in bytes; it bounds the nesting depth of files.
const READER_STACK_BYTES: usize = 64 << 20;
/// The maximum run time of the child process.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The command for the process that reads PDF: a program whose main function calls [`read_pdf`].
#[derive(Debug, Clone)]
pub struct PdfReader {
    /// The program, usually this one.
    pub program: PathBuf,
    /// The arguments that make the program read a PDF.
    pub arguments: Vec<OsString>,
}

impl PdfReader {
    /// Reads the text of a PDF.
    pub(super) fn extract_pdf_text(&self, blob: BlobContent) -> Result<String, String> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env_clear()
            .spawn()
            .map_err(|error| format!("cannot start the PDF reader process: {error}"))?;
        let output = run_reader_process(&mut child, blob);
        // The child has sent its output or has exited; in both cases, killing it changes nothing.
        child.kill().ok();
        let status = child
            .wait()
            .map_err(|error| format!("cannot wait for the PDF reader process: {error}"))?;
        let output = output.ok_or_else(|| {
            format!("reading it as PDF took longer than {} s", PROCESS_TIMEOUT.as_secs())
        })?;
        let begin = output
            .windows(OUTPUT_BEGIN_MARKER.len())
            .position(|window| window == OUTPUT_BEGIN_MARKER);
        let extracted_text =
            begin.and_then(|begin| output.get(begin + OUTPUT_BEGIN_MARKER.len()..));
        match extracted_text
            .and_then(|extracted_text| extracted_text.strip_suffix(OUTPUT_END_MARKER))
            .and_then(<[u8]>::split_first)
        {
            Some((b'+', text)) => Ok(String::from_utf8_lossy(text).into_owned()),
            Some((_, reason)) => Err(String::from_utf8_lossy(reason).into_owned()),
            None => Err(format!("the PDF reader process ended with {status}")),
        }
    }
}

/// Sends the blob to the child process and reads its output; `None` on a timeout.
fn run_reader_process(child: &mut Child, blob: BlobContent) -> Option<Vec<u8>> {
    let (mut input, output) = (child.stdin.take()?, child.stdout.take()?);
    let mut source = blob.into_reader().take(MAX_DOCUMENT_BYTES);
    std::thread::spawn(move || {
        // If the child stops reading, its output contains the reason.
        std::io::copy(&mut source, &mut input).ok();
    });
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut extracted_text = Vec::new();
        let most = MAX_EXTRACTED_BYTES as u64 + 4096;
        output.take(most).read_to_end(&mut extracted_text).ok();
        // After the timeout, there is no receiver.
        sender.send(extracted_text).ok();
    });
    receiver.recv_timeout(PROCESS_TIMEOUT).ok()
}

/// Reads a PDF from standard input and writes its text to standard output; this is the function that the process of a
/// [`PdfReader`] runs.
///
/// It limits the resources of this process first, so nothing else can be done in the process afterwards.
///
/// # Errors
/// If standard input or output fails, or the system rejects the limits.
pub fn read_pdf() -> std::io::Result<()> {
    let bound = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::As, bound(MAX_MEMORY_BYTES))?;
    setrlimit(Resource::Cpu, bound(MAX_CPU_SECONDS))?;
    setrlimit(Resource::Core, bound(0))?;
    setrlimit(Resource::Fsize, bound(0))?;
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MAX_DOCUMENT_BYTES).read_to_end(&mut bytes)?;
    // Libraries may print to standard output; only the output of this function must reach the parent.
    let mut output = std::fs::File::from(rustix::io::dup(std::io::stdout())?);
    rustix::stdio::dup2_stdout(std::fs::OpenOptions::new().write(true).open("/dev/null")?)?;
    let read = move || {
        pdf_extract::extract_text_from_mem(&bytes)
            .map_err(|error| format!("it is not a readable PDF: {error}"))
    };
    let thread = std::thread::Builder::new().stack_size(READER_STACK_BYTES).spawn(read)?;
    let text = thread.join().unwrap_or_else(|_| Err("it is not a readable PDF".to_owned()));
    let (mark, mut extracted_text) = match text {
        Ok(text) => (b"+", text),
        Err(reason) => (b"-", reason),
    };
    truncate_text(&mut extracted_text, MAX_EXTRACTED_BYTES);
    output.write_all(
        &[OUTPUT_BEGIN_MARKER, mark, extracted_text.as_bytes(), OUTPUT_END_MARKER].concat(),
    )
}
