//! Connections to the graph's file, each set up the same way, and the pool of those that read.
//! Invariant: a read sees one committed state from its begin to its end and never blocks a writer.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use crate::error::{Error, Result};

/// How many idle connections are kept for the next reads.
const IDLE: usize = 8;
/// How long one waits for other processes, in tries of at most `LONGEST_PAUSE`.
const TRIES: i32 = 6_000;
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Opens the file `path`; `create` says whether it may be new.
pub(crate) fn open(path: &Path, create: bool) -> Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    } else if !path.exists() {
        return Err(Error::not_found("graph", path.display()));
    }
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_handler(Some(wait_for_others))?;
    // Closing the last connection would checkpoint, with its syncs, at the end of each short command.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Plans do not follow the values that are bound: else some statements are compiled anew for each of them.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.set_prepared_statement_cache_capacity(256);
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")?;
    Ok(db)
}

/// Waits a little for whoever writes: 0.1 ms at first, 10 ms at most, about a minute in all.
fn wait_for_others(tries: i32) -> bool {
    let pause = Duration::from_micros(100).saturating_mul(1 << tries.clamp(0, 7));
    std::thread::sleep(pause.min(LONGEST_PAUSE));
    tries < TRIES
}

/// Connections that read.
#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    /// A pool for the file `path`.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), idle: Mutex::new(Vec::new()) }
    }

    /// Runs `read` on one committed state.
    pub(crate) fn run<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().expect("no reader panics while it holds the pool").pop();
        let db = match idle {
            Some(db) => db,
            None => {
                let db = open(&self.path, false)?;
                db.pragma_update(None, "query_only", true)?;
                db
            }
        };
        db.execute_batch("BEGIN")?;
        let result = read(&db);
        db.execute_batch("COMMIT")?;
        let mut idle = self.idle.lock().expect("no reader panics while it holds the pool");
        if idle.len() < IDLE {
            idle.push(db);
        }
        result
    }
}
