//! Checkpoints, by the size of the write-ahead log, on a connection and a thread of their own, so that
//! no commit waits for one (performance trap 10).

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use crate::connection;
use crate::error::{Error, Result};

/// Pages in the log (of 4 KiB) from which on it is checkpointed.
const PAGES: i32 = 1_024;
/// Pages from which on the writer stops for it: under a steady load a checkpoint beside the writer
/// never reaches the log's end, and only then can the log begin anew.
const TOO_MANY: i32 = 16 * PAGES;
/// Pages that may be left behind by a handle that is closed: whoever opens the file next reads them all.
const LEFT: i32 = 128;

/// The checkpointing thread; dropping it ends it after what it is at.
pub(crate) struct Checkpointer {
    thread: Option<JoinHandle<()>>,
    wake: Option<Arc<SyncSender<()>>>,
    pages: Arc<AtomicI32>,
}

impl Checkpointer {
    /// Starts the thread and has `writer` wake it.
    pub(crate) fn start(path: &Path, writer: &mut Connection) -> Result<Self> {
        let path = path.to_owned();
        let (wake, woken) = sync_channel(1);
        let wake = Arc::new(wake);
        // The connection may outlive this handle, so its hook does not keep the thread alive.
        let hook: Weak<SyncSender<()>> = Arc::downgrade(&wake);
        let last = Arc::new(AtomicI32::new(0));
        let pages_of_last_commit = Arc::clone(&last);
        writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            pages_of_last_commit.store(pages, Ordering::Relaxed);
            if pages >= PAGES
                && let Some(wake) = hook.upgrade()
            {
                match wake.try_send(()) {
                    // It is awake already, or it has ended and the next handle will checkpoint.
                    Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
                }
            }
            Ok(())
        }))?;
        let thread = std::thread::Builder::new()
            .name("esf-graph-wal".to_owned())
            .spawn(move || checkpoint_all(&path, &woken))
            .map_err(|error| Error::NoThread(Arc::new(error)))?;
        Ok(Self { thread: Some(thread), wake: Some(wake), pages: last })
    }

    /// Checkpoints on the writer's own connection `db` when the log has grown far beyond its bound.
    pub(crate) fn keep_up(&self, db: &Connection) {
        if self.pages.load(Ordering::Relaxed) >= TOO_MANY {
            checkpoint(db, "PASSIVE");
        }
    }

    /// Ends the thread and closes the writer's connection; ends a long log first, if nobody else is using
    /// it just now.
    pub(crate) fn close(mut self, db: Connection) {
        self.end();
        if self.pages.load(Ordering::Relaxed) >= LEFT && db.busy_timeout(Duration::ZERO).is_ok() {
            checkpoint(&db, "TRUNCATE");
        }
        drop(db);
    }

    fn end(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the checkpointer of the graph panicked");
        }
    }
}

/// Opens its connection when it is first woken: short commands never need it.
fn checkpoint_all(path: &Path, woken: &Receiver<()>) {
    let mut db = None;
    while woken.recv().is_ok() {
        if db.is_none() {
            db = connection::open(path, false)
                .inspect_err(|error| tracing::warn!(%error, "no connection for checkpoints"))
                .ok();
        }
        if let Some(db) = &db {
            checkpoint(db, "PASSIVE");
        }
    }
}

fn checkpoint(db: &Connection, how: &str) {
    let sql = format!("PRAGMA wal_checkpoint({how})");
    if let Err(error) = db.query_row(&sql, [], |row| row.get::<_, i64>(1)) {
        tracing::warn!(%error, "checkpoint failed; the log keeps growing until one succeeds");
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.end();
    }
}
