//! Recording of flushes for the siblings of a farm, and waiting until they have applied them.

use std::sync::Arc;

use super::event_log::EventLogError;
use super::message::FlushEvent;
use crate::dispatcher_parts::DispatcherParts;
use crate::farm_state::FarmState;
use crate::upstream::request_coalescing::FetchCoalescer;

/// Records flushes in the logs for siblings.
#[derive(Debug, Clone)]
pub(crate) struct FlushRecorder {
    fetch_coalescer: Arc<FetchCoalescer>,
}

impl FlushRecorder {
    pub(crate) fn new(parts: &DispatcherParts) -> Self {
        Self { fetch_coalescer: Arc::clone(&parts.fetch_coalescer) }
    }

    /// Logs an event for the siblings of a farm; returns its number if there are siblings.
    ///
    /// # Errors
    /// On failure the flush must not be answered as done.
    pub(crate) async fn log_event_for_siblings(
        &self,
        farm: &Arc<FarmState>,
        event: FlushEvent,
    ) -> Result<Option<u64>, EventLogError> {
        if farm.flush_siblings.is_none() {
            return Ok(None);
        }
        let (recorder, farm) = (self.clone(), Arc::clone(farm));
        let note = move || recorder.log_event(&farm, event);
        tokio::task::spawn_blocking(note).await.unwrap_or(Err(EventLogError::WriteFailed))
    }

    /// As [`FlushRecorder::log_event_for_siblings`], for events found while a flush is carried out; does file I/O.
    ///
    /// # Errors
    /// Fails if unreachable siblings might never receive the event.
    pub(crate) fn record_for_siblings(
        &self,
        farm: &FarmState,
        event: FlushEvent,
    ) -> std::io::Result<()> {
        match (self.log_event(farm, event.clone()), &farm.docroot) {
            // Its flush came before this process handed over; reachable siblings receive it.
            (Err(EventLogError::TakenOver), Some(root)) => {
                root.event_log_of(&farm.config.name).append_unwritten(root, event)
            }
            (Err(_), _) => return Err(std::io::ErrorKind::Other.into()),
            (Ok(_), _) => {}
        }
        Ok(())
    }

    /// Logs an event for the siblings of a farm, if it has any; does file I/O.
    fn log_event(&self, farm: &FarmState, event: FlushEvent) -> Result<Option<u64>, EventLogError> {
        if farm.flush_siblings.is_none() {
            return Ok(None);
        }
        // A root that cannot be opened was reported at the start.
        let root = farm.docroot.as_ref().ok_or(EventLogError::WriteFailed)?;
        let log = root.event_log_of(&farm.config.name);
        log.append(root, event, || !self.fetch_coalescer.has_stopped_storing()).map(Some)
    }

    /// Waits until reachable siblings have applied an event.
    pub(crate) async fn wait_for_siblings(&self, farm: &FarmState, event: Option<u64>) {
        if let (Some(peers), Some(count)) = (&farm.flush_siblings, event) {
            peers.wait_until_applied(count).await;
        }
    }
}

/// Waits until nothing more is added to logs that another process continues; the cache is closed already.
pub(crate) fn wait_for_log_writers(farms: &[Arc<FarmState>]) {
    for farm in farms {
        if let (Some(_), Some(root)) = (&farm.flush_siblings, &farm.docroot) {
            root.event_log_of(&farm.config.name).wait_for_writers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FlushRecorder;
    use crate::config::DispatcherConfig;
    use crate::config::any_syntax::ConfigSources;
    use crate::flush::propagation::{EventLogError, FlushEvent};
    use crate::{Dispatcher, DispatcherRuntime};
    use std::path::Path;

    /// Returns a dispatcher with this document root that passes flushes on.
    fn telling(docroot: &Path) -> Dispatcher {
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"h\" }} }}
                /x-passFlushes \"1\" /x-siblings {{ /o {{ /hostname \"o\" }} }}
                /cache {{ /docroot \"{}\" }} }} }}",
            docroot.display()
        );
        let loaded = DispatcherConfig::parse(
            text.as_bytes(),
            Path::new("test.any"),
            &ConfigSources::default(),
        );
        Dispatcher::new(loaded.config, DispatcherRuntime::default()).unwrap()
    }

    #[tokio::test]
    async fn a_farm_without_its_document_root_does_not_forget_flushes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::write(&root, "no folder").unwrap();
        let inner = telling(&root).current_state();
        let farm = &inner.parts.farms[0];
        assert!(farm.docroot.is_none());
        assert_eq!(
            FlushRecorder::new(&inner.parts).log_event_for_siblings(farm, FlushEvent::Stats).await,
            Err(EventLogError::WriteFailed)
        );
        std::fs::remove_file(&root).unwrap();
        let inner = telling(&root).current_state();
        assert_eq!(
            FlushRecorder::new(&inner.parts)
                .log_event_for_siblings(&inner.parts.farms[0], FlushEvent::Stats)
                .await,
            Ok(Some(1))
        );
    }

    #[tokio::test]
    async fn what_is_found_later_is_recorded_or_announced_by_who_left() {
        let folder = tempfile::tempdir().unwrap();
        let dispatcher = telling(folder.path());
        let inner = dispatcher.current_state();
        let (farm, root) = (&inner.parts.farms[0], inner.parts.farms[0].docroot.clone().unwrap());
        let log = root.event_log_of("site");
        let recorder = FlushRecorder::new(&inner.parts);
        recorder.record_for_siblings(farm, FlushEvent::Stats).unwrap();
        let mut files =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let file = files.find(|file| file.to_str().unwrap().contains(".tympan-passed-")).unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(recorder.record_for_siblings(farm, FlushEvent::Stats).is_err());
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, &written).unwrap();
        dispatcher.leave_cache();
        let before = log.last_event_number();
        recorder.record_for_siblings(farm, FlushEvent::Stats).unwrap();
        assert_eq!(log.last_event_number(), before + 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), written);
    }
}
