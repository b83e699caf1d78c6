//! `local.db`: the worker's own facts, in SQLite. Invariant: every change of where bytes are is one
//! transaction here, together with its accounting; nothing of it ever reaches the graph.
//! `docs/on-disk-format.md`, section "local.db".

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use esf_core::manifest::RootPin;
use esf_core::{AttemptId, AttrsId, Digest, RootId};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::Error;
use crate::form::{Form, Recorded};
use crate::upper::Unopened;

/// The schema's version, in SQLite's `user_version`.
const SCHEMA_VERSION: i64 = 2;
const SCHEMA: &str = include_str!("local.sql");
/// What makes a schema of version 1 into one of version 2.
const FROM_1: &str = include_str!("local_2.sql");

macro_rules! local_ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Draws a new one.
            pub(crate) fn draw() -> Self {
                Self(draw_bytes())
            }

            pub(crate) fn parse(text: &str) -> Option<Self> {
                let nibbles = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                let number = (text.len() == 32 && nibbles).then(|| u128::from_str_radix(text, 16))?;
                number.ok().map(|number| Self(number.to_be_bytes()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.to_string().into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                Self::parse(value.as_str()?).ok_or(FromSqlError::InvalidType)
            }
        }
    )*};
}

local_ids! {
    /// Names a carrier on this machine: its directory beneath `carriers/`. Never durable elsewhere.
    CarrierId;
    /// Names something under way on this machine: a seal, an import, a squash or a merge.
    TxnId;
}

impl ToSql for Form {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for Form {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Self::parse(value.as_str()?).ok_or(FromSqlError::InvalidType)
    }
}

/// Sixteen bytes from the kernel.
pub(crate) fn draw_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(16), "the kernel gives up to 256 random bytes at once");
    bytes
}

/// How far a commit must have gone before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// On the disk.
    Durable,
    /// In the kernel: survives the process, and is ordered before every later commit.
    Ordered,
}

/// The two connections to `local.db`.
pub(crate) struct Local {
    durable: Mutex<Connection>,
    ordered: Mutex<Connection>,
}

impl Local {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let durable = connect(path, "FULL")?;
        create_schema(&durable)?;
        Ok(Self { durable: Mutex::new(durable), ordered: Mutex::new(connect(path, "NORMAL")?) })
    }

    /// Runs `change` in one write transaction and commits it.
    pub(crate) fn write<T>(
        &self,
        commit: Commit,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let connection = match commit {
            Commit::Durable => &self.durable,
            Commit::Ordered => &self.ordered,
        };
        let mut connection = lock(connection);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let result = change(&transaction)?;
        transaction.commit()?;
        Ok(result)
    }

    /// Runs `query` on one snapshot.
    pub(crate) fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let mut connection = lock(&self.ordered);
        let snapshot = connection.transaction()?;
        let result = query(&snapshot)?;
        snapshot.finish()?;
        Ok(result)
    }

    /// SQLite's own check of its file; what it found wrong.
    pub(crate) fn check(&self) -> Result<Vec<String>, Error> {
        self.read(|db| {
            let mut statement = db.prepare("PRAGMA integrity_check")?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            let rows = rows.collect::<Result<Vec<_>, _>>()?;
            Ok(rows.into_iter().filter(|row| row != "ok").collect())
        })
    }
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    // A panic inside a transaction rolls it back when the transaction is dropped.
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(path: &Path, synchronous: &str) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Makes the schema, or brings that of an older build to this one's.
fn create_schema(connection: &Connection) -> Result<(), Error> {
    let version = || connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
    match version()? {
        SCHEMA_VERSION => Ok(()),
        0..SCHEMA_VERSION => {
            // Another process may be doing the same: the second finds the version set.
            connection.execute_batch("BEGIN IMMEDIATE")?;
            match version()? {
                0 => connection.execute_batch(SCHEMA)?,
                1 => connection.execute_batch(FROM_1)?,
                _ => {}
            }
            connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            Ok(connection.execute_batch("COMMIT")?)
        }
        newer if newer > SCHEMA_VERSION => Err(Error::StoreNewer {
            what: "local.db schema version",
            found: newer.unsigned_abs(),
            supported: SCHEMA_VERSION.unsigned_abs(),
        }),
        other => {
            let what = format!("schema version {other} was never written");
            Err(Error::StoreDamaged { part: "local.db", what })
        }
    }
}

/// A digest's bytes as a column.
pub(crate) fn pin_columns(pin: &RootPin) -> (&[u8; 32], &[u8; 32]) {
    (pin.root.as_bytes(), pin.attrs.as_bytes())
}

