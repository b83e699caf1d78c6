-- Tree search. Every table and column is described in docs/schema.md.
-- A list of three words or more in a CHECK is a temporary table for each row that is written: hence the ORs.
-- A value is a REAL in a search of one value, a JSON array in one of several, null while there is none.

CREATE TABLE searches (
    number        INTEGER PRIMARY KEY,
    search_id     BLOB NOT NULL UNIQUE CHECK (length(search_id) = 16),
    group_id      BLOB NOT NULL REFERENCES groups (group_id),
    root_node_id  BLOB NOT NULL REFERENCES nodes (node_id),
    root          INTEGER NOT NULL REFERENCES positions (number) DEFERRABLE INITIALLY DEFERRED,
    config        TEXT NOT NULL, -- a JSON object
    config_digest BLOB NOT NULL CHECK (length(config_digest) = 32),
    status        TEXT NOT NULL CHECK (status IN ('open', 'stopped')),
    stopped       TEXT,
    selected      INTEGER NOT NULL,
    accepted      INTEGER NOT NULL,
    void          INTEGER NOT NULL,
    cost          REAL NOT NULL,
    positions     INTEGER NOT NULL,
    expanded      INTEGER NOT NULL, -- of these, those that have edges
    edges         INTEGER NOT NULL,
    best          REAL,             -- the greatest worth of an accepted value
    stats_rev     INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    created_by    TEXT NOT NULL,
    trace_id      TEXT NOT NULL,
    CHECK ((status = 'stopped') = (stopped IS NOT NULL)),
    CHECK (accepted + void <= selected)
) STRICT;
CREATE INDEX searches_of_group ON searches (group_id, number);

CREATE TABLE positions (
    number        INTEGER PRIMARY KEY,
    search        INTEGER NOT NULL REFERENCES searches (number) DEFERRABLE INITIALLY DEFERRED,
    entry         INTEGER,          -- the edge by which it was first reached; null for the root
    entries       INTEGER NOT NULL, -- how many edges lead to it
    depth         INTEGER NOT NULL,
    level         INTEGER NOT NULL, -- greater than that of every position with an edge to it
    to_move       INTEGER NOT NULL,
    terminal      INTEGER NOT NULL CHECK (terminal IN (0, 1)),
    expansion     TEXT NOT NULL CHECK (expansion = 'unasked' OR expansion = 'open' OR expansion = 'exhausted'),
    asking        INTEGER NOT NULL CHECK (asking >= 0),
    edge_count    INTEGER NOT NULL CHECK (edge_count <= 1048576),
    place         INTEGER,          -- its place among those of the search that have edges, from 0
    value_count   INTEGER NOT NULL,
    value         ANY,
    visits        INTEGER NOT NULL,
    mean          ANY,
    proven        ANY,
    pruned        INTEGER NOT NULL CHECK (pruned IN (0, 1)),
    node_id       BLOB REFERENCES nodes (node_id),
    state_key     BLOB,
    evaluation_id BLOB REFERENCES evaluations (evaluation_id),
    CHECK ((edge_count = 0) = (place IS NULL))
) STRICT;
CREATE INDEX positions_of_search ON positions (search);
CREATE UNIQUE INDEX positions_expanded ON positions (search, place) WHERE place IS NOT NULL;
CREATE INDEX positions_of_key ON positions (search, state_key) WHERE state_key IS NOT NULL;
CREATE INDEX positions_of_node ON positions (node_id) WHERE node_id IS NOT NULL;

-- What selection reads of an action at a position, and of where it leads. All edges of a position are one
-- range of numbers.
CREATE TABLE edges (
    number         INTEGER PRIMARY KEY, -- parent * 1048576 + ordinal
    parent         INTEGER GENERATED ALWAYS AS (number >> 20) VIRTUAL,
    ordinal        INTEGER GENERATED ALWAYS AS (number & 1048575) VIRTUAL,
    prior          REAL NOT NULL,
    child          INTEGER REFERENCES positions (number),
    reward         ANY,
    discount       REAL NOT NULL,
    visits         INTEGER NOT NULL,
    in_flight      INTEGER NOT NULL CHECK (in_flight >= 0),
    status         TEXT NOT NULL CHECK (status = 'open' OR status = 'closed' OR status = 'lost' OR status = 'pruned'),
    failures       INTEGER NOT NULL,
    closed_because TEXT,
    child_visits   INTEGER NOT NULL, -- of the child, as the three below it: kept equal
    child_mean     ANY,
    child_proven   ANY
) STRICT;

-- What selection does not read of an edge: facts that never change.
CREATE TABLE actions (
    edge          INTEGER PRIMARY KEY REFERENCES edges (number),
    action        TEXT NOT NULL, -- JSON
    action_digest BLOB NOT NULL CHECK (length(action_digest) = 32),
    name          TEXT
) STRICT;

-- The second and further edges that lead to a position; the first is positions.entry.
CREATE TABLE transpositions (
    child INTEGER NOT NULL REFERENCES positions (number),
    edge  INTEGER NOT NULL REFERENCES edges (number),
    PRIMARY KEY (child, edge)
) STRICT, WITHOUT ROWID;

CREATE TABLE rollouts (
    number         INTEGER PRIMARY KEY,
    rollout_id     BLOB NOT NULL UNIQUE CHECK (length(rollout_id) = 16),
    search         INTEGER NOT NULL REFERENCES searches (number),
    ordinal        INTEGER NOT NULL,
    steps          TEXT NOT NULL, -- a JSON array of edges
    leaf           INTEGER NOT NULL REFERENCES positions (number),
    stage          TEXT NOT NULL CHECK (stage = 'expand' OR stage = 'visit' OR stage = 'revisit'),
    wanted         INTEGER,
    status         TEXT NOT NULL CHECK (status = 'selected' OR status = 'accepted' OR status = 'void'),
    outcome_digest BLOB,
    value          ANY,
    reached        INTEGER REFERENCES positions (number),
    node_id        BLOB REFERENCES nodes (node_id),
    evaluation_id  BLOB REFERENCES evaluations (evaluation_id),
    void_class     TEXT,
    void_reason    TEXT,
    cost           REAL NOT NULL,
    expires_at     INTEGER NOT NULL, -- milliseconds of the boot clock of boot_id
    boot_id        TEXT NOT NULL,
    selected_at    INTEGER NOT NULL,
    ended_at       INTEGER,
    ended          INTEGER, -- its place among the rollouts of the search that have ended, from 0
    created_by     TEXT NOT NULL,
    trace_id       TEXT NOT NULL,
    UNIQUE (search, ordinal),
    CHECK ((status = 'selected') = (ended IS NULL)),
    CHECK ((status = 'accepted') = (reached IS NOT NULL)),
    CHECK ((status = 'void') = (void_reason IS NOT NULL))
) STRICT;
CREATE INDEX rollouts_of_evaluation ON rollouts (evaluation_id) WHERE evaluation_id IS NOT NULL;
CREATE INDEX rollouts_held ON rollouts (search, boot_id, expires_at) WHERE status = 'selected';

ALTER TABLE events ADD COLUMN search_id BLOB;
ALTER TABLE events ADD COLUMN rollout_id BLOB;
