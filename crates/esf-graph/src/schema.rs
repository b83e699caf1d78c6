//! Migrations of the graph's schema. Invariant: versions only grow, each is applied once and as a whole,
//! and a file of a newer version is refused before anything is read from it. See `docs/schema.md`.

use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, Result};

/// Marks the file as a graph: "ESFG".
const APPLICATION_ID: i64 = 0x4553_4647;

/// Every migration: its version is its place, from 1.
const MIGRATIONS: &[(&str, &str)] = &[
    ("first", include_str!("sql/migrations/0001_first.sql")),
    ("search", include_str!("sql/migrations/0002_search.sql")),
    ("rollouts", include_str!("sql/migrations/0003_rollouts.sql")),
    ("development", include_str!("sql/migrations/0004_development.sql")),
];

/// The newest version known.
pub(crate) fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("few migrations")
}

/// The version of the file; 0 when it is empty.
///
/// # Errors
/// `Newer` when it is not known here, `Damaged` when the file is something else.
pub(crate) fn version(db: &Connection) -> Result<i64> {
    let id: i64 = db.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(0);
    }
    if id != APPLICATION_ID {
        return Err(Error::damaged("the file is a database but not a graph"));
    }
    let found: Option<i64> =
        db.query_row("SELECT max(version) FROM migrations", [], |row| row.get(0)).optional()?.flatten();
    let found = found.ok_or_else(|| Error::damaged("it has no schema version"))?;
    if found > known() {
        return Err(Error::Newer { found, known: known() });
    }
    Ok(found)
}

/// Brings the file to the newest version, in one transaction.
///
/// # Errors
/// Those of `version`, and failures of the database.
pub(crate) fn migrate(db: &Connection) -> Result<()> {
    if version(db)? == known() {
        return Ok(());
    }
    db.execute_batch("BEGIN IMMEDIATE")?;
    let applied = apply_missing(db);
    match applied {
        Ok(()) => db.execute_batch("COMMIT")?,
        Err(_) => db.execute_batch("ROLLBACK")?,
    }
    applied
}

fn apply_missing(db: &Connection) -> Result<()> {
    // Asked again under the lock: another process may have been faster.
    let from = version(db)?;
    if from == 0 {
        db.execute_batch(
            "CREATE TABLE migrations (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT",
        )?;
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    for (version, (name, sql)) in (1..).zip(MIGRATIONS) {
        if version > from {
            db.execute_batch(sql)?;
            db.execute("INSERT INTO migrations (version, name) VALUES ($1, $2)", (version, name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrating_twice_changes_nothing() {
        let db = Connection::open_in_memory().expect("memory");
        assert_eq!(version(&db).expect("empty"), 0);
        migrate(&db).expect("first");
        migrate(&db).expect("second");
        assert_eq!(version(&db).expect("known"), known());
    }

    #[test]
    fn a_newer_version_and_a_foreign_file_are_refused() {
        let db = Connection::open_in_memory().expect("memory");
        migrate(&db).expect("schema");
        db.execute("INSERT INTO migrations VALUES (99, 'later')", []).expect("insert");
        assert!(matches!(migrate(&db), Err(Error::Newer { found: 99, known: _ })));
        let foreign = Connection::open_in_memory().expect("memory");
        foreign.execute_batch("CREATE TABLE t (a)").expect("table");
        assert!(matches!(migrate(&foreign), Err(Error::Damaged { what: _ })));
    }
}