pub(crate) fn pin_of(root: [u8; 32], attrs: [u8; 32]) -> RootPin {
    RootPin { root: RootId::new(Digest::from_bytes(root)), attrs: AttrsId::new(Digest::from_bytes(attrs)) }
}

/// What a carrier is charged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) allocated: u64,
    pub(crate) inodes: u64,
}

/// Records a carrier of a transaction that is not settled.
pub(crate) fn insert_carrier(
    db: &Transaction<'_>,
    carrier: CarrierId,
    form: Form,
    charge: Charge,
    shared: bool,
) -> Result<(), Error> {
    db.prepare_cached(
        "INSERT INTO carriers (carrier, state, allocated, inodes, shared, form)
         VALUES (?1, 'staging', ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
    )?
    .execute(params![carrier, charge.allocated as i64, charge.inodes as i64, shared, form])?;
    Ok(())
}

/// The form of a carrier.
pub(crate) fn form(db: &Connection, carrier: CarrierId) -> Result<Form, Error> {
    let mut statement = db.prepare_cached("SELECT form FROM carriers WHERE carrier = ?1")?;
    Ok(statement.query_row(params![carrier], |row| row.get(0))?)
}

/// Keeps the records of a carrier's symlinks and fifos.
pub(crate) fn insert_unopened(
    db: &Transaction<'_>,
    carrier: CarrierId,
    unopened: &Unopened,
) -> Result<(), Error> {
    let mut statement = db.prepare_cached("INSERT OR REPLACE INTO unopened VALUES (?1, ?2, ?3)")?;
    for (path, recorded) in unopened {
        statement.execute(params![carrier, path, recorded.encode()])?;
    }
    Ok(())
}

/// The records of a carrier's symlinks and fifos.
pub(crate) fn unopened(db: &Connection, carrier: CarrierId) -> Result<Unopened, Error> {
    let mut statement = db.prepare_cached("SELECT path, recorded FROM unopened WHERE carrier = ?1")?;
    let rows = statement
        .query_map(params![carrier], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    let mut found = Unopened::new();
    for row in rows {
        let (path, bytes) = row?;
        let damaged = || Error::damaged(&path, "its record in local.db is none of ours");
        let recorded = Recorded::decode(&bytes).ok_or_else(damaged)?;
        found.insert(path, recorded);
    }
    Ok(found)
}

/// Whether a carrier has a row.
pub(crate) fn exists(db: &Connection, carrier: CarrierId) -> Result<bool, Error> {
    let mut statement = db.prepare_cached("SELECT EXISTS (SELECT 1 FROM carriers WHERE carrier = ?1)")?;
    Ok(statement.query_row(params![carrier], |row| row.get(0))?)
}

/// Records that `native` shows what `portable` does.
pub(crate) fn put_conversion(
    db: &Transaction<'_>,
    portable: CarrierId,
    native: CarrierId,
) -> Result<(), Error> {
    db.prepare_cached("INSERT INTO conversions VALUES (?1, ?2)")?.execute(params![portable, native])?;
    Ok(())
}

/// Makes every root that can stand on native carriers alone do so. One commit: a root has its old
/// carriers or its new ones.
pub(crate) fn swap_converted(db: &Transaction<'_>) -> Result<(), Error> {
    db.prepare_cached(
        "UPDATE projections
         SET carrier = (SELECT native FROM conversions WHERE portable = projections.carrier)
         WHERE carrier IN (SELECT portable FROM conversions)
           AND NOT EXISTS (SELECT 1 FROM projections AS other JOIN carriers USING (carrier)
                           WHERE other.root_id = projections.root_id
                             AND other.attrs_id = projections.attrs_id AND carriers.form = 'portable'
                             AND carrier NOT IN (SELECT portable FROM conversions))",
    )?
    .execute([])?;
    Ok(())
}

/// The native carrier that shows what a portable one does, if it was made.
pub(crate) fn conversion(db: &Connection, portable: CarrierId) -> Result<Option<CarrierId>, Error> {
    let mut statement = db.prepare_cached("SELECT native FROM conversions WHERE portable = ?1")?;
    Ok(statement.query_row(params![portable], |row| row.get(0)).optional()?)
}

/// The carriers of a hot root, topmost first; none when it is not hot here.
pub(crate) fn projection(db: &Connection, pin: &RootPin) -> Result<Option<Vec<CarrierId>>, Error> {
    let (root, attrs) = pin_columns(pin);
    let mut statement = db.prepare_cached(
        "SELECT carrier FROM projections WHERE root_id = ?1 AND attrs_id = ?2 ORDER BY position",
    )?;
    let layers = statement.query_map(params![root, attrs], |row| row.get(0))?;
    let layers = layers.collect::<Result<Vec<CarrierId>, _>>()?;
    Ok((!layers.is_empty()).then_some(layers))
}

/// The same with the form of each; empty when the root is not hot here.
pub(crate) fn projection_forms(db: &Connection, pin: &RootPin) -> Result<Vec<(CarrierId, Form)>, Error> {
    let (root, attrs) = pin_columns(pin);
    let mut statement = db.prepare_cached(
        "SELECT carrier, form FROM projections JOIN carriers USING (carrier)
         WHERE root_id = ?1 AND attrs_id = ?2 ORDER BY position",
    )?;
    let layers = statement.query_map(params![root, attrs], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(layers.collect::<Result<_, _>>()?)
}

/// Records the carriers of a root, replacing what was recorded.
pub(crate) fn put_projection(db: &Transaction<'_>, pin: &RootPin, layers: &[CarrierId]) -> Result<(), Error> {
    delete_projection(db, pin)?;
    let (root, attrs) = pin_columns(pin);
    let mut statement = db.prepare_cached("INSERT INTO projections VALUES (?1, ?2, ?3, ?4)")?;
    for (position, carrier) in layers.iter().enumerate() {
        statement.execute(params![root, attrs, position as i64, carrier])?;
    }
    Ok(())
}

pub(crate) fn delete_projection(db: &Transaction<'_>, pin: &RootPin) -> Result<(), Error> {
    let (root, attrs) = pin_columns(pin);
    db.prepare_cached("DELETE FROM projections WHERE root_id = ?1 AND attrs_id = ?2")?
        .execute(params![root, attrs])?;
    Ok(())
}

/// Remembers what a verification of a root found; nothing means that it is whole.
pub(crate) fn note_damage(db: &Transaction<'_>, pin: &RootPin, what: Option<&str>) -> Result<(), Error> {
    let (root, attrs) = pin_columns(pin);
    match what {
        Some(what) => db
            .prepare_cached("INSERT OR REPLACE INTO damaged_roots VALUES (?1, ?2, ?3)")?
            .execute(params![root, attrs, what])?,
        None => db
            .prepare_cached("DELETE FROM damaged_roots WHERE root_id = ?1 AND attrs_id = ?2")?
            .execute(params![root, attrs])?,
    };
    Ok(())
}

/// What the last verification found wrong with a root.
pub(crate) fn damage(db: &Connection, pin: &RootPin) -> Result<Option<String>, Error> {
    let (root, attrs) = pin_columns(pin);
    let text = "SELECT what FROM damaged_roots WHERE root_id = ?1 AND attrs_id = ?2";
    Ok(db.prepare_cached(text)?.query_row(params![root, attrs], |row| row.get(0)).optional()?)
}

/// A workspace's row.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceRow {
    pub(crate) base: RootPin,
    pub(crate) boot: String,
    /// A sync of the upper failed: what the kernel has in memory may not be on the disk.
    pub(crate) suspect: bool,
    /// Of the upper.
    pub(crate) form: Form,
    pub(crate) lowers: Vec<CarrierId>,
}

pub(crate) fn workspace(db: &Connection, attempt: AttemptId) -> Result<Option<WorkspaceRow>, Error> {
    let mut statement = db.prepare_cached(
        "SELECT root_id, attrs_id, boot_id, suspect, form FROM workspaces WHERE attempt = ?1",
    )?;
    let row = statement
        .query_row(params![attempt.as_bytes()], |row| {
            Ok((pin_of(row.get(0)?, row.get(1)?), row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()?;
    let Some((base, boot, suspect, form)) = row else { return Ok(None) };
    let mut statement =
        db.prepare_cached("SELECT carrier FROM workspace_lowers WHERE attempt = ?1 ORDER BY position")?;
    let lowers = statement.query_map(params![attempt.as_bytes()], |row| row.get(0))?;
    Ok(Some(WorkspaceRow { base, boot, suspect, form, lowers: lowers.collect::<Result<_, _>>()? }))
}

pub(crate) fn insert_workspace(
    db: &Transaction<'_>,
    attempt: AttemptId,
    row: &WorkspaceRow,
) -> Result<(), Error> {
    let (root, attrs) = pin_columns(&row.base);
    db.prepare_cached(
        "INSERT INTO workspaces (attempt, root_id, attrs_id, boot_id, suspect, form)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![attempt.as_bytes(), root, attrs, row.boot, row.suspect, row.form])?;
    let mut statement = db.prepare_cached("INSERT INTO workspace_lowers VALUES (?1, ?2, ?3)")?;
    for (position, carrier) in row.lowers.iter().enumerate() {
        statement.execute(params![attempt.as_bytes(), position as i64, carrier])?;
    }
    Ok(())
}

/// Remembers that a sync of an attempt's upper failed.
pub(crate) fn suspect_workspace(db: &Transaction<'_>, attempt: AttemptId) -> Result<(), Error> {
    db.prepare_cached("UPDATE workspaces SET suspect = 1 WHERE attempt = ?1")?
        .execute(params![attempt.as_bytes()])?;
    Ok(())
}

pub(crate) fn delete_workspace(db: &Transaction<'_>, attempt: AttemptId) -> Result<(), Error> {
    for text in
        ["DELETE FROM workspaces WHERE attempt = ?1", "DELETE FROM workspace_lowers WHERE attempt = ?1"]
    {
        db.prepare_cached(text)?.execute(params![attempt.as_bytes()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every column of every table with its rules, and every index.
    fn described(db: &Connection) -> Vec<String> {
        let text = "SELECT m.name, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk
                    FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type IN ('table', 'index')
                    ORDER BY 1, 2";
        let mut statement = db.prepare(text).expect("prepare");
        let row = |row: &rusqlite::Row<'_>| {
            let columns = (0..6).map(|n| Ok(format!("{:?}", row.get_ref(n)?)));
            columns.collect::<rusqlite::Result<Vec<_>>>().map(|columns| columns.join(" "))
        };
        statement.query_map([], row).expect("query").collect::<Result<_, _>>().expect("rows")
    }

    #[test]
    fn an_older_schema_becomes_this_ones_and_what_it_held_is_native() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (old, fresh) = (dir.path().join("old.db"), dir.path().join("fresh.db"));
        let carrier = CarrierId::draw();
        let db = Connection::open(&old).expect("open");
        db.execute_batch(include_str!("local_1.sql")).expect("schema");
        db.pragma_update(None, "user_version", 1).expect("version");
        db.execute("INSERT INTO carriers VALUES (?1, 'hot', 1, 2, 0)", params![carrier]).expect("carrier");
        db.execute("INSERT INTO workspaces VALUES (x'01', x'02', x'03', 'boot', 1)", []).expect("workspace");
        db.execute("INSERT INTO projections VALUES (x'01', x'02', 0, ?1)", params![carrier]).expect("layer");
        let insert =
            "INSERT INTO transactions (txn, kind, state, attempt) VALUES ('t', 'seal', 'intent', x'01')";
        db.execute(insert, []).expect("transaction");
        drop(db);
        let local = Local::open(&old).expect("migrate");
        drop(Local::open(&fresh).expect("create"));
        let other = Connection::open(&fresh).expect("open");
        local
            .read(|db| {
                assert_eq!(described(db), described(&other));
                assert_eq!(form(db, carrier)?, Form::Native);
                let form: Form = db.query_row("SELECT form FROM workspaces", [], |row| row.get(0))?;
                assert_eq!(form, Form::Native);
                let seals: i64 = db.query_row("SELECT count(*) FROM transactions", [], |row| row.get(0))?;
                assert_eq!(seals, 1);
                Ok(())
            })
            .expect("read");
        // What the older build could not say is allowed now, and nothing else.
        for (kind, allowed) in [("convert", true), ("nonsense", false)] {
            let inserted = local.write(Commit::Ordered, |db| {
                let text = "INSERT INTO transactions (txn, kind, state) VALUES (?1, ?1, 'intent')";
                Ok(db.execute(text, params![kind])?)
            });
            assert_eq!(inserted.is_ok(), allowed, "{kind}");
        }
        drop(Local::open(&old).expect("a second time"));
    }

    #[test]
    fn what_belongs_to_a_carrier_goes_with_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let local = Local::open(&dir.path().join("local.db")).expect("create");
        let (portable, native) = (CarrierId::draw(), CarrierId::draw());
        let recorded =
            Recorded { mode: esf_core::manifest::Mode::SYMLINK, owner: (5, 6), xattrs: Vec::new() };
        let kept = Unopened::from([(b"l\xff".to_vec(), recorded)]);
        let found = local.write(Commit::Ordered, |db| {
            insert_carrier(db, portable, Form::Portable, Charge::default(), false)?;
            insert_carrier(db, native, Form::Native, Charge::default(), false)?;
            insert_unopened(db, portable, &kept)?;
            put_conversion(db, portable, native)?;
            assert_eq!((unopened(db, portable)?, conversion(db, portable)?), (kept, Some(native)));
            db.execute("DELETE FROM carriers WHERE carrier = ?1", params![portable])?;
            Ok((unopened(db, portable)?, conversion(db, portable)?))
        });
        assert_eq!(found.expect("commit"), (Unopened::new(), None));
    }
}
