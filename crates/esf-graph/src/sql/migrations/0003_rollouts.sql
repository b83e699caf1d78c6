-- Rollouts for training: runs, their policy's versions, prompts, siblings, trials and steps; the log of ends, and
-- who consumed it. See docs/schema.md.

CREATE TABLE runs (
    number             INTEGER PRIMARY KEY,
    run_id             BLOB NOT NULL UNIQUE CHECK (length(run_id) = 16),
    group_id           BLOB NOT NULL REFERENCES groups (group_id),
    node_id            BLOB NOT NULL REFERENCES nodes (node_id),
    name               TEXT NOT NULL,
    policy_name        TEXT NOT NULL,
    policy_version     INTEGER NOT NULL, -- the current one
    policy_weights     BLOB,
    policy_adapter     TEXT,
    sampler            TEXT, -- JSON
    generation_source  TEXT NOT NULL CHECK (generation_source = 'live' OR generation_source = 'frozen'),
    environment_digest BLOB NOT NULL REFERENCES environments (environment_digest),
    evaluators         TEXT NOT NULL, -- a JSON array
    group_size         INTEGER NOT NULL,
    rewards            TEXT NOT NULL, -- a JSON object
    max_staleness      INTEGER,
    batch              INTEGER,
    max_ready          INTEGER,
    refill             TEXT NOT NULL CHECK (refill = 'none' OR refill = 'sibling' OR refill = 'group'),
    max_refills        INTEGER NOT NULL,
    status             TEXT NOT NULL CHECK (status = 'open' OR status = 'finished' OR status = 'cancelled'),
    cancelled          TEXT,
    prompts            INTEGER NOT NULL, -- from here on, counts of its own rows: see docs/schema.md
    complete           INTEGER NOT NULL,
    siblings           INTEGER NOT NULL,
    waiting            INTEGER NOT NULL,
    running            INTEGER NOT NULL,
    results            INTEGER NOT NULL,
    errors             INTEGER NOT NULL,
    cancelled_siblings INTEGER NOT NULL,
    refills            INTEGER NOT NULL,
    late               INTEGER NOT NULL,
    sequence           INTEGER NOT NULL,
    accepted           INTEGER NOT NULL,
    trained            INTEGER NOT NULL,
    batches            INTEGER NOT NULL,
    trainer_step       INTEGER NOT NULL,
    created_at         INTEGER NOT NULL,
    created_by         TEXT NOT NULL,
    trace_id           TEXT NOT NULL,
    CHECK (waiting >= 0 AND running >= 0 AND accepted >= trained AND trained >= 0),
    CHECK ((status = 'cancelled') = (cancelled IS NOT NULL))
) STRICT;
CREATE INDEX runs_of_group ON runs (group_id);

