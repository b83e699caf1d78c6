//! Checkpoints, by the size of the write-ahead log, on a connection and a thread of their own, so that
//! no commit waits for one (performance trap 10).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::connection;
use crate::error::{Error, Result};

/// Pages in the log (of 4 KiB) from which on it is checkpointed.
const PAGES: i32 = 2_048;
/// Pages from which on the writer stops for it: under a steady load a checkpoint beside the writer
/// never reaches the log's end, and only then can the log begin anew.
const TOO_MANY: i32 = 16 * PAGES;

/// The checkpointing thread; dropping it ends it after what it is at.
pub(crate) struct Checkpointer {
    thread: Option<JoinHandle<()>>,
    wake: Option<SyncSender<()>>,
    pages: Arc<AtomicI32>,
}

impl Checkpointer {
    /// Starts the thread and has `writer` wake it.
    pub(crate) fn start(path: &Path, writer: &mut Connection) -> Result<Self> {
        let db = connection::open(path, false)?;
        let (wake, woken) = sync_channel(1);
        let hook = wake.clone();
        let last = Arc::new(AtomicI32::new(0));
        let pages_of_last_commit = Arc::clone(&last);
        writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            pages_of_last_commit.store(pages, Ordering::Relaxed);
            if pages >= PAGES {
                match hook.try_send(()) {
                    // It is awake already, or it has ended and the next handle will checkpoint.
                    Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
                }
            }
            Ok(())
        }))?;
        let thread = std::thread::Builder::new()
            .name("esf-graph-wal".to_owned())
            .spawn(move || checkpoint_all(&db, &woken))
            .map_err(|error| Error::damaged(format!("no thread for checkpoints: {error}")))?;
        Ok(Self { thread: Some(thread), wake: Some(wake), pages: last })
    }

    /// Checkpoints on the writer's own connection `db` when the log has grown far beyond its bound.
    pub(crate) fn keep_up(&self, db: &Connection) {
        if self.pages.load(Ordering::Relaxed) >= TOO_MANY {
            checkpoint(db);
        }
    }
}

fn checkpoint_all(db: &Connection, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        checkpoint(db);
    }
}

fn checkpoint(db: &Connection) {
    let done = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
    if let Err(error) = done {
        tracing::warn!(%error, "checkpoint failed; the log keeps growing until one succeeds");
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the checkpointer of the graph panicked");
        }
    }
}
