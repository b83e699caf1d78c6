//! The shell around every decision: look for the same request, load, decide, commit, remember the
//! reply. Invariant: effect and idempotency record are in one transaction, so there is never one
//! without the other.

use esf_core::digest::RequestDigest;
use esf_core::ops::{Decision, Meta, Reject, Request};
use esf_core::{Digest, canonical};
use rusqlite::{Connection, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::row::{Bytes, Columns, change, first};
use crate::writer::Transaction;
use crate::{Graph, apply, statements};

/// A reply, and whether this call made the effect or found it made.
pub(crate) struct Answer<R> {
    /// What was decided when the effect was made.
    pub(crate) reply: R,
    /// Whether this call made it.
    pub(crate) fresh: bool,
}

impl Graph {
    /// Commits what `decide` makes of the database, once for each (actor, operation, key). `body` is all
    /// that distinguishes one request from another.
    pub(crate) fn mutate<R, B>(
        &self,
        meta: &Meta,
        operation: &'static str,
        body: &B,
        decide: impl FnOnce(&Connection, &Request<'_>) -> Result<Decision<R>> + Send + 'static,
    ) -> Result<Answer<R>>
    where
        R: Serialize + DeserializeOwned + Send + 'static,
        B: Serialize,
    {
        meta.check()?;
        let digest = request_digest(operation, body);
        let (meta, store) = (meta.clone(), self.inner.store);
        self.inner.writer.run(move |transaction| {
            if let Some(reply) = replay(transaction.db, &meta, operation, Some(digest))? {
                return Ok(Answer { reply, fresh: false });
            }
            let decision = decide(transaction.db, &Request { store, operation, meta: &meta })?;
            apply::commit(transaction, &meta, &decision.changes, &decision.transitions)?;
            remember(transaction, &meta, operation, digest, &decision.reply)?;
            Ok(Answer { reply: decision.reply, fresh: true })
        })
    }
}

impl Graph {
    /// The reply that `operation` was given under the actor and key of `meta`, whatever was asked: for
    /// who must know before making an effect outside the graph. Operations are named like their methods
    /// (`exec` for `record_exec`), and a reply is what the operation's decision says: `Outcome` for
    /// `commit_seal`, `Started` for `start`, `Forked` for `fork`.
    ///
    /// # Errors
    /// `Damaged` when the reply is of another type, and failures of the database.
    pub fn recorded<R: DeserializeOwned>(&self, meta: &Meta, operation: &str) -> Result<Option<R>> {
        self.read(|db| replay(db, meta, operation, None))
    }

    /// `recorded` for a mutation whose variant with `asked` is used: what was asked must be the same.
    ///
    /// # Errors
    /// `IdempotencyConflict` when something else was asked under the key; as `recorded`.
    pub fn recorded_asked<R: DeserializeOwned, B: Serialize>(
        &self,
        meta: &Meta,
        operation: &str,
        asked: &B,
    ) -> Result<Option<R>> {
        self.read(|db| replay(db, meta, operation, Some(request_digest(operation, asked))))
    }
}

pub(crate) fn request_digest<B: Serialize>(operation: &str, body: &B) -> RequestDigest {
    RequestDigest::new(canonical::digest("esf request v1", &(operation, body)))
}

/// The reply that was given under the same key; `digest` is that of the request asked now, or nothing
/// to take whatever was asked.
pub(crate) fn replay<R: DeserializeOwned>(
    db: &Connection,
    meta: &Meta,
    operation: &str,
    digest: Option<RequestDigest>,
) -> Result<Option<R>> {
    let read = |columns: &mut Columns<'_>| Ok((columns.id::<Digest>()?, columns.take::<String>()?));
    let found = first(db, statements::REQUEST_BY_KEY, params![meta.key, operation, meta.actor], read)?;
    let Some((expected, reply)) = found else { return Ok(None) };
    let expected = RequestDigest::new(expected);
    if let Some(found) = digest
        && found != expected
    {
        let (operation, key) = (operation.to_owned(), meta.key.clone());
        return Err(Error::IdempotencyConflict { operation, key, expected, found });
    }
    let reply = serde_json::from_str(&reply)
        .map_err(|error| Error::damaged(format!("the reply under key {:?}: {error}", meta.key)))?;
    Ok(Some(reply))
}

pub(crate) fn remember<R: Serialize>(
    transaction: &Transaction<'_>,
    meta: &Meta,
    operation: &str,
    digest: RequestDigest,
    reply: &R,
) -> Result<()> {
    let reply = serde_json::to_string(reply).map_err(|error| Error::damaged(format!("not JSON: {error}")))?;
    let values = params![meta.actor, operation, meta.key, digest.digest().bytes(), reply, meta.now.0];
    change(transaction.db, statements::INSERT_REQUEST, values, "request")
}

/// Wraps a pure decision's refusal.
pub(crate) fn decided<R>(decision: Result<Decision<R>, Reject>) -> Result<Decision<R>> {
    decision.map_err(Error::from)
}