CREATE TABLE policy_versions (
    run          INTEGER NOT NULL REFERENCES runs (number),
    version      INTEGER NOT NULL,
    weights      BLOB,
    adapter      TEXT,
    published_at INTEGER NOT NULL,
    PRIMARY KEY (run, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE prompts (
    number         INTEGER PRIMARY KEY,
    prompt_id      BLOB NOT NULL UNIQUE CHECK (length(prompt_id) = 16),
    run            INTEGER NOT NULL REFERENCES runs (number),
    ordinal        INTEGER NOT NULL,
    task           TEXT NOT NULL,
    task_digest    BLOB,
    task_split     TEXT,
    node_id        BLOB NOT NULL REFERENCES nodes (node_id),
    root_id        BLOB NOT NULL CHECK (length(root_id) = 32),
    seed           INTEGER NOT NULL,
    size           INTEGER NOT NULL,
    revision       INTEGER NOT NULL,
    refills        INTEGER NOT NULL,
    policy_version INTEGER,
    status         TEXT NOT NULL CHECK (status = 'open' OR status = 'complete' OR status = 'cancelled'),
    open_siblings  INTEGER NOT NULL CHECK (open_siblings >= 0),
    sequence       INTEGER,
    extra          TEXT, -- JSON
    created_at     INTEGER NOT NULL,
    UNIQUE (run, ordinal),
    CHECK ((status = 'open') = (open_siblings > 0))
) STRICT;
CREATE INDEX prompts_of_node ON prompts (node_id);

CREATE TABLE siblings (
    number     INTEGER PRIMARY KEY,
    sibling_id BLOB NOT NULL UNIQUE CHECK (length(sibling_id) = 16),
    prompt     INTEGER NOT NULL REFERENCES prompts (number),
    run        INTEGER NOT NULL REFERENCES runs (number),
    ordinal    INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    status     TEXT NOT NULL CHECK (status = 'waiting' OR status = 'running' OR status = 'result' OR status = 'error' OR status = 'cancelled'),
    trial      INTEGER, -- trials.number of the one that counts in this revision
    trials     INTEGER NOT NULL,
    sequence   INTEGER, -- of the terminal event of this revision
    opened     INTEGER NOT NULL, -- 1 once some sibling of its prompt has begun
    UNIQUE (prompt, ordinal),
    CHECK ((status = 'result' OR status = 'error' OR status = 'cancelled') = (sequence IS NOT NULL)),
    CHECK (status <> 'running' OR trial IS NOT NULL)
) STRICT;
CREATE INDEX siblings_waiting ON siblings (run, opened DESC, number) WHERE status = 'waiting';
CREATE INDEX siblings_running ON siblings (run, number) WHERE status = 'running';

CREATE TABLE trials (
    number          INTEGER PRIMARY KEY,
    sibling         INTEGER NOT NULL REFERENCES siblings (number),
    run             INTEGER NOT NULL REFERENCES runs (number),
    ordinal         INTEGER NOT NULL,
    revision        INTEGER NOT NULL,
    attempt_id      BLOB REFERENCES attempts (attempt_id),
    status          TEXT NOT NULL CHECK (status = 'running' OR status = 'counted' OR status = 'superseded' OR status = 'cancelled'),
    policy_version  INTEGER NOT NULL,
    least_version   INTEGER, -- of its steps
    greatest_version INTEGER,
    parent_trial    INTEGER REFERENCES trials (number),
    first_step      INTEGER NOT NULL,
    owned_from_step INTEGER,
    next_step       INTEGER NOT NULL,
    node_id         BLOB NOT NULL REFERENCES nodes (node_id), -- after its last step
    late_digest     BLOB,
    late_outcome    TEXT, -- JSON
    expires_at      INTEGER, -- milliseconds of the boot clock of boot_id
    boot_id         TEXT,
    started_at      INTEGER NOT NULL,
    ended_at        INTEGER,
    created_by      TEXT NOT NULL,
    trace_id        TEXT NOT NULL,
    UNIQUE (sibling, ordinal),
    CHECK ((status = 'running') = (ended_at IS NULL)),
    CHECK ((late_digest IS NULL) = (late_outcome IS NULL))
) STRICT;
CREATE INDEX trials_lapsing ON trials (run, boot_id, expires_at) WHERE status = 'running' AND expires_at IS NOT NULL;
CREATE INDEX trials_of_node ON trials (node_id);

CREATE TABLE steps (
    trial          INTEGER NOT NULL REFERENCES trials (number),
    ordinal        INTEGER NOT NULL,
    node_before    BLOB NOT NULL,
    node_after     BLOB REFERENCES nodes (node_id), -- null: unchanged
    action         TEXT, -- JSON
    observation    TEXT, -- JSON
    reward         REAL,
    elapsed_ms     INTEGER NOT NULL,
    attempt_id     BLOB,
    exec_ids       TEXT, -- a JSON array
    policy_version INTEGER,
    arrays         TEXT, -- a JSON object
    artifacts      INTEGER NOT NULL, -- how many it names
    PRIMARY KEY (trial, ordinal)
) STRICT, WITHOUT ROWID;
CREATE INDEX steps_of_node ON steps (node_after) WHERE node_after IS NOT NULL;

CREATE TABLE deliveries (
    run                  INTEGER NOT NULL REFERENCES runs (number),
    sequence             INTEGER NOT NULL,
    kind                 TEXT NOT NULL CHECK (kind = 'sibling' OR kind = 'group'),
    prompt               INTEGER NOT NULL REFERENCES prompts (number),
    sibling              INTEGER REFERENCES siblings (number),
    revision             INTEGER NOT NULL,
    trial                INTEGER REFERENCES trials (number),
    status               TEXT CHECK (status = 'result' OR status = 'error' OR status = 'cancelled'),
    cancelled            TEXT,
    usable               INTEGER NOT NULL,
    reward               REAL,
    node_id              BLOB REFERENCES nodes (node_id),
    policy_version_start INTEGER,
    policy_version_end   INTEGER,
    outcome              TEXT, -- JSON
    outcome_digest       BLOB,
    members              TEXT, -- a JSON array of sequences
    dropped_by           INTEGER NOT NULL CHECK (dropped_by >= 0),
    trained_by           INTEGER NOT NULL CHECK (trained_by >= 0),
    at                   INTEGER NOT NULL,
    PRIMARY KEY (run, sequence),
    CHECK ((kind = 'sibling') = (sibling IS NOT NULL)),
    CHECK ((kind = 'sibling') = (status IS NOT NULL)),
    CHECK ((kind = 'group') = (members IS NOT NULL)),
    CHECK ((outcome IS NULL) = (outcome_digest IS NULL))
) STRICT, WITHOUT ROWID;
-- Exactly one terminal event for each revision, by the database itself.
CREATE UNIQUE INDEX deliveries_once ON deliveries (sibling, revision) WHERE sibling IS NOT NULL;
CREATE INDEX deliveries_of_kind ON deliveries (run, kind, sequence);
CREATE INDEX deliveries_of_node ON deliveries (node_id) WHERE node_id IS NOT NULL;

CREATE TABLE consumers (
    number       INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES runs (number),
    name         TEXT NOT NULL,
    unit         TEXT NOT NULL CHECK (unit = 'sibling' OR unit = 'group'),
    usable_only  INTEGER NOT NULL,
    cursor       INTEGER NOT NULL, -- everything up to here is trained or dropped
    offered      INTEGER NOT NULL, -- nothing beyond here was looked at
    trainer_step INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    created_by   TEXT NOT NULL,
    UNIQUE (run, name)
) STRICT;

CREATE TABLE batches (
    run        INTEGER NOT NULL REFERENCES runs (number),
    batch      INTEGER NOT NULL,
    consumer   INTEGER NOT NULL REFERENCES consumers (number),
    sequences  TEXT NOT NULL, -- a JSON array
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    trace_id   TEXT NOT NULL,
    PRIMARY KEY (run, batch)
) STRICT, WITHOUT ROWID;

CREATE TABLE consumptions (
    consumer   INTEGER NOT NULL REFERENCES consumers (number),
    sequence   INTEGER NOT NULL,
    state      TEXT NOT NULL CHECK (state = 'available' OR state = 'leased' OR state = 'trained' OR state = 'dropped'),
    batch      INTEGER, -- the last one it was delivered in
    expires_at INTEGER, -- milliseconds of the boot clock of boot_id
    boot_id    TEXT,
    step       INTEGER,
    reason     TEXT,
    PRIMARY KEY (consumer, sequence),
    CHECK ((state = 'leased') = (expires_at IS NOT NULL)),
    CHECK ((state = 'dropped') = (reason IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX consumptions_open ON consumptions (consumer, sequence) WHERE state = 'available' OR state = 'leased';
CREATE INDEX consumptions_trained ON consumptions (consumer, step) WHERE state = 'trained';

ALTER TABLE events ADD COLUMN run_id BLOB;
ALTER TABLE events ADD COLUMN sibling_id BLOB;
