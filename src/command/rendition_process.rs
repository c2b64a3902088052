//! Internal commands with which this program starts itself to process pictures; and the process pool that starts them.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tympan_assets::{
    AssetProcessingRequest, DecoderPoolOptions, DecoderProcessPool, ImageSize, ProcessingLimits,
    ProgramCommand, RenditionEncoding, RenditionSpec, ResizeMode, ToolLimits,
};
use tympan_content::BlobContent;
use tympan_search::PdfReader;
use tympan_terminal::{CommandFault, CommandOutcome, PROGRAM_FILE};

use crate::args;
use crate::config::TympanConfig;

/// The niceness of background processes, which no user waits for.
const BACKGROUND_NICENESS: i32 = 10;

/// The urgency of a process pool's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderUrgency {
    /// Visitors and editors wait: the priority of the server.
    Interactive,
    /// No user waits: a low priority.
    Background,
}

/// Returns the number of processors.
pub(crate) fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Creates a process pool whose processes run this program.
pub(crate) fn create_process_pool(
    config: &TympanConfig,
    urgency: RenderUrgency,
) -> Arc<DecoderProcessPool> {
    let start = |command: &str| ProgramCommand {
        program: PROGRAM_FILE.into(),
        arguments: vec![OsString::from(command)],
    };
    Arc::new(DecoderProcessPool::new(DecoderPoolOptions {
        process_command: start(args::RENDER_IMAGES_COMMAND),
        tool_command: start(args::RUN_TOOL_COMMAND),
        tool_search_path: std::env::var_os("PATH"),
        memory_bytes: config.assets.memory_bytes(),
        max_idle_processes: core_count(),
        niceness: if urgency == RenderUrgency::Interactive { 0 } else { BACKGROUND_NICENESS },
    }))
}

/// Returns the reader of PDF files: a process of this program for each.
pub(crate) fn pdf_reader() -> PdfReader {
    PdfReader {
        program: PROGRAM_FILE.into(),
        arguments: vec![OsString::from(args::READ_PDF_COMMAND)],
    }
}

/// Renders pictures for another process of this program.
pub(crate) fn run_rendition_process() -> CommandOutcome {
    tympan_assets::run_decoder_process()
        .map(|()| ExitCode::SUCCESS)
        .map_err(|error| CommandFault::cannot_run(format!("cannot render: {error}")))
}

/// Runs another program with resource limits.
pub(crate) fn run_bounded_tool(tool: &args::RunToolArgs) -> CommandOutcome {
    let time = Duration::from_secs(tool.seconds);
    let most = ToolLimits { memory_bytes: tool.memory, cpu_time: time, niceness: tool.niceness };
    let error = tympan_assets::run_tool(&tool.program, &tool.arguments, most);
    Err(CommandFault::cannot_run(format!("cannot run `{}`: {error}", tool.program)))
}

/// Renders the four standard renditions of a file into a folder, for measurements.
pub(crate) fn render_file(arguments: &args::RenderFileArgs) -> CommandOutcome {
    let decoder_pool = create_process_pool(&TympanConfig::default(), RenderUrgency::Interactive);
    let size = |width, height| ImageSize { width, height };
    let spec = |name: &str, within, encoding| RenditionSpec {
        name: name.to_owned(),
        within,
        fit: ResizeMode::Inside,
        encoding,
    };
    let request = AssetProcessingRequest {
        renditions: vec![
            spec("web.jpg", size(1280, 1280), RenditionEncoding::Jpeg(arguments.quality)),
            spec("319.png", size(319, 319), RenditionEncoding::Png),
            spec("140.png", size(140, 100), RenditionEncoding::Png),
            spec("48.png", size(48, 48), RenditionEncoding::Png),
        ],
        metadata: true,
        declared: String::new(),
        limits: ProcessingLimits::default(),
    };
    let open = || -> io::Result<BlobContent> {
        let file = std::fs::File::open(&arguments.file)?;
        let length = file.metadata()?.len();
        Ok(BlobContent::File { file, length })
    };
    let result = decoder_pool.render_file(&open, &request);
    let result = result
        .map_err(|error| CommandFault::cannot_run(tympan_terminal::error_chain_text(&error)))?;
    for rendition in &result.renditions {
        let file = arguments.folder.join(&rendition.name);
        std::fs::write(&file, &rendition.bytes).map_err(|error| {
            CommandFault::cannot_run(format!("cannot write `{}`: {error}", file.display()))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
