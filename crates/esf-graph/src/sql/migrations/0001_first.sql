-- The first schema. Every table and column is described in docs/schema.md.
-- Ids are 16 bytes, digests 32; times are milliseconds since the Unix epoch unless a comment says else.
-- `number` is the order of insertion within a table. No path, inode or mount of any machine is here.

CREATE TABLE store (
    store_id BLOB NOT NULL PRIMARY KEY CHECK (length(store_id) = 16)
) STRICT;

CREATE TABLE roots (
    root_id       BLOB NOT NULL CHECK (length(root_id) = 32),
    attrs_id      BLOB NOT NULL CHECK (length(attrs_id) = 32),
    registered_at INTEGER NOT NULL,
    registered_by TEXT NOT NULL,
    trace_id      TEXT NOT NULL,
    PRIMARY KEY (root_id, attrs_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE policies (
    policy_digest BLOB NOT NULL PRIMARY KEY CHECK (length(policy_digest) = 32),
    toml          TEXT NOT NULL
) STRICT;

CREATE TABLE environments (
    environment_digest BLOB NOT NULL PRIMARY KEY CHECK (length(environment_digest) = 32),
    executor           TEXT NOT NULL,
    secrets_policy     TEXT NOT NULL,
    json               TEXT NOT NULL
) STRICT;

CREATE TABLE logical_states (
    state_id BLOB NOT NULL PRIMARY KEY CHECK (length(state_id) = 32),
    json     TEXT NOT NULL CHECK (length(json) <= 65536)
) STRICT;

CREATE TABLE groups (
    number              INTEGER PRIMARY KEY,
    group_id            BLOB NOT NULL UNIQUE CHECK (length(group_id) = 16),
    name                TEXT NOT NULL UNIQUE,
    canonical_node_id   BLOB NOT NULL REFERENCES nodes (node_id) DEFERRABLE INITIALLY DEFERRED,
    generation          INTEGER NOT NULL CHECK (generation >= 0),
    policy_digest       BLOB NOT NULL REFERENCES policies (policy_digest),
    source              TEXT NOT NULL,
    default_environment BLOB NOT NULL REFERENCES environments (environment_digest),
    created_at          INTEGER NOT NULL,
    created_by          TEXT NOT NULL,
    trace_id            TEXT NOT NULL
) STRICT;

CREATE TABLE nodes (
    number           INTEGER PRIMARY KEY,
    node_id          BLOB NOT NULL UNIQUE CHECK (length(node_id) = 16),
    group_id         BLOB NOT NULL REFERENCES groups (group_id) DEFERRABLE INITIALLY DEFERRED,
    parent_id        BLOB REFERENCES nodes (node_id),
    parent_count     INTEGER NOT NULL,
    depth            INTEGER NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('draft', 'sealed', 'terminal', 'pruned')),
    root_id          BLOB,
    attrs_id         BLOB,
    base_root_id     BLOB,
    base_attrs_id    BLOB,
    state_id         BLOB NOT NULL REFERENCES logical_states (state_id),
    attempt_id       BLOB REFERENCES attempts (attempt_id),
    message          TEXT,
    result           TEXT,
    provenance       TEXT,
    changed          TEXT,
    merge            TEXT,
    tag_count        INTEGER NOT NULL DEFAULT 0,
    statement_digest BLOB,
    created_at       INTEGER NOT NULL,
    created_by       TEXT NOT NULL,
    sealed_at        INTEGER,
    pruned_at        INTEGER,
    trace_id         TEXT NOT NULL,
    CHECK ((root_id IS NULL) = (attrs_id IS NULL)),
    CHECK ((base_root_id IS NULL) = (base_attrs_id IS NULL)),
    CHECK (status = 'pruned' OR (status = 'draft') = (root_id IS NULL))
) STRICT;
CREATE INDEX nodes_of_group ON nodes (group_id, number);
CREATE INDEX nodes_of_parent ON nodes (parent_id, number);
CREATE INDEX nodes_of_root ON nodes (root_id, attrs_id) WHERE root_id IS NOT NULL;

-- The second and further parents of merge nodes; the first is nodes.parent_id.
CREATE TABLE merge_parents (
    node_id   BLOB NOT NULL REFERENCES nodes (node_id) DEFERRABLE INITIALLY DEFERRED,
    position  INTEGER NOT NULL CHECK (position >= 1),
    parent_id BLOB NOT NULL REFERENCES nodes (node_id),
    PRIMARY KEY (node_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX merge_parents_of_parent ON merge_parents (parent_id);

CREATE VIEW node_parents AS
    SELECT node_id, 0 AS position, parent_id FROM nodes WHERE parent_id IS NOT NULL
    UNION ALL
    SELECT node_id, position, parent_id FROM merge_parents;

CREATE TABLE tags (
    group_id   BLOB NOT NULL REFERENCES groups (group_id),
    name       TEXT NOT NULL,
    node_id    BLOB NOT NULL REFERENCES nodes (node_id),
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (group_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_of_node ON tags (node_id);

CREATE TABLE attempts (
    number             INTEGER PRIMARY KEY,
    attempt_id         BLOB NOT NULL UNIQUE CHECK (length(attempt_id) = 16),
    group_id           BLOB NOT NULL REFERENCES groups (group_id),
    node_id            BLOB NOT NULL REFERENCES nodes (node_id) DEFERRABLE INITIALLY DEFERRED,
    purpose            TEXT NOT NULL CHECK (purpose IN ('work', 'evaluate', 'salvage')),
    salvaged_from      BLOB REFERENCES attempts (attempt_id),
    retry_of           BLOB REFERENCES attempts (attempt_id),
    executor           TEXT NOT NULL,
    environment_digest BLOB NOT NULL REFERENCES environments (environment_digest),
    status             TEXT NOT NULL CHECK (status IN ('queued', 'active', 'quiescing', 'sealed', 'failed', 'released')),
    private_delta      TEXT NOT NULL CHECK (private_delta IN ('none', 'open', 'kept', 'sealed', 'discarded')),
    lease_id           BLOB REFERENCES leases (lease_id) DEFERRABLE INITIALLY DEFERRED,
    lease_epoch        INTEGER NOT NULL,
    worker_id          BLOB,
    boot_id            TEXT,
    priority           INTEGER NOT NULL,
    lifetime_ms        INTEGER,
    on_expiry          TEXT NOT NULL CHECK (on_expiry IN ('seal', 'discard')),
    failure_class      TEXT,
    failure_stage      TEXT,
    failure_detail     TEXT,
    queued_at          INTEGER NOT NULL,
    started_at         INTEGER,
    ended_at           INTEGER,
    created_by         TEXT NOT NULL,
    trace_id           TEXT NOT NULL,
    CHECK ((purpose = 'salvage') = (salvaged_from IS NOT NULL)),
    CHECK ((failure_class IS NULL) = (failure_stage IS NULL)),
    CHECK (status <> 'failed' OR failure_class IS NOT NULL)
) STRICT;
CREATE INDEX attempts_of_node ON attempts (node_id, number);
CREATE INDEX attempts_of_group ON attempts (group_id, number);
CREATE INDEX attempts_queue ON attempts (priority, number) WHERE status = 'queued';
CREATE INDEX attempts_live ON attempts (group_id) WHERE status IN ('active', 'quiescing');
-- A draft has at most one attempt that waits or lives.
CREATE UNIQUE INDEX attempts_open ON attempts (node_id)
    WHERE status IN ('queued', 'active', 'quiescing') AND purpose <> 'evaluate';

CREATE TABLE leases (
    number     INTEGER PRIMARY KEY,
    lease_id   BLOB NOT NULL UNIQUE CHECK (length(lease_id) = 16),
    attempt_id BLOB NOT NULL REFERENCES attempts (attempt_id),
    node_id    BLOB NOT NULL REFERENCES nodes (node_id),
    worker_id  BLOB NOT NULL,
    epoch      INTEGER NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('held', 'released', 'lapsed')),
    lease_ms   INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, -- milliseconds of the boot clock of boot_id
    boot_id    TEXT NOT NULL,
    granted_at INTEGER NOT NULL,
    ended_at   INTEGER,
    UNIQUE (attempt_id, epoch)
) STRICT;
CREATE INDEX leases_held ON leases (expires_at) WHERE status = 'held';

CREATE TABLE execs (
    number       INTEGER PRIMARY KEY,
    exec_id      BLOB NOT NULL UNIQUE CHECK (length(exec_id) = 16),
    attempt_id   BLOB NOT NULL REFERENCES attempts (attempt_id),
    status       TEXT NOT NULL CHECK (status IN ('running', 'finished', 'lost')),
    argv         TEXT NOT NULL, -- a JSON array
    work_dir     TEXT,          -- inside the sandbox
    run_as       TEXT,
    timeout_ms   INTEGER,
    outcome      TEXT,          -- a JSON object
    exit_code    INTEGER,
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER,
    created_by   TEXT NOT NULL,
    trace_id     TEXT NOT NULL
) STRICT;
CREATE INDEX execs_of_attempt ON execs (attempt_id, number);
CREATE INDEX execs_running ON execs (attempt_id) WHERE status = 'running';

CREATE TABLE evaluations (
    number            INTEGER PRIMARY KEY,
    evaluation_id     BLOB NOT NULL UNIQUE CHECK (length(evaluation_id) = 16),
    group_id          BLOB NOT NULL REFERENCES groups (group_id),
    node_id           BLOB NOT NULL REFERENCES nodes (node_id),
    attempt_id        BLOB REFERENCES attempts (attempt_id),
    run_attempt_id    BLOB REFERENCES attempts (attempt_id),
    evaluator         TEXT NOT NULL,
    evaluator_version TEXT NOT NULL,
    evaluator_digest  BLOB,
    class             TEXT NOT NULL CHECK (class IN ('run', 'attached')),
    verdict           TEXT NOT NULL,
    reward            REAL,
    metrics           TEXT,
    evidence          TEXT NOT NULL, -- a JSON array of {name, blob, bytes}
    failure           TEXT,          -- a JSON object
    counts            INTEGER NOT NULL CHECK (counts IN (0, 1)),
    statement_digest  BLOB,
    created_at        INTEGER NOT NULL,
    created_by        TEXT NOT NULL,
    trace_id          TEXT NOT NULL,
    CHECK (verdict <> 'error' OR reward IS NULL)
) STRICT;
CREATE INDEX evaluations_of_node ON evaluations (node_id, number);

CREATE TABLE events (
    seq           INTEGER PRIMARY KEY CHECK (seq >= 1), -- dense
    at            INTEGER NOT NULL,
    kind          TEXT NOT NULL,
    group_id      BLOB,
    node_id       BLOB,
    attempt_id    BLOB,
    lease_id      BLOB,
    exec_id       BLOB,
    evaluation_id BLOB,
    root_id       BLOB,
    actor         TEXT NOT NULL,
    trace_id      TEXT NOT NULL,
    detail        TEXT
) STRICT;

-- Idempotency: what was asked under a key, and what was answered.
CREATE TABLE requests (
    number         INTEGER PRIMARY KEY,
    actor          TEXT NOT NULL,
    operation      TEXT NOT NULL,
    key            TEXT NOT NULL,
    request_digest BLOB NOT NULL CHECK (length(request_digest) = 32),
    reply          TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    UNIQUE (key, operation, actor)
) STRICT;
