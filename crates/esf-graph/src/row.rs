//! Between columns and values: ids and digests as fixed bytes, words as text, nested data as JSON.
//! Invariant: what cannot be read is `Damaged`, never a default.

use std::fmt::Display;

use esf_core::id::{
    AttemptId, EntryId, EvaluationId, ExecId, GroupId, LeaseId, NodeId, PromptId, RolloutId, RunId, SearchId,
    SiblingId, StoreId, TaskId, WorkerId,
};
use esf_core::{AttrsId, Digest, EnvironmentDigest, PolicyDigest, RootId, StateId};
use rusqlite::types::{FromSql, ValueRef};
use rusqlite::{Connection, Params, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// An id or digest: a fixed number of bytes.
pub(crate) trait Bytes: Sized {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// Reads the bytes; `None` when there are too few or too many.
    fn read(bytes: &[u8]) -> Option<Self>;
}

macro_rules! ids {
    ($($name:ident),*) => {$(
        impl Bytes for $name {
            fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }
            fn read(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self::from_bytes)
            }
        }
    )*};
}
ids!(
    AttemptId,
    EvaluationId,
    ExecId,
    GroupId,
    LeaseId,
    NodeId,
    PromptId,
    RolloutId,
    RunId,
    SearchId,
    SiblingId,
    StoreId,
    TaskId,
    EntryId,
    WorkerId,
    Digest
);

macro_rules! digests {
    ($($name:ident),*) => {$(
        impl Bytes for $name {
            fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }
            fn read(bytes: &[u8]) -> Option<Self> {
                Digest::read(bytes).map(Self::new)
            }
        }
    )*};
}
digests!(AttrsId, EnvironmentDigest, PolicyDigest, RootId, StateId);

/// The bytes of an optional id.
pub(crate) fn optional<T: Bytes>(id: Option<&T>) -> Option<&[u8]> {
    id.map(Bytes::bytes)
}

/// A counter as the database holds it.
pub(crate) fn count(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::damaged(format!("the number {value} is too large")))
}

/// Nested data as text; `None` for JSON null.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<Option<String>> {
    let text = serde_json::to_string(value).map_err(|error| Error::damaged(format!("not JSON: {error}")))?;
    Ok(Some(text).filter(|text| text != "null"))
}

/// The columns of a row, taken one after the other in the order of the statement.
pub(crate) struct Columns<'a> {
    row: &'a Row<'a>,
    at: usize,
}

impl Columns<'_> {
    /// The next column.
    pub(crate) fn take<T: FromSql>(&mut self) -> Result<T> {
        let value = self.row.get(self.at)?;
        self.at += 1;
        Ok(value)
    }

    /// The next column as the database holds it.
    pub(crate) fn take_ref(&mut self) -> Result<ValueRef<'_>> {
        let value = self.row.get_ref(self.at)?;
        self.at += 1;
        Ok(value)
    }

    /// The column taken last cannot be read.
    pub(crate) fn bad(&self, what: impl Display) -> Error {
        let name = self.row.as_ref().column_name(self.at - 1).unwrap_or("?").to_owned();
        Error::damaged(format!("column {name}: {what}"))
    }

    /// An id or digest.
    pub(crate) fn id<T: Bytes>(&mut self) -> Result<T> {
        self.optional_id()?.ok_or_else(|| self.bad("no id"))
    }

    /// An id or digest, or nothing.
    pub(crate) fn optional_id<T: Bytes>(&mut self) -> Result<Option<T>> {
        let bytes = self.row.get_ref(self.at)?.as_blob_or_null();
        self.at += 1;
        let bytes = bytes.map_err(|error| self.bad(error))?;
        bytes
            .map(|bytes| T::read(bytes).ok_or_else(|| self.bad(format!("{} bytes", bytes.len()))))
            .transpose()
    }

    /// A number that is never negative.
    pub(crate) fn count(&mut self) -> Result<u64> {
        let value: i64 = self.take()?;
        u64::try_from(value).map_err(|_| self.bad(value))
    }

    /// A number that is never negative, or nothing.
    pub(crate) fn optional_count(&mut self) -> Result<Option<u64>> {
        let value: Option<i64> = self.take()?;
        value.map(|value| u64::try_from(value).map_err(|_| self.bad(value))).transpose()
    }

    /// A word, read by `parse`.
    pub(crate) fn word<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let word = self.row.get_ref(self.at)?.as_str().map(&parse);
        self.at += 1;
        match word {
            Ok(Some(word)) => Ok(word),
            Ok(None) => Err(self.bad("unknown word")),
            Err(error) => Err(self.bad(error)),
        }
    }

    /// A word, read by `parse`, or nothing.
    pub(crate) fn optional_word<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let text: Option<String> = self.take()?;
        text.map(|text| parse(&text).ok_or_else(|| self.bad(format!("unknown word {text:?}")))).transpose()
    }

    /// Nested data; null reads as JSON null.
    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text: Option<String> = self.take()?;
        serde_json::from_str(text.as_deref().unwrap_or("null")).map_err(|error| self.bad(error))
    }
}

/// The first row of `sql`, read by `read`.
pub(crate) fn first<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&mut Columns<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    rows.next()?.map(|row| read(&mut Columns { row, at: 0 })).transpose()
}

/// Every row of `sql`, read by `read`.
pub(crate) fn every<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&mut Columns<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut values = Vec::new();
    while let Some(row) = rows.next()? {
        values.push(read(&mut Columns { row, at: 0 })?);
    }
    Ok(values)
}

/// Shows every row of `sql` to `see`, holding one at a time.
pub(crate) fn each(
    db: &Connection,
    sql: &str,
    params: impl Params,
    mut see: impl FnMut(&mut Columns<'_>) -> Result<()>,
) -> Result<()> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        see(&mut Columns { row, at: 0 })?;
    }
    Ok(())
}

/// Runs `sql`, which must change exactly one row.
pub(crate) fn change(db: &Connection, sql: &str, params: impl Params, what: &str) -> Result<()> {
    match db.prepare_cached(sql)?.execute(params)? {
        1 => Ok(()),
        rows => Err(Error::damaged(format!("{what}: {rows} rows changed instead of one"))),
    }
}
