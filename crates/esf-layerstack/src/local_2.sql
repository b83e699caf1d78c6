-- From schema version 1 to 2: carriers and uppers have a form, and what was there is native.

ALTER TABLE carriers ADD COLUMN form TEXT NOT NULL DEFAULT 'native' CHECK (form IN ('native', 'portable'));
ALTER TABLE workspaces ADD COLUMN form TEXT NOT NULL DEFAULT 'native' CHECK (form IN ('native', 'portable'));

CREATE TABLE unopened (
    carrier  TEXT NOT NULL REFERENCES carriers (carrier) ON DELETE CASCADE,
    path     BLOB NOT NULL,
    recorded BLOB NOT NULL,
    PRIMARY KEY (carrier, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE conversions (
    portable TEXT PRIMARY KEY REFERENCES carriers (carrier) ON DELETE CASCADE,
    native   TEXT NOT NULL REFERENCES carriers (carrier) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX conversions_by_native ON conversions (native);

-- The same table with one kind more: a CHECK cannot be altered.
ALTER TABLE transactions RENAME TO transactions_1;
CREATE TABLE transactions (
    txn            TEXT PRIMARY KEY,
    kind           TEXT NOT NULL CHECK (kind IN ('seal', 'import', 'squash', 'merge', 'convert')),
    state          TEXT NOT NULL CHECK (state IN ('intent', 'prepared', 'projected')),
    carrier        TEXT,
    attempt        BLOB UNIQUE,
    request_key    TEXT,
    request_digest BLOB,
    changes        TEXT,
    base_root_id   BLOB,
    base_attrs_id  BLOB,
    root_id        BLOB,
    attrs_id       BLOB,
    layers         TEXT
) STRICT;
INSERT INTO transactions SELECT * FROM transactions_1;
DROP TABLE transactions_1;
