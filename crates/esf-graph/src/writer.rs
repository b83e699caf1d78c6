//! The one thread of a handle that writes. It takes all that wait, gives each a savepoint of its own,
//! and commits them together: one flush for all. Invariant: nobody is told of success before the
//! commit is durable, and one that is refused leaves no trace and disturbs no other.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use esf_core::record::Event;
use rusqlite::Connection;

use crate::checkpoint::Checkpointer;
use crate::error::{Error, Result};

/// Most requests of one commit.
const GROUP: usize = 256;

/// Where a crash is tested: before and after the commit that makes a group of requests durable.
pub const BOUNDARIES: &[&str] = &["graph.before_commit", "graph.after_commit"];

/// What a request may use: the database within its savepoint, and the log of its transitions.
pub(crate) struct Transaction<'a> {
    /// The database.
    pub(crate) db: &'a Connection,
    /// Transitions to trace once they are committed.
    pub(crate) log: &'a mut Vec<Event>,
}

trait Job: Send {
    /// Does the work; when it is refused it must leave no trace.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<()>;
    /// Answers the one who waits.
    fn settle(self: Box<Self>, committed: Result<()>);
}

struct Task<F, T> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: SyncSender<Result<T>>,
}

impl<F, T> Job for Task<F, T>
where
    F: FnOnce(&mut Transaction<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<()> {
        let work = self.work.take().expect("a task runs once");
        let result = work(transaction);
        let outcome = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.result = Some(result);
        outcome
    }

    fn settle(self: Box<Self>, committed: Result<()>) {
        let result = match (self.result, committed) {
            (Some(Err(refused)), _) => Err(refused),
            (_, Err(failed)) => Err(failed),
            (Some(result), Ok(())) => result,
            (None, Ok(())) => Err(Error::Closed),
        };
        // Who no longer waits does not hear of it; a repetition with the same key will.
        let _ = self.reply.send(result);
    }
}

/// The handle to the writing thread; dropping it ends the thread after what was handed in.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread on `db`, a connection to the file `path`.
    pub(crate) fn start(path: &Path, mut db: Connection) -> Result<Self> {
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update(None, "cache_size", -16_384)?;
        let checkpointer = Checkpointer::start(path, &mut db)?;
        let (jobs, waiting) = channel();
        let thread = std::thread::Builder::new()
            .name("esf-graph".to_owned())
            .spawn(move || {
                write_all(&db, &waiting, &checkpointer);
                checkpointer.close(db);
            })
            .map_err(|error| Error::NoThread(Arc::new(error)))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `work` in a savepoint and returns when it is durable.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = sync_channel(1);
        let task = Task { work: Some(work), result: None, reply };
        let jobs = self.jobs.as_ref().expect("the sender lives as long as the writer");
        jobs.send(Box::new(task)).map_err(|_| Error::Closed)?;
        answer.recv().map_err(|_| Error::Closed)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the writer of the graph panicked");
        }
    }
}

fn write_all(db: &Connection, waiting: &Receiver<Box<dyn Job>>, checkpointer: &Checkpointer) {
    while let Ok(first) = waiting.recv() {
        let mut group = vec![first];
        group.extend(waiting.try_iter().take(GROUP - 1));
        let mut log = Vec::new();
        let committed = write_group(db, &mut group, &mut log);
        if committed.is_err() && !db.is_autocommit() {
            // What was begun must not stay open; its failure changes nothing for those who wait.
            let _ = db.execute_batch("ROLLBACK");
        }
        if committed.is_ok() {
            log.iter().for_each(trace);
        }
        for job in group {
            job.settle(committed.clone());
        }
        checkpointer.keep_up(db);
    }
}

fn write_group(db: &Connection, group: &mut [Box<dyn Job>], log: &mut Vec<Event>) -> Result<()> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    for job in group {
        db.prepare_cached("SAVEPOINT request")?.execute([])?;
        let before = log.len();
        if let Err(error) = job.run(&mut Transaction { db, log }) {
            if db.is_autocommit() {
                // A full disk or a failing one ends the whole transaction, and so all of the group.
                return Err(error);
            }
            log.truncate(before);
            db.prepare_cached("ROLLBACK TO request")?.execute([])?;
        }
        db.prepare_cached("RELEASE request")?.execute([])?;
    }
    fail::fail_point!("graph.before_commit");
    db.prepare_cached("COMMIT")?.execute([])?;
    fail::fail_point!("graph.after_commit");
    Ok(())
}

/// The one place from which committed transitions are traced.
fn trace(event: &Event) {
    let id = |id: Option<String>| id.unwrap_or_default();
    tracing::debug!(
        kind = event.kind.as_str(),
        group_id = id(event.group_id.map(|id| id.to_string())),
        node_id = id(event.node_id.map(|id| id.to_string())),
        attempt_id = id(event.attempt_id.map(|id| id.to_string())),
        lease_id = id(event.lease_id.map(|id| id.to_string())),
        root_id = id(event.root_id.map(|id| id.to_string())),
        trace_id = event.trace_id,
        actor = event.actor,
        "committed"
    );
}
