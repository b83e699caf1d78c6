//! A seal's row in `local.db`: how far it has come, and what is needed to carry it on.
//! Invariant: what is *prepared* has its root, its layers and its changes recorded.

use esf_core::AttemptId;
use esf_core::manifest::RootPin;
use rusqlite::{OptionalExtension, Row, params};

use crate::Error;
use crate::local::{CarrierId, TxnId, pin_of};
use crate::recover::parse_layers;
use crate::seal::SealRequest;
use crate::sealed::Changes;

/// A seal's row.
pub(crate) struct Journal {
    pub(crate) txn: TxnId,
    pub(crate) attempt: AttemptId,
    pub(crate) state: JournalState,
    pub(crate) carrier: Option<CarrierId>,
    pub(crate) key: String,
    pub(crate) request_digest: [u8; 32],
    pub(crate) base: RootPin,
    pub(crate) pin: Option<RootPin>,
    pub(crate) layers: Vec<CarrierId>,
    pub(crate) changes: Changes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalState {
    Intent,
    Prepared,
    Projected,
}

pub(crate) const COLUMNS: &str = "txn, attempt, state, carrier, request_key, request_digest, base_root_id, \
                       base_attrs_id, root_id, attrs_id, layers, changes";

impl Journal {
    /// Whether this is the journal of `request`.
    pub(crate) fn is_of(&self, request: &SealRequest) -> bool {
        self.key == request.key
            && self.request_digest == *request.request_digest.as_bytes()
            && self.base == request.base
    }

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let state = match row.get::<_, String>(2)?.as_str() {
            "intent" => JournalState::Intent,
            "prepared" => JournalState::Prepared,
            _ => JournalState::Projected,
        };
        let changes: Option<String> = row.get(11)?;
        let root: Option<[u8; 32]> = row.get(8)?;
        let attrs: Option<[u8; 32]> = row.get(9)?;
        let layers: Option<String> = row.get(10)?;
        Ok(Self {
            txn: row.get(0)?,
            attempt: AttemptId::from_bytes(row.get(1)?),
            state,
            carrier: row.get(3)?,
            key: row.get(4)?,
            request_digest: row.get(5)?,
            base: pin_of(row.get(6)?, row.get(7)?),
            pin: root.zip(attrs).map(|(root, attrs)| pin_of(root, attrs)),
            layers: layers.map(|text| parse_layers(&text)).unwrap_or_default(),
            changes: changes.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        })
    }

    /// The journal whose `column` has `value`.
    pub(crate) fn find(
        db: &rusqlite::Connection,
        column: &str,
        value: &dyn rusqlite::ToSql,
    ) -> Result<Option<Self>, Error> {
        let text = format!("SELECT {COLUMNS} FROM transactions WHERE kind = 'seal' AND {column} = ?1");
        Ok(db.prepare_cached(&text)?.query_row(params![value], Self::read).optional()?)
    }
}
