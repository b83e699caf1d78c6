//! The durable graph of groups, nodes, attempts, evaluations and leases, on SQLite (design section 4).
//! Each mutation loads a snapshot, lets `esf_core::ops` decide, and commits records, transitions and the
//! idempotency record in one transaction; `docs/schema.md` describes the tables.
//!
//! Invariants: the same request under the same key has one effect and one reply, across threads,
//! processes, restarts and crashes; nobody is told of an effect before it is durable; no path, inode
//! or mount of any machine is stored. The graph knows of layerstack only its proof type.

mod apply;
mod attempts;
mod check;
mod checkpoint;
mod connection;
mod development;
mod error;
mod load;
mod mutate;
mod nodes;
mod queue;
mod reads;
mod records;
mod resolve;
mod rollout;
mod row;
mod schema;
mod search;
mod statements;
mod writer;

use std::path::Path;
use std::sync::Arc;

use esf_core::StoreId;

pub use error::{Error, Result};
pub use esf_core::ops::{BootClock, Meta};
pub use queue::{QueuedAttempt, QueuedCount};
pub use reads::KnownRoot;
pub use resolve::Ref;
pub use writer::BOUNDARIES;

use connection::Readers;
use writer::Writer;

/// One store's graph, opened. Cheap to clone; several handles, threads and processes may use one file.
#[derive(Clone, Debug)]
pub struct Graph {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: StoreId,
    writer: Writer,
    readers: Readers,
}

impl Graph {
    /// Makes the graph of `store` in the file `path`, or opens it when it is there already.
    ///
    /// # Errors
    /// Those of `open`; `OtherStore` when the file is another store's.
    pub fn create(path: &Path, store: StoreId) -> Result<Self> {
        let db = connection::open(path, true)?;
        schema::migrate(&db)?;
        db.execute_batch("BEGIN IMMEDIATE")?;
        let found = stored_id(&db)?;
        if found.is_none() {
            db.execute(statements::INSERT_STORE, [row::Bytes::bytes(&store)])?;
        }
        db.execute_batch("COMMIT")?;
        match found {
            Some(found) if found != store => Err(Error::OtherStore { expected: store, found }),
            Some(_) | None => Self::over(path, store, db),
        }
    }

    /// Opens the graph in the file `path`, bringing its schema to the newest version.
    ///
    /// # Errors
    /// `NotFound`, `Newer` for a schema of a later version, `Damaged`, and failures of the database.
    pub fn open(path: &Path) -> Result<Self> {
        let db = connection::open(path, false)?;
        schema::migrate(&db)?;
        let store = stored_id(&db)?.ok_or_else(|| Error::damaged("it has no store id"))?;
        Self::over(path, store, db)
    }

    fn over(path: &Path, store: StoreId, db: rusqlite::Connection) -> Result<Self> {
        let inner = Inner { store, writer: Writer::start(path, db)?, readers: Readers::new(path) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The store whose graph this is.
    pub fn store_id(&self) -> StoreId {
        self.inner.store
    }
}

fn stored_id(db: &rusqlite::Connection) -> Result<Option<StoreId>> {
    row::first(db, statements::STORE_ID, [], |columns| columns.id())
}

#[cfg(test)]
mod tests;
