-- The worker's own facts (docs/on-disk-format.md, section "local.db"): where bytes are on this
-- machine. Nothing here is known to the graph, and nothing here is needed to name a root.

CREATE TABLE carriers (
    carrier   TEXT PRIMARY KEY,               -- 32 hex digits: the directory's name in carriers/
    state     TEXT NOT NULL CHECK (state IN ('staging', 'hot', 'condemned')),
    allocated INTEGER NOT NULL,               -- bytes on disk that this carrier is charged with
    inodes    INTEGER NOT NULL,               -- files and directories in it
    shared    INTEGER NOT NULL                -- 1 when files are hard-linked with another carrier
) STRICT;

CREATE TABLE projections (                    -- a hot root: its carriers, topmost first
    root_id  BLOB NOT NULL,
    attrs_id BLOB NOT NULL,
    position INTEGER NOT NULL,
    carrier  TEXT NOT NULL REFERENCES carriers (carrier),
    PRIMARY KEY (root_id, attrs_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX projections_by_carrier ON projections (carrier);

CREATE TABLE workspaces (                     -- attempts/<attempt>: an upper and what lies beneath it
    attempt  BLOB PRIMARY KEY,
    root_id  BLOB NOT NULL,                   -- the base
    attrs_id BLOB NOT NULL,
    boot_id  TEXT NOT NULL,                   -- uppers are volatile: worthless after a restart
    suspect  INTEGER NOT NULL                 -- 1 after a failed sync: the next seal reads it back
) STRICT;

CREATE TABLE workspace_lowers (               -- pins carriers under a live overlay
    attempt  BLOB NOT NULL,
    position INTEGER NOT NULL,
    carrier  TEXT NOT NULL REFERENCES carriers (carrier),
    PRIMARY KEY (attempt, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX workspace_lowers_by_carrier ON workspace_lowers (carrier);

CREATE TABLE transactions (                   -- what is under way, to be finished or undone
    txn            TEXT PRIMARY KEY,          -- 32 hex digits: the directory's name in staging/
    kind           TEXT NOT NULL CHECK (kind IN ('seal', 'import', 'squash', 'merge')),
    state          TEXT NOT NULL CHECK (state IN ('intent', 'prepared', 'projected')),
    carrier        TEXT,                      -- null when nothing changed
    attempt        BLOB UNIQUE,               -- seals only, as the next three
    request_key    TEXT,
    request_digest BLOB,
    changes        TEXT,                      -- JSON
    base_root_id   BLOB,
    base_attrs_id  BLOB,
    root_id        BLOB,                      -- from prepared on, as the next two
    attrs_id       BLOB,
    layers         TEXT                       -- the projection's carriers, topmost first, by comma
) STRICT;

CREATE TABLE damaged_roots (                  -- what a verification found: not to be mounted
    root_id  BLOB NOT NULL,
    attrs_id BLOB NOT NULL,
    what     TEXT NOT NULL,                   -- the first damage
    PRIMARY KEY (root_id, attrs_id)
) STRICT, WITHOUT ROWID;
